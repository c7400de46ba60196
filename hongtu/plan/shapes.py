"""What the planner knows of a model: the widths and kinds of the tensors between its parts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """One graph layer as the planner sees it (DESIGN: transform, aggregate, update).

    Attributes:
        z: columns of the exchanged rows.
        s: columns of each element of s; None marks an element that *is* z and is not stored again.
        a: columns of the aggregate.
        linear: the aggregate is linear and has no parameters: its output is a cacheable checkpoint.
        reduce: "sum" or "mean" where the engine's own kernel runs it on the cache, else None.
        weighted: the reduction uses edge weights.
        z_is_input: transform hands its input on unchanged as z.
        combined: ``combine`` takes s and the aggregate together (linear, no parameters); update gets no s.
        uses_statistics: transform or update needs the degree statistics of its rows.
        norm: no layer of the graph but a normalisation: update needs mean and variance of all of z, and nothing is
            exchanged.
    """

    z: int
    s: tuple[int | None, ...]
    a: int
    linear: bool
    reduce: str | None
    weighted: bool
    z_is_input: bool
    uses_statistics: bool
    combined: bool = False
    norm: bool = False


@dataclass(frozen=True, kw_only=True)
class ValueShape:
    """A value of a stage that later ones take: rows that stay with their vertices.

    Attributes:
        number: of the module that gives it.
        stage: in which.
        columns: of its rows.
        same_as: the part of that stage's (z, s elements...) that it *is* and is stored as, or None.
    """

    number: int
    stage: int
    columns: int
    same_as: int | None


@dataclass(frozen=True, kw_only=True)
class NetworkShape:
    """A whole model.

    Attributes:
        features: columns of the input features.
        layers: one LayerShape per graph layer and per whole-graph normalisation.
        output: columns of the model's output.
        values: those that stages give to later ones.
        takes: per stage, the numbers of the values of earlier ones that it takes, -1 for the features; () for none.
        itemsize: bytes per number.
        model_bytes: parameters, their gradients, buffers and optimizer state, per device.
        label_bytes: bytes of one vertex's label (8 for a class id, 4 * C for multi-label).
        learned_input: the features are embeddings that training learns: on the host, with a gradient.
        learned_bytes: optimizer state of those embeddings.
        input_trained: stage 0 has parameters.
        input_random: stage 0 may give other numbers in the next epoch.
        stage_parameters: about how many parameters each row-wise stage uses, or () where nobody counted; only
            predicted seconds depend on them.
    """

    features: int
    layers: tuple[LayerShape, ...]
    output: int
    values: tuple[ValueShape, ...] = ()
    takes: tuple[tuple[int, ...], ...] = ()
    itemsize: int
    model_bytes: int
    label_bytes: int
    learned_input: bool = False
    learned_bytes: int = 0
    input_trained: bool = True
    input_random: bool = True
    stage_parameters: tuple[int, ...] = ()

    @property
    def last_norm(self) -> int:
        """Index of the last normalisation, or -1: what it normalises is needed of every vertex."""
        return max((k for k, layer in enumerate(self.layers) if layer.norm), default=-1)

    def layers_above(self, k: int) -> int:
        """How many graph layers come after ``layers[k]``."""
        return sum(not layer.norm for layer in self.layers[k + 1 :])

    @property
    def uses_edge_ids(self) -> bool:
        """Whether a layer works edge by edge."""
        return any(layer.reduce is None and not layer.norm for layer in self.layers)

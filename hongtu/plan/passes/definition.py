"""Passes: what each sweep over the batches reads, exchanges, computes and writes.

A pass runs, per chunk, the aggregate of one layer and the row-wise stage behind it (update of that layer, then
transform of the next), forward or backward. Stage 0 (transform of layer 0) is a pass of its own without aggregate.
Each saving is a rewrite of this list; the runtime replays passes and never asks which saving is on.

Vertex tensors: ``features``; ``z{l}``, ``s{l}.{k}`` (outputs of stage l), ``v{l}.{n}`` (a value that module n gives in
stage l and later stages take), ``a{l}`` (output of the aggregate: a checkpoint), ``output``; their gradients carry the
prefix ``grad ``. A tensor that aliases another has its name. ``e{l}.{n}`` (a value that module n gives edges
behind layer l) has a row for each in-edge of the destinations that the pass of layer l computes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from hongtu.plan.passes.shapes import NetworkShape

Direction = Literal["forward", "backward", "fused"]
FEATURES, OUTPUT = "features", "output"


def gradient(name: str) -> str:
    """The tensor that holds the gradient of another."""
    return f"grad {name}"


def is_gradient(name: str) -> bool:
    """Whether a vertex tensor holds the gradient of another."""
    return name.startswith(gradient(""))


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One sweep over all batches.

    Attributes:
        direction: forward; backward, which visits the batches from last to first; or fused: forward, loss and
            backward of the last layer, chunk by chunk.
        layer: the layer whose aggregate runs, or None for stage 0 alone.
        stage: the row-wise stage that runs behind the aggregate (``layer + 1``, or 0), or None for none.
        when: in every training epoch, in evaluation, or once before the first epoch.
        exchange: vertex tensor whose rows go through the caches, or None where no neighbour rows are needed.
        flush: gradient tensor that receives the caches' gradient rows, or None.
        source: vertex tensor read by contiguous rows in place of the aggregate: a checkpoint, the features, or what a
            normalisation normalises.
        s: the s elements of ``layer`` that are read by contiguous rows.
        values: what the stage takes from earlier stages, read by contiguous rows.
        states: states of edges that the aggregate takes, read by contiguous rows; ``gives``: those that it gives.
        gradients: gradient tensors of the stage's outputs, read by contiguous rows.
        outputs: vertex tensors that the stage writes by contiguous rows (forward).
        checkpoint: vertex tensor that keeps the aggregate's output, or None (forward).
        moments: the stage's output that the next layer normalises, or None: forward gathers mean and variance of its
            columns, backward adds what comes back by way of these to its gradient.
        direct: for each s element of ``layer`` (or for the features), then for each of the values and of the states,
            the tensor its gradient goes to, or None.
        loss: the loss and its gradient are evaluated on the stage's output.
        edge_loss: after the pass, a loss over edges and its gradient are evaluated on the host, from the whole output.
        saves: what the stage computed stays on the device until backward, which then computes nothing again.
        holds: vertex tensors that what is kept may lie in.
        has: vertex tensors that backward need not read, for what is kept has of them what it needs.
        hops: only vertices within so many hops of the loss vertices are computed, or those of a rank's field of this
            number; None for all.
        creates: vertex tensors allocated before the pass.
        frees: vertex tensors released after it.
    """

    direction: Direction
    layer: int | None
    stage: int | None
    when: Literal["train", "evaluate", "setup"] = "train"
    exchange: str | None = None
    flush: str | None = None
    source: str | None = None
    s: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    gradients: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    checkpoint: str | None = None
    moments: str | None = None
    direct: tuple[str | None, ...] = ()
    loss: bool = False
    edge_loss: bool = False
    saves: bool = False
    holds: tuple[str, ...] = ()
    has: frozenset[str] = frozenset()
    hops: int | None = None
    creates: tuple[str, ...] = ()
    frees: tuple[str, ...] = ()

    @cached_property
    def name(self) -> str:
        """For people: "forward 1"; stage 0 alone is "forward stage 0"; "evaluate 1", "setup 0"."""
        verb = self.direction if self.when == "train" else self.when
        return f"{verb} {'stage 0' if self.layer is None else self.layer}"

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Vertex tensors read by contiguous rows, each once."""
        names = (() if self.source is None else (self.source,)) + self.s + self.values + self.states
        names = tuple(name for name in names if name not in self.has)
        if self.moments is not None and self.saves and self.direction == "backward":
            names += (self.moments,)  # which is not computed again
        return tuple(dict.fromkeys(names))

    def leaves_out(self, name: str, *, pruned: bool) -> bool:
        """Whether the pass may leave rows of a tensor that it creates without a writer.

        Args:
            pruned: it computes only some vertices.
        """
        return name == self.flush or (pruned and name in self.direct)

    @cached_property
    def written(self) -> tuple[str, ...]:
        """Vertex tensors written or added to by contiguous rows, each once."""
        names = (*self.outputs, self.checkpoint, *self.direct)
        return tuple(dict.fromkeys(name for name in names if name is not None))


@dataclass(frozen=True)
class PassList:
    """The passes of a model.

    Attributes:
        train, evaluate: of a training epoch and of an evaluation.
        setup: once before everything else.
        width: columns of every vertex tensor.
        constant: vertex tensors that stay for the whole run.
        wanted: vertex tensors that get a gradient: those that depend on something that is trained.
        pieces: vertex tensors that chunks keep for themselves, as layers made them, where what stages compute is saved.
        on_host: vertex tensors that must not stay on the devices: results, what the host itself works on.
        layer_inputs: per layer, its z and the elements of its s.
        returned: per stage, the tensors that running it gives, in order; the features are no output.
        of_edges: the tensors with rows of edges, each with the layer behind which these are their states.
    """

    train: tuple[Pass, ...]
    evaluate: tuple[Pass, ...]
    setup: tuple[Pass, ...]
    width: dict[str, int]
    constant: frozenset[str]
    wanted: frozenset[str]
    pieces: frozenset[str]
    on_host: frozenset[str]
    layer_inputs: tuple[tuple[str, ...], ...]
    returned: tuple[tuple[str, ...], ...]
    of_edges: dict[str, int] = field(default_factory=dict)

    def over(self, name: str) -> Literal["destinations", "edges"]:
        """What of a chunk a tensor has a row for."""
        return "edges" if name in self.of_edges else "destinations"

    @property
    def every(self) -> tuple[Pass, ...]:
        return (*self.setup, *self.train, *self.evaluate)


class Names:
    """Vertex tensor names of every stage's outputs, aliases resolved, and the columns of all tensors.

    Attributes:
        z, s: per layer; ``value``: by the number of the module that gives it, -1 for the features; ``states``: those of
            edges, by the number of the module that gives them.
    """

    def __init__(self, shape: NetworkShape, input_gradient: bool) -> None:
        self.width: dict[str, int] = {FEATURES: shape.features, OUTPUT: shape.output}
        self.z: list[str] = []
        self.s: list[tuple[str, ...]] = []
        for index, layer in enumerate(shape.layers):
            copied = layer.norm and input_gradient  # what comes back by way of statistics is added in a pass of its own
            z = FEATURES if index == 0 and layer.z_is_input and not copied else f"z{index}"
            s = tuple(z if columns is None else f"s{index}.{k}" for k, columns in enumerate(layer.s))
            self.z.append(z)
            self.s.append(s)
            self.width[z] = layer.z
            self.width[f"a{index}"] = layer.a
            self.width.update({n: c for n, c in zip(s, layer.s, strict=True) if c is not None})
        self.value: dict[int, str] = {-1: FEATURES}
        self._shape = shape
        for value in shape.values:
            own = (self.z[value.stage], *self.s[value.stage])
            name = f"v{value.stage}.{value.number}" if value.same_as is None else own[value.same_as]
            self.value[value.number] = name
            self.width[name] = value.columns
        given = [(k, state) for k, layer in enumerate(shape.layers) for state in layer.gives]
        self.states = {state.number: f"e{k}.{state.number}" for k, state in given}
        self.width.update({self.states[state.number]: state.columns for _, state in given})
        self.width.update({gradient(name): columns for name, columns in list(self.width.items())})

    def returned(self, stage: int) -> tuple[str, ...]:
        """Distinct vertex tensors that a stage gives: z, s and values."""
        if stage == len(self.z):
            return (OUTPUT,)
        values = (self.value[value.number] for value in self._shape.values if value.stage == stage)
        return tuple(dict.fromkeys((self.z[stage], *self.s[stage], *values)))

    def stage_outputs(self, stage: int) -> tuple[str, ...]:
        """Those that it writes."""
        return tuple(name for name in self.returned(stage) if name != FEATURES)

    def taken(self, stage: int) -> tuple[str, ...]:
        """What a stage takes from earlier ones."""
        return tuple(self.value[number] for number in self._shape.takes[stage]) if self._shape.takes else ()

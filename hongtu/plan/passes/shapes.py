"""What the planner knows of a model: the widths and kinds of the tensors between its parts."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, cast

from typing_extensions import Self

from hongtu.graph.sparse_rows import SparseRows


@dataclass(frozen=True)
class EdgeData:
    """What lies beside the edges of a graph.

    Attributes:
        features: columns of their features, 0 without any.
        types: how many types they have, 0 without any.
    """

    features: int = 0
    types: int = 0


NO_EDGE_DATA = EdgeData()


@dataclass(frozen=True)
class EdgeShape:
    """A value of edges that a layer gives to later ones.

    Attributes:
        number: of the module that gives it.
        columns: of its rows.
        trained: it depends on something that is trained.
    """

    number: int
    columns: int
    trained: bool


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """One graph layer as the planner sees it.

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
        uses_out_degrees: out-degrees are among them.
        factors: what of these is enough, as ``hongtu.nn.Layer`` has it; None: nothing less.
        ignores_weights: it gets no edge weights, and statistics of edges without.
        norm: no layer of the graph but a normalisation: update needs mean and variance of all of z, and nothing is
            exchanged.
        trained: z or an element of s depends on a parameter that is trained, here or in a layer before.
        edge_features, edge_type: the aggregate reads them of every edge.
        states: the values of edges that it takes, by the numbers of the modules that give them.
        gives: those that it gives to later layers.
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
    trained: bool = True
    edge_features: bool = False
    edge_type: bool = False
    states: tuple[int, ...] = ()
    gives: tuple[EdgeShape, ...] = ()
    norm: bool = False
    factors: tuple[bool, bool, str] | None = None
    ignores_weights: bool = False
    uses_out_degrees: bool = False


class Counts:
    """Numbers that add up, field by field."""

    def __add__(self, other: Self) -> Self:
        return type(self)(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(cast(Any, self))})

    def times(self, times: int) -> Self:
        """So many of them."""
        return type(self)(**{f.name: times * getattr(self, f.name) for f in fields(cast(Any, self))})


@dataclass(frozen=True)
class Products(Counts):
    """Linear maps, per vertex.

    Attributes:
        parameters: of their matrices.
        columns: of what they take and give.
    """

    parameters: int = 0
    columns: int = 0


@dataclass(frozen=True)
class Sweeps(Counts):
    """What operations read and write beside their products.

    Attributes:
        forward, backward: columns per vertex in either direction.
        forward_calls, backward_calls: operations, products included.
        saved: columns that they make and keep for backward.
    """

    forward: int = 0
    backward: int = 0
    forward_calls: int = 0
    backward_calls: int = 0
    saved: int = 0


@dataclass(frozen=True, kw_only=True)
class EdgeSweeps(Counts):
    """What a function of edges (attention, gates) does in one direction.

    Attributes:
        walks: how often kernels go over all edges and find the rows of their sources.
        rows: columns of these rows; where kernels add to them, twice.
        destinations, sources, edges: columns of arrays with so many rows, read or written in order.
        calls: operations.
    """

    walks: int = 0
    rows: int = 0
    destinations: float = 0
    sources: float = 0
    edges: float = 0
    calls: int = 0


@dataclass(frozen=True, kw_only=True)
class StageWork:
    """About what a row-wise stage computes per vertex.

    Attributes:
        products: its linear maps.
        entry: of these, those of its own input, whose gradient may not be wanted.
        mapped: those of a transform at its end whose result is not computed again for its gradients.
        widest: columns of what one of them gives.
        sweeps: everything else; combine: of the aggregate before the stage what is added to the engine's own sum.
        function: of an aggregate that is no such sum, what it does forward, and for its gradients.
        replicas: linear maps of the sources inside that aggregate, one by one in every chunk.
    """

    products: Products = Products()
    entry: Products = Products()
    mapped: Products = Products()
    widest: int = 0
    sweeps: Sweeps = Sweeps()
    combine: Sweeps = Sweeps()
    function: tuple[EdgeSweeps, EdgeSweeps] = (EdgeSweeps(), EdgeSweeps())
    replicas: Products = Products()

    @property
    def again(self) -> Products:
        """Those that are computed again where nothing is kept for their gradients."""
        return self.products + self.mapped.times(-1)


@dataclass(frozen=True, kw_only=True)
class ValueShape:
    """A value of a stage that later ones take: rows that stay with their vertices.

    Attributes:
        number: of the module that gives it.
        stage: in which.
        columns: of its rows.
        same_as: the part of that stage's (z, s elements...) that it *is* and is stored as, or None.
        trained: as for layers.
    """

    number: int
    stage: int
    columns: int
    same_as: int | None
    trained: bool


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
        copies_gradients: gradients are copied before a step that changes them, also among ``model_bytes``.
        edges: what lies beside the graph's edges.
        label_bytes: bytes of one vertex's label (8 for a class id, 4 * C for multi-label).
        learned_input: the features are embeddings that training learns: on the host, with a gradient.
        learned_bytes: what their optimizer, copies of their gradient and snapshots take beside them.
        copies_learned: their gradient is copied before a step; else it is there until the next epoch.
        sparse_input: the features in CSR: they stay on the host and reach devices as rows of stage 0 only.
        maps_input: stage 0 takes them as they are, where kernels of the CPU run; else they become dense.
        constant_layers: so many layers, from the first on, aggregate the same in every epoch where the features are
            constant.
        stage_work: what each row-wise stage computes, or () where nobody counted; only what is predicted to take long
            depends on it.
        trains: there is a loss; else an epoch is one sweep forward.
        autocast: what dense parts may compute in ("bfloat16"), or "" for the run's dtype.
        host_dtype: what the host keeps values in ("bfloat16"), and its links carry, or "" for the run's dtype;
            ``gradient_dtype``: the same of gradients of rows.
        edge_loss: the loss is one over edges, evaluated on the host from the whole output.
        gathered: rows of the output that a rank has for it of all ranks, and those of them that others own.
        loss_bytes: what that loss holds for the whole run.
        rows_bytes: what a rank knows of its rows.
        repeats: model and loss do the same operations in every epoch, as far as their classes tell.
    """

    features: int
    layers: tuple[LayerShape, ...]
    output: int
    values: tuple[ValueShape, ...] = ()
    takes: tuple[tuple[int, ...], ...] = ()
    itemsize: int
    model_bytes: int
    label_bytes: int
    edges: EdgeData = NO_EDGE_DATA
    learned_input: bool = False
    learned_bytes: int = 0
    copies_gradients: bool = False
    copies_learned: bool = False
    sparse_input: SparseRows | None = None
    maps_input: bool = False
    constant_layers: int = 0
    stage_work: tuple[StageWork, ...] = ()
    trains: bool = True
    autocast: str = ""
    host_dtype: str = ""
    gradient_dtype: str = ""
    edge_loss: bool = False
    gathered: tuple[int, int] = (0, 0)
    loss_bytes: int = 0
    rows_bytes: int = 0
    repeats: bool = True

    @property
    def last_norm(self) -> int:
        """Index of the last normalisation, or -1: what it normalises is needed of every vertex."""
        return max((k for k, layer in enumerate(self.layers) if layer.norm), default=-1)

    @property
    def graph_layers(self) -> list[int]:
        """Indices of the layers that read neighbours: all but normalisations."""
        return [k for k, layer in enumerate(self.layers) if not layer.norm]

    def layers_above(self, k: int) -> int:
        """How many graph layers come after ``layers[k]``."""
        return sum(not layer.norm for layer in self.layers[k + 1 :])

    @property
    def factors(self) -> tuple[bool, bool, str] | None:
        """What all layers that use degree statistics make of them, where it is the same."""
        found = {None if layer.ignores_weights else layer.factors for layer in self.layers if layer.uses_statistics}
        return found.pop() if len(found) == 1 else None

    @property
    def statistics_columns(self) -> int:
        """Numbers that a vertex has of its degrees."""
        ignoring = {layer.ignores_weights for layer in self.layers if layer.uses_statistics}
        own = 3 + any(layer.uses_out_degrees for layer in self.layers)
        return 0 if not ignoring else 2 * own if any(ignoring) else own if self.factors is None else 2

    @property
    def uses_edge_ids(self) -> bool:
        """Whether a layer works edge by edge."""
        return any(layer.reduce is None and not layer.norm for layer in self.layers)

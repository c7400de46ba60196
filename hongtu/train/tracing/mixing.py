"""Refuses models that mix rows: each stage between two aggregates, and each aggregate, is judged as a whole on a few.

Legend: R rows, D destinations, of which each has up to ``DEGREE`` in-edges from as many sources of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hongtu.errors import InputError
from hongtu.model.checks import modes_kept
from hongtu.model.network import Network
from hongtu.model.rows_alone import ROUNDING, ROWS, Function, Given, Result, distance, find_mixture, varied
from hongtu.model.structure import Kind
from hongtu.model.typed_hop import TypedHop
from hongtu.nn.block import Block, Rows
from hongtu.nn.layer import Layer
from hongtu.nn.whole_graph import WholeGraphNorm
from hongtu.train.tracing.operations import tensors_in
from hongtu.train.tracing.trace import GraphForm

DEGREE = 3
EDGES = (0, 1, 1), (1, 1, 1), (1, 1, 0), (1, 1, 1), (0, 1, 1), (1, 0, 0), (0, 1, 1)  # of each, the first a self-loop
PLAIN = 1e-3  # of the largest number: no rounding, where float64 cannot tell
EXACT = 1e-9  # of the largest number: more than rounding in float64

STATE = torch.Generator().manual_seed(0).get_state()

Run = Callable[[Network, Given], list[Tensor]]
Seen = list[tuple[str, Any]]  # what every module gave, by its title


@dataclass(frozen=True)
class _Part:
    """A stage or an aggregate of a model, and what it is given.

    Attributes:
        given: what comes before it gives, then what belongs to vertices and edges.
        leaves: how many tensors of the former there are.
        index: of the layer.
        of_edges: whole numbers say where rows lie.
    """

    run: Run
    given: Given
    leaves: int
    index: int
    of_edges: bool = False

    def functions(self, network: Network) -> list[Function]:
        """It, to judge on rows of several kinds, and on rows as they come."""
        kinds = (*map(varied, self.given[: self.leaves]), *self.given[self.leaves :])
        call = partial(_call, network, self.run)
        codes = not self.of_edges
        return [Function(call, given, self.leaves, codes=codes) for given in (kinds, self.given)]


def refuse_mixing(network: Network, form: GraphForm) -> None:
    """Refuse a model that was traced if what it gives for a vertex depends on other rows than those of its in-edges'
    sources, in evaluation or in training, in its numbers or in its gradients.

    Raises:
        InputError: naming the module.
    """
    with modes_kept(network.modules), torch.random.fork_rng(devices=[]), network.without_autocast():
        network.modules.eval()
        try:
            for part in [part for kind in network.kinds for part in _parts(network, form, kind)]:
                varied_rows, as_they_come = part.functions(network)
                network.modules.eval()
                _check(network, part, [replace(f, leaves=0, brief=True) for f in (varied_rows, as_they_come)])
                network.modules.train()
                _check(network, part, [varied_rows, as_they_come, replace(as_they_come, leaves=0)])
        finally:
            for norm in network.norms:
                norm.forget()


def _parts(network: Network, form: GraphForm, kind: Kind) -> Iterator[_Part]:
    """The stages and aggregates of a model, each with rows of one kind that come from those before it."""
    h = torch.sin(torch.arange(ROWS * form.features, dtype=form.dtype)).reshape(ROWS, form.features)
    of_rows = kind.vertices(ROWS), torch.tensor([[1.0, 0.0, torch.nan, 1.0]] * ROWS, dtype=form.dtype)
    known = {-1: h}
    a: Tensor = h
    s: Given = ()
    states: dict[int, Tensor] = {}
    for index in range(len(network.layers) + 1):
        taken = [known[number] for number in network.wiring.takes[index]]
        stage = _Part(partial(_stage, index, len(taken)), (a, *s, *taken, *of_rows), 1 + len(s) + len(taken), index)
        yield stage
        with torch.no_grad():
            z, *rest = stage.run(network, stage.given)
        if index == len(network.layers):
            return
        gives = network.wiring.gives[index]
        s = tuple(rest[: len(rest) - len(gives)])
        known |= dict(zip(gives, rest[len(s) :], strict=True))
        layer = network.layers[index]
        if isinstance(layer, WholeGraphNorm):
            a = z
            continue
        e = tuple(states[of] for of in network.edge_states(index))
        aggregate = _aggregate_part(network, index, z, (s, e), of_rows, form)
        if layer.reduce is None or type(layer).aggregate is not Layer.aggregate:
            yield aggregate
        with torch.no_grad():
            a, *given = aggregate.run(network, aggregate.given)
            edge_rows = (x.reshape(ROWS * DEGREE, -1) for x in given)
            states |= dict(zip(network.gives_edges(index), edge_rows, strict=True))
            if layer.linear_aggregate and layer.combines:
                combine = _Part(partial(_combine, index), (a, *s, *of_rows), 1 + len(s), index)
                if not layer.built_in:
                    yield combine
                (a,), s = combine.run(network, combine.given), ()


def _stage(index: int, values: int, network: Network, given: Given) -> list[Tensor]:
    """Of what comes before it, of which the last so many are values, ids and statistics of vertices."""
    base, *before, ids, statistics = given
    s, taken = before[: len(before) - values], before[len(before) - values :]
    if index and isinstance(norm := network.layers[index - 1], WholeGraphNorm):
        mean = torch.zeros(base.shape[1], dtype=torch.float64)
        norm.set_statistics((mean, mean + 1), mean.device, ROWS)  # which are not those of these rows
    h, a = (None, base) if index else (base, None)
    z, s_out, gives = network.run_stage(index, h, a, tuple(s), Rows(ids, statistics), tuple(taken))
    return [z, *s_out, *gives.values()]


def _combine(index: int, network: Network, given: Given) -> list[Tensor]:
    a, *s, ids, statistics = given
    return [network.combine(index, a, tuple(s), Rows(ids, statistics))]


def _aggregate_part(
    network: Network, index: int, z: Tensor, own: tuple[Given, Given], of_rows: Given, form: GraphForm
) -> _Part:
    """An aggregate of sources like these rows, of destinations and of the states of their edges."""
    layer, count, (s, e), edges = network.layers[index], ROWS * DEGREE, own, form.edges
    sources = torch.cat([z * (1 + k / 8) for k in range(DEGREE)])
    beside: dict[str, Tensor] = {}
    if network.reads_edge_features(index) and edges.features:
        numbers = torch.arange(count * edges.features, dtype=z.dtype)
        beside["edge_features"] = torch.sin(numbers).reshape(count, edges.features)
    if layer.uses_edge_type and edges.types:
        beside["edge_type"] = torch.arange(count, dtype=torch.int32).flip(0) % edges.types
    if form.weights:
        beside["edge_weight"] = torch.arange(count, dtype=z.dtype) % 4 / 4 + 0.5
    places = torch.tensor(EDGES).view(-1).bool(), torch.arange(ROWS), DEGREE * torch.arange(ROWS)
    run = partial(_aggregate, index, tuple(beside), len(e))
    return _Part(run, (sources, *s, *e, *beside.values(), *places, *of_rows), 1 + len(s) + len(e), index, of_edges=True)


def _aggregate(index: int, beside: tuple[str, ...], states: int, network: Network, given: Given) -> list[Tensor]:
    """Of sources, destinations, so many states of edges, and what lies beside edges by name, which of the ``DEGREE``
    edges that each destination could have are there, whose sources it reads beside itself, the id of its first edge,
    and what belongs to it as a vertex."""
    *rows, there, reads, edge_id_start, ids, statistics = given
    count, degree, edge = len(ids), there.view(-1, DEGREE).sum(1), there.nonzero().squeeze(1)
    owner, slot = edge // DEGREE, edge % DEGREE
    vertex = torch.where(slot == 0, owner, count + reads[owner] % count * DEGREE + slot)
    sources, local_source = torch.unique(vertex, return_inverse=True)
    used = torch.where(sources < count, sources * DEGREE, sources - count)
    z, *own = rows[: len(rows) - len(beside)]
    s, e = own[: len(own) - states], own[len(own) - states :]
    block = Block(
        indptr=torch.cat([degree.new_zeros(1), degree.cumsum(0)]),
        local_source=local_source.int(),
        sources=sources.int(),
        first=0,
        rows=Rows(ids, statistics),
        edge_id_start=edge_id_start,
        num_graph_edges=ROWS * DEGREE,
        memo={},
        **{"edge_weight": None} | {name: x[edge] for name, x in zip(beside, rows[len(rows) - len(beside) :])},
    )
    a, *given_E = network.aggregate(index, block, z[used], tuple(s), tuple(x[edge] for x in e))
    every = [x.new_zeros(count * DEGREE, *x.shape[1:]).index_copy(0, edge, x) for x in given_E]
    return [a, *(x.reshape(count, -1) for x in every)]


def _check(network: Network, part: _Part, functions: list[Function]) -> None:
    """Refuse a part that mixes rows by the first function that does not fail: an index may be none in rows of another
    kind, and rows with gradients may be taken for numpy's. Where rows differ, float64 tells whether by rounding alone,
    if the modules run in it."""
    for function in functions:
        try:
            mixture = find_mixture(function)
            break
        except Exception:
            if function is functions[-1]:
                raise
    if mixture is None:
        return
    with suppress(Exception):  # modules that run in one precision alone
        twin = network.twin()
        twin.modules.double()
        given = tuple(x.double() if x.is_floating_point() else x for x in function.given)
        exact = replace(function, call=partial(_call, twin, part.run), given=given, near=EXACT, others={})
        if find_mixture(exact) is None:
            return
        mixture = replace(mixture, size=torch.inf)
    if mixture.size < PLAIN:
        return
    if mixture.counted is not None:
        names = (name for name, parameter in network.modules.named_parameters() if parameter is mixture.counted)
        raise InputError(
            f"{network.current} or a module before it mixes the rows of its input: the gradient of its "
            f"{next(names, 'parameter')} is no sum over rows, as of an Embedding that counts those of a chunk "
            "(scale_grad_by_freq=True), or of a backward, such as a hook's, that puts rows together; make it without"
        )
    first, again, second = (
        _watched(network, part.run, given) for given in (mixture.first, mixture.first, mixture.second)
    )
    owners = _owners(part, mixture.first), _owners(part, mixture.second)
    counts = len(mixture.first[-1]), len(mixture.second[-1])
    for row in range(counts[0]):
        if (title := _culprit(first, again, (row, row), counts[:1] * 2, owners[:1] * 2)) is not None:
            raise InputError(
                f"{title} gives other numbers when it is called again with the same rows, which backward does; draw "
                "random numbers from torch's generator, or use hongtu.nn.Dropout, and keep nothing between calls"
            )
    if mixture.shared:
        raise InputError(
            f"{network.current} or a module before it draws random numbers that are not those of one row, as "
            "torch.rand(x.size(1)) or a dropout of weights does, and every chunk would draw others; draw some for each "
            "row, as torch.rand_like(x) does"
        )
    title = _culprit(first, second, mixture.rows, counts, owners) or f"{network.current} or a module before it"
    if mixture.place:
        raise InputError(
            f"{title} mixes the rows of its input: what it gives for a row depends on where it lies, or on how many "
            "there are, and a chunk has other ones than the whole graph; give positions and counts as features, and "
            "aggregate in a way that the longest list of in-edges does not change (aggr='lstm' is no such)"
        )
    raise InputError(
        f"{title} mixes the rows of its input, which would be those of a chunk instead of the whole graph; "
        f"{_remedy(network, part, title)}"
    )


def _remedy(network: Network, part: _Part, title: str) -> str:
    """What to do in place of a part that mixes rows."""
    layer: Any = network.layers[part.index] if part.index < len(network.layers) else None
    of_all = "of all vertices there are the statistics of torch.nn.BatchNorm1d, GraphNorm and PairNorm"
    edges, features = part.of_edges and hasattr(layer, "encode_edges"), title.startswith("layers[0] ")
    name, rows, otherwise = "", "all rows of x", f"behind a layer, {of_all}"
    if isinstance(layer, TypedHop):
        name, rows = f"[{layer.types.names[0]!r}].x", "all features of a type"
        otherwise = "between convolutions torch.nn.LayerNorm takes each row alone"
    elif edges or (features and not part.of_edges):
        name, rows = (".edge_attr", "all edge_attr") if edges else (".x", rows)
    if not name:
        return (
            "a module between layers, and what a layer does to rows and edges, must treat each alone; only the "
            f"in-edges of one destination may be put together, as TransformerConv does; {of_all}"
        )
    once = f"rows = data{name}.double(); data{name} = (rows - rows.mean(0)) / rows.std(0)"
    return (
        f"what is made of {rows} at once is made once before hongtu.preprocess_graph, as {once}, and left out of "
        f"forward; {otherwise}"
    )


def _call(network: Network, run: Run, given: Given) -> Result:
    """With the same random numbers in every call."""
    drawn: list[Tensor] = []
    network.drawn = drawn
    torch.set_rng_state(STATE)
    try:
        rows = run(network, given)
    finally:
        network.drawn = None
    after = torch.get_rng_state()
    return Result(rows, drawn if torch.equal(STATE, after) else [*drawn, after])


def _watched(network: Network, run: Run, given: Given) -> Seen:
    """What every module gave, up to one that fails."""
    seen: Seen = []
    network.watch = lambda title, rows, out: seen.append((title, [x.detach().clone() for x in tensors_in([out])]))
    try:
        with suppress(Exception), torch.no_grad():
            _call(network, run, given)
    finally:
        network.watch = None
    return seen


def _owners(part: _Part, given: Given) -> Tensor | None:
    """The destination of each edge that an aggregate is given; None for a stage."""
    return given[-5].nonzero().squeeze(1) // DEGREE if part.of_edges else None


def _culprit(
    first: Seen, second: Seen, rows: tuple[int, int], counts: tuple[int, int], owners: tuple[Tensor | None, ...]
) -> str | None:
    """The first module that gave something else for a row, or, with the destinations of edges, for its in-edges."""
    for (title, one), (_, other) in zip(first, second):
        for x, y in zip(one, other):
            if all(o is not None and t.ndim and len(t) == len(o) for t, o in zip((x, y), owners)):
                x, y = (t[o == row] for t, o, row in zip((x, y), owners, rows))
                if x.shape == y.shape and _differs(x, y):
                    return title
                continue
            dimension = next((d for d in range(min(x.ndim, y.ndim)) if (x.shape[d], y.shape[d]) == counts), None)
            if dimension is not None:
                x, y = x.select(dimension, rows[0]), y.select(dimension, rows[1])
            elif x.numel() % counts[0] == 0:  # rows put together in some other way
                continue
            if _differs(x, y):
                return title
    return first[len(second)][0] if len(second) < len(first) else None


def _differs(x: Tensor, y: Tensor) -> bool:
    """By more than rounding."""
    if not x.is_floating_point():
        return bool((x != y).any())
    return distance(x, y, x) > ROUNDING * torch.finfo(x.dtype).eps

"""Runs a model on a graph of two vertices to learn its widths, what it stores once, and what it must not do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hongtu.errors import InputError
from hongtu.kernels.torch_private import times_written
from hongtu.model.checks import drops, is_altered, is_random, modes_kept
from hongtu.model.network import Forms, Network
from hongtu.nn.block import Block, Rows
from hongtu.nn.layer import Layer
from hongtu.nn.whole_graph import WholeGraphNorm
from hongtu.plan.passes.shapes import NO_EDGE_DATA, EdgeData, EdgeShape, LayerShape, ValueShape


@dataclass(frozen=True)
class Traced:
    """What a model showed.

    Attributes:
        layers: a LayerShape per layer.
        values: those that stages give to later ones.
        output: columns of the model's output.
    """

    layers: tuple[LayerShape, ...]
    values: tuple[ValueShape, ...]
    output: int


class GraphForm(NamedTuple):
    """What a graph gives a model, but for its numbers.

    Attributes:
        features: columns.
        dtype: of what the model computes with.
        edges: what lies beside edges.
        weights: edges have some.
    """

    features: int
    dtype: torch.dtype
    edges: EdgeData = NO_EDGE_DATA
    weights: bool = False


def trace(network: Network, form: GraphForm) -> Traced:
    """Learn the widths of a model, and tell it which tensors are stored once.

    Raises:
        InputError: when a module does not accept what the one before it gives, or cannot be exact chunk by chunk.
    """
    for norm in network.norms:
        norm.forget()
    network.forms = Forms([None] * len(network.layers))
    with (
        failures_named(network, form),
        modes_kept(network.modules),
        torch.no_grad(),
        torch.random.fork_rng(devices=[]),
        network.without_autocast(),
        _buffers_left(network),
    ):
        found, _ = _run(network, form, training=False)
        with torch.enable_grad():  # to see what depends on a parameter that is trained
            trained, _ = _run(network, form, training=True)
    merged = _common(found, trained)
    network.forms.shared = [tuple(columns is None for columns in layer.s) for layer in merged.layers]
    network.forms.same_as = {value.number: value.same_as for value in merged.values}
    return merged


@contextmanager
def failures_named(network: Network, form: GraphForm) -> Iterator[None]:
    """Inside, what torch does not take is the fault of the module that was called last.

    Raises:
        InputError: naming it.
    """
    try:
        yield
    except InputError:
        raise
    except (RuntimeError, TypeError, LookupError, ValueError, AttributeError, AssertionError) as error:
        text = " ".join(str(error).split())[:200] or type(error).__name__
        of_edges = f", those of edges {form.edges.features}" if form.edges.features else ""
        rows = f", given rows of {network.given} columns" if network.given else ""
        remedy = (
            'name what it takes beside rows in a header, as (module, "x, x0 -> x")'
            if "required positional argument" in text
            else "whole numbers are stored as floats; look up x.long(), or edge_attr.long()"
            if "'indices' to have one of the following scalar types: Long" in text
            else "a run has one dtype of all rows and weights, hongtu.Trainer(dtype=...); leave out what casts rows, "
            "as x.float() and h.double()"
            if "dtype" in text
            else "it must take any number of rows, keep them in the first dimension, and its input width must be that "
            "of the output before it, whatever the numbers there (torch.nn.functional.one_hot: give num_classes)"
            f"{'; an edge_dim must be the columns of edges' if of_edges else ''}"
        )
        raise InputError(
            f"{network.current} failed on a small graph{rows} (the features have {form.features} "
            f"columns{of_edges}): {text}; {remedy}"
        ) from error


def constant_layers(network: Network, form: GraphForm) -> int:
    """How many layers, from the first on, aggregate the same in every epoch where the features are constant: their
    aggregates are linear, and no parameter, buffer or randomness is in the stages before them."""
    first = network.layers[0]
    calls = type(first).transform not in (Layer.transform, WholeGraphNorm.transform)
    own = [first] if calls or getattr(first, "drop_edges", None) is not None else []  # whose methods stage 0 may call
    if any(map(_draws, own)) or any(_changes(module) for _, module in network.row_modules[0]):
        return 0
    with modes_kept(network.modules), _differentiated(network):
        found, _ = _run(network, form, training=network.modules.training)
    for index, shape in enumerate(found.layers):
        called = [*network.layers[index - 1 : index + 1], *(module for _, module in network.row_modules[index])]
        changes = index > 0 and any(map(_changes, called))  # whose methods an inner stage may call
        trained = shape.trained or any(value.trained for value in found.values if value.stage == index)
        if changes or trained or shape.norm or not shape.linear:
            return index
    return len(network.layers)


def _draws(module: nn.Module) -> bool:
    return is_random(module) or drops(module)


def _changes(module: nn.Module) -> bool:
    """Whether a module without trained parameters may give something else in the next epoch."""
    return _draws(module) or next(module.buffers(), None) is not None or is_altered(module)


@contextmanager
def _differentiated(network: Network) -> Iterator[None]:
    """Inside, gradients reach every parameter, frozen ones too, and no generator moves."""
    frozen = [p for p in network.modules.parameters() if not p.requires_grad and p.is_floating_point()]
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


def gives_probabilities(network: Network, form: GraphForm) -> bool:
    """Whether outputs lie from 0 to 1 however large features are."""
    with modes_kept(network.modules), torch.no_grad(), torch.random.fork_rng(devices=[]), network.without_autocast():
        _, out = _run(network, form, training=False, largest=1000.0)
    return bool(((out >= 0) & (out <= 1)).all())


def _run(network: Network, form: GraphForm, *, training: bool, largest: float = 1.0) -> tuple[Traced, Tensor]:
    """What a model shows, and what it gives."""
    network.modules.train(training)
    block = toy_block(form.dtype)
    h = torch.sin(torch.arange(2 * form.features, dtype=form.dtype)).mul_(largest).reshape(2, form.features)
    known = {-1: h}
    a: Tensor | None = None
    s: tuple[Tensor, ...] = ()
    layers: list[LayerShape] = []
    values: list[ValueShape] = []
    states: dict[int, Tensor] = {}

    def run_stage(index: int) -> tuple[Tensor, tuple[Tensor, ...]]:
        taken = tuple(known[number] for number in network.wiring.takes[index])
        z, parts, given = network.run_stage(index, None if index else h, a, s, block.rows, taken)
        known.update(given)
        for number, value in given.items():
            same = next((k for k, part in enumerate((z, *parts)) if part is value), None)
            shape = ValueShape(
                number=number, stage=index, columns=value.shape[1], same_as=same, trained=value.requires_grad
            )
            values.append(shape)
        return z, parts

    for index, layer in enumerate(network.layers):
        block = with_edge_data(block, network, index, form.edges)
        z, s = run_stage(index)
        taken = network.edge_states(index)
        a, *given = network.aggregate(index, block, z, s, tuple(states[of] for of in taken))
        numbers = network.gives_edges(index)
        states |= dict(zip(numbers, given, strict=True))
        combined = layer.linear_aggregate and layer.combines
        if combined:
            a = network.combine(index, a, s, block.rows)
        if not isinstance(a, Tensor) or a.ndim != 2 or len(a) != 2:
            title = network.title(network.layer_index[index])
            if isinstance(layer, WholeGraphNorm):
                raise InputError(
                    f"{title}: is called with {len(z)} of 2 rows, and its statistics are those of all vertices; call "
                    "it with a row for each, as [rows, channels, columns] where a row holds several, or use "
                    "torch.nn.LayerNorm"
                )
            raise InputError(f"{title}: aggregate must return a tensor [D, columns]")
        layers.append(
            LayerShape(
                z=z.shape[1],
                s=tuple(None if part is z else part.shape[1] for part in s),
                a=a.shape[1],
                linear=layer.linear_aggregate,
                reduce=None if getattr(layer, "drop_edges", None) is not None else layer.reduce,
                weighted=layer.weighted and not layer.drops_weights,
                z_is_input=index == 0 and z is h,
                uses_statistics=layer.uses_statistics and layer.once_per_vertex,
                uses_out_degrees=layer.uses_out_degrees,
                factors=layer.factors,
                ignores_weights=layer.drops_weights,
                combined=combined,
                trained=any(part.requires_grad for part in (z, *s)),
                edge_features=block.edge_features is not None,
                states=taken,
                gives=tuple(EdgeShape(n, x.shape[1], x.requires_grad) for n, x in zip(numbers, given)),
                edge_type=block.edge_type is not None,
                norm=isinstance(layer, WholeGraphNorm),
            )
        )
        if combined:
            s = ()
    out, _ = run_stage(len(network.layers))
    return Traced(tuple(layers), tuple(values), out.shape[1]), out


@contextmanager
def _buffers_left(network: Network) -> Iterator[None]:
    """Inside, no module may update a buffer when it runs: it would once per chunk and again in recomputation.

    Raises:
        InputError: naming the buffer.
    """
    before = {name: times_written(buffer) for name, buffer in network.modules.named_buffers()}
    yield
    for name, buffer in network.modules.named_buffers():
        if before.get(name) != times_written(buffer):
            raise InputError(
                f"{network.title(int(name.split('.')[0]))}: its buffer {name!r} changes in training, once per chunk "
                "and recomputation instead of once per epoch; use a module without running state"
            )


def _common(a: Traced, b: Traced) -> Traced:
    """What holds both in evaluation (a) and in training (b): tensors are shared only where they are in both."""
    layers = tuple(
        replace(
            x,
            s=tuple(v if u is None else u for u, v in zip(x.s, y.s, strict=True)),
            z_is_input=x.z_is_input and y.z_is_input,
            trained=y.trained,
            gives=y.gives,
        )
        for x, y in zip(a.layers, b.layers, strict=True)
    )
    values = tuple(
        replace(x, same_as=x.same_as if x.same_as == y.same_as else None, trained=y.trained)
        for x, y in zip(a.values, b.values, strict=True)
    )
    return Traced(layers, values, a.output)


def toy_block(dtype: torch.dtype, rows: int = 2, sources: int | None = None, edges: int | None = None) -> Block:
    """So many destinations, sources (the same without a number) and edges (one to each): every edge comes from the next
    source, and the first destinations have one more until there are enough; ids are the first two of the graph."""
    sources, edges = sources or rows, edges or rows
    degree = torch.full((rows,), edges // rows)
    degree[: edges % rows] += 1
    indptr = torch.cat([degree.new_zeros(1), degree.cumsum(0)])
    statistics = torch.tensor([[1.0, 0.0, float("nan"), 1.0]] * rows, dtype=dtype)
    return Block(
        indptr=indptr,
        local_source=((torch.arange(edges) + 1) % sources).int(),
        sources=torch.arange(sources, dtype=torch.int32),
        first=0,
        edge_weight=None,
        rows=Rows(ids=torch.arange(rows) % 2, statistics=statistics),
        edge_id_start=indptr[:-1],
        num_graph_edges=edges,
    )


def with_edge_data(block: Block, network: Network, index: int, edges: EdgeData) -> Block:
    """A toy block with what layer ``index`` reads beside its edges, where the graph has it."""
    assert block.rows.statistics is not None
    layer, count = network.layers[index], len(block.local_source)
    numbers = torch.arange(count * edges.features, dtype=block.rows.statistics.dtype)
    features = torch.sin(numbers).reshape(count, edges.features)
    if layer.edge_kinds is not None and layer.edge_kinds.shape[1] == edges.features and count:
        features[:1], features[1:] = layer.edge_kinds.to(features.dtype)
    types = torch.zeros(count, dtype=torch.int32)
    types[-1] = edges.types - 1
    weighed = layer.plain and layer.weighted and not layer.ignores_weights  # its forward may not run without
    return replace(
        block,
        edge_weight=torch.ones(count, dtype=numbers.dtype) if weighed else None,
        edge_features=features if network.reads_edge_features(index) and edges.features else None,
        edge_type=types if layer.uses_edge_type and edges.types else None,
    )

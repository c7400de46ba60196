"""What row-wise stages and functions of edges read and write beside dense products: every kernel and operation is seen
once, on a few rows or on a small block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from hongtu.kernels.dispatch import watching
from hongtu.kernels.torch_private import Operations, memory_id, storage_id
from hongtu.model.checks import modes_kept
from hongtu.model.network import Network
from hongtu.nn.block import Rows
from hongtu.plan.passes.shapes import EdgeSweeps, Sweeps
from hongtu.train.tracing.trace import GraphForm, Traced, toy_block, with_edge_data

ROWS, DESTINATIONS, SOURCES, EDGES = 11, 23, 29, 31  # of stages, and of blocks; no widths of a model should be these

aten = torch.ops.aten
UNSEEN = {aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default}  # which touch nothing
PRODUCTS = {aten.mm.default, aten.addmm.default, aten.addmm_.default, aten.bmm.default, aten.baddbmm.default}

Function = tuple[EdgeSweeps, EdgeSweeps]  # forward, and for its gradients
Outputs = tuple[Tensor, tuple[Tensor, ...], dict[int, Tensor]]  # z, s, and values by the numbers of their modules


class _OnEdges(Operations):
    """Counts what operations and kernels take and give."""

    def __init__(self, itemsize: int) -> None:
        super().__init__()
        self._itemsize, self._columns = itemsize, dict.fromkeys((DESTINATIONS, SOURCES, EDGES), 0.0)
        self._calls = self._walks = self._rows = 0

    def see(self, func: Any, given: tuple[Any, ...], out: Any) -> Any:
        self._calls += 1
        if not func.is_view and func not in UNSEEN:
            self._add(*given, out)
        return out

    def kernel(self, name: str, args: tuple[Any, ...]) -> None:
        """One of :mod:`hongtu.kernels.dispatch` runs: it finds the rows of sources edge by edge, all else in order."""
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        if EDGES not in map(len, tensors):
            return self._add(*tensors)
        found = [x for x in tensors if len(x) == SOURCES and x.ndim == 2]
        self._walks += bool(found)
        self._rows += sum(x.shape[1] for x in (*found, *(x for x in found if x is tensors[-1])))  # which it adds to
        self._add(*(x for x in tensors if len(x) != SOURCES))

    def counted(self) -> EdgeSweeps:
        return EdgeSweeps(
            walks=self._walks,
            rows=self._rows,
            calls=self._calls,
            destinations=self._columns[DESTINATIONS],
            sources=self._columns[SOURCES],
            edges=self._columns[EDGES],
        )

    def _add(self, *values: Any) -> None:
        for x in tensors_in(values):
            if x.ndim > 0 and len(x) in self._columns:
                self._columns[len(x)] += x.numel() // len(x) * x.element_size() / self._itemsize


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """Those among what operations take and give, in lists and tuples, too."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from tensors_in(value)
        elif isinstance(value, Tensor):
            yield value


def _edge_sweeps(
    network: Network, traced: Traced, index: int, own: tuple[int, ...], form: GraphForm, parameters: tuple[Tensor, ...]
) -> Function:
    """What the aggregate of layer ``index`` does forward, and for its gradients, on a small block.

    Args:
        own: columns of the destinations' rows.
        parameters: of the model.
    """
    layer, dtype = traced.layers[index], form.dtype
    block = with_edge_data(toy_block(dtype, DESTINATIONS, SOURCES, EDGES), network, index, form.edges)
    columns = {state.number: state.columns for each in traced.layers for state in each.gives}
    shapes = [(DESTINATIONS, width) for width in own] + [(EDGES, columns[number]) for number in layer.states]
    z, *others = (torch.ones(shape, dtype=dtype, requires_grad=True) for shape in [(SOURCES, layer.z), *shapes])
    s, e = tuple(others[: len(own)]), tuple(others[len(own) :])
    forward, backward = _OnEdges(dtype.itemsize), _OnEdges(dtype.itemsize)
    try:
        with torch.enable_grad(), watching(forward.kernel), forward:
            outs = [out for out in network.aggregate(index, block, z, s, e) if out.requires_grad]
        wanted = (z, *others, *(p for p in parameters if p.requires_grad))
        with watching(backward.kernel), backward:
            torch.autograd.grad(outs, wanted, [torch.ones_like(out) for out in outs], allow_unused=True)
    except Exception:  # this graph may not be one that it expects; an estimate refuses nothing, and takes it for a sum
        return EdgeSweeps(walks=1, rows=layer.z), EdgeSweeps(walks=1, rows=2 * layer.z)
    return forward.counted(), backward.counted()


class _OnRows(Operations):
    """Counts operations, and the columns of the rows that they take and give."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = self.calls = 0

    def see(self, func: Any, given: tuple[Any, ...], out: Any) -> Any:
        self.calls += 1
        if func is aten.addmm.default:
            self._add(out, out)  # what is added is put there first, then read
        elif not func.is_view and func not in PRODUCTS:
            self._add(*given, out)
        return out

    def _add(self, *values: Any) -> None:
        self.columns += sum(x[0].numel() for x in tensors_in(values) if x.ndim > 1 and len(x) == ROWS)


def stage_sweeps(network: Network, traced: Traced, form: GraphForm) -> tuple[tuple[Sweeps, Sweeps, Function], ...]:
    """Per stage of a network that was traced, what its operations do in training; of the aggregate before it what is
    combined with the engine's own sum, and what a function of edges does."""
    with modes_kept(network.modules), torch.random.fork_rng(devices=[]):
        network.modules.train()
        return tuple(_sweeps(network, traced, form))


def _sweeps(network: Network, traced: Traced, form: GraphForm) -> Iterator[tuple[Sweeps, Sweeps, Function]]:
    dtype = form.dtype
    h = torch.ones((ROWS, form.features), dtype=dtype)
    known = {-1: h}
    a: Tensor | None = None
    s: tuple[Tensor, ...] = ()
    combine, function = Sweeps(), (EdgeSweeps(), EdgeSweeps())
    parameters = tuple(network.modules.parameters())
    there = h, *parameters
    for index in range(len(network.layers) + 1):
        block = toy_block(dtype, ROWS)  # what its rows remember is a pass's own
        if a is not None and traced.layers[index - 1].combined:
            combine, _ = _counted(partial(_combine, network, index - 1, block.rows), (a, *s), ())
            s = ()
        taken = tuple(known[number] for number in network.wiring.takes[index])
        run = partial(_stage, network, index, block.rows, None if index else h, len(taken))
        inputs = tuple(x for x in (a, *s, *taken) if x is not None)
        sweeps, (_, s, given) = _counted(run, inputs, there, leaves=index > 0)
        yield sweeps, combine, function
        if index < len(network.layers):
            known.update(given)
            layer, combine, function = traced.layers[index], Sweeps(), (EdgeSweeps(), EdgeSweeps())
            if layer.reduce is None and not layer.norm:
                function = _edge_sweeps(network, traced, index, tuple(part.shape[1] for part in s), form, parameters)
            a = torch.ones((ROWS, layer.a), dtype=dtype)


def _combine(network: Network, index: int, rows: Rows, a: Tensor, *s: Tensor) -> Outputs:
    return network.combine(index, a, s, rows), (), {}


def _stage(network: Network, index: int, rows: Rows, h: Tensor | None, values: int, *given: Tensor) -> Outputs:
    """A stage of what comes before it, of which the last so many are values."""
    own, beside = given[: len(given) - values], given[len(given) - values :]
    return network.run_stage(index, h, own[0] if index else None, own[1:], rows, beside)


def _counted(
    call: Callable[..., Outputs],
    inputs: tuple[Tensor, ...],
    there: tuple[Tensor, ...],
    *,
    leaves: bool = True,
    saving: bool = True,
) -> tuple[Sweeps, Outputs]:
    """What a function of rows does, forward and backward, and what it gives.

    Args:
        there: what it reads beside its inputs, parameters among it.
        leaves: the inputs' gradients are wanted.
        saving: what it saves is counted, by hooks, which some functions refuse.
    """
    own = [x.detach().clone().requires_grad_(leaves) for x in inputs]
    theirs = {storage_id(x) for x in (*own, *there)}
    saved: dict[int, int] = {}

    def save(x: Tensor) -> Tensor:
        if x.layout != torch.strided:
            return x
        storage = x.untyped_storage()
        if memory_id(storage) not in theirs and x.ndim > 0 and len(x) == ROWS:
            saved[memory_id(storage)] = storage.nbytes() // x.element_size() // ROWS
        return x

    forward, backward = _OnRows(), _OnRows()
    try:
        with torch.enable_grad(), saved_tensors_hooks(save, lambda x: x) if saving else nullcontext(), forward:
            z, s, values = call(*own)
        given = [z, *s, *values.values()]
        outs = list({id(out): out for out in given if out.requires_grad}.values())
        wanted, ones = [x for x in (*own, *there) if x.requires_grad], [torch.ones_like(out) for out in outs]
        if outs and wanted:
            with backward, suppress(RuntimeError):  # a layer without gradients is refused where it trains
                torch.autograd.grad(outs, wanted, ones, allow_unused=True)
    except Exception:  # what is wrong without hooks is the caller's
        if not saving:
            raise
        return _counted(call, inputs, there, leaves=leaves, saving=False)
    for out in given:  # where they are put, they are saved, too
        saved.pop(storage_id(out), None)
    counted = Sweeps(
        forward=forward.columns,
        backward=backward.columns,
        forward_calls=forward.calls,
        backward_calls=backward.calls,
        saved=sum(saved.values()),
    )
    return counted, (z, s, values)

"""What functions of edges read and write: every kernel and operation is seen once, on a small block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from hongtu.kernels.dispatch import watching
from hongtu.kernels.torch_private import Operations
from hongtu.nn.block import Block
from hongtu.plan.passes.shapes import EdgeSweeps

DESTINATIONS, SOURCES, EDGES = 23, 29, 31  # of the block; numbers that no width of a model should be

aten = torch.ops.aten
UNSEEN = {aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default}  # which touch nothing

Aggregate = Callable[[Block, Tensor, tuple[Tensor, ...], tuple[Tensor, ...]], list[Tensor]]


class _Seen(Operations):
    """Counts what operations and kernels take and give."""

    def __init__(self, itemsize: int) -> None:
        super().__init__()
        self._itemsize, self._columns = itemsize, dict.fromkeys((DESTINATIONS, SOURCES, EDGES), 0.0)
        self._calls = self._walks = self._rows = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self._calls += 1
        if not func.is_view and func not in UNSEEN:
            self._add(*args, *(kwargs or {}).values(), out)
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


def edge_sweeps(
    aggregate: Aggregate,
    block: Block,
    columns: int,
    own: tuple[tuple[int, ...], tuple[int, ...]],
    parameters: tuple[Tensor, ...],
) -> tuple[EdgeSweeps, EdgeSweeps]:
    """What an aggregate does forward, and for its gradients.

    Args:
        block: with ``DESTINATIONS``, ``SOURCES`` and ``EDGES``, and what the layer reads beside edges.
        columns: of the sources' rows.
        own: columns of the destinations' rows, and of the states of edges.
        parameters: of the model.
    """
    assert block.rows.statistics is not None
    dtype = block.rows.statistics.dtype
    z = torch.ones((SOURCES, columns), dtype=dtype, requires_grad=True)
    s, e = (
        tuple(torch.ones((rows, width), dtype=dtype, requires_grad=True) for width in widths)
        for rows, widths in zip((DESTINATIONS, EDGES), own, strict=True)
    )
    forward, backward = _Seen(dtype.itemsize), _Seen(dtype.itemsize)
    try:
        with torch.enable_grad(), watching(forward.kernel), forward:
            outs = [out for out in aggregate(block, z, s, e) if out.requires_grad]
        wanted = (z, *s, *e, *(p for p in parameters if p.requires_grad))
        with watching(backward.kernel), backward:
            torch.autograd.grad(outs, wanted, [torch.ones_like(out) for out in outs], allow_unused=True)
    except Exception:  # this graph may not be one that it expects; an estimate refuses nothing, and takes it for a sum
        return EdgeSweeps(walks=1, rows=columns), EdgeSweeps(walks=1, rows=2 * columns)
    return forward.counted(), backward.counted()

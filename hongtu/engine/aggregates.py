"""What is computed over the in-edges of one chunk: aggregates, forward and backward.

Legend: D destinations, S sources of the chunk; C slots of a cache; z, s, a as in :class:`hongtu.nn.Layer`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from functools import cached_property

import torch
from torch import Tensor

from hongtu.engine.chunk import Chunk
from hongtu.engine.saved import Graph, edges_of, entered
from hongtu.kernels.dispatch import HUB, has_no_hub, has_numba_kernel, kernels_for, new_rows, on_numba, plain_rows
from hongtu.kernels.torch_private import run_backward
from hongtu.nn.block import Block, Rows
from hongtu.plan.program.ref import Ref


class Aggregates:
    """Of a body the kernels that read rows of the chunk's sources, or add to them.

    Attributes:
        graph: what autograd knows of the stage.
    """

    def __init__(self, chunk: Chunk) -> None:
        self.chunk, self.at, self.registers = chunk, chunk.at, chunk.registers
        self.device, self.network = chunk.device, chunk.network
        self.number, self.num_dst = chunk.number, chunk.num_dst
        self.graph = Graph()

    def gather(self, slots: Tensor, at: Ref) -> tuple[Tensor]:
        """The sources' rows, side by side."""
        cache = self.device.buffer(at.tensor)
        with torch.no_grad():
            if has_numba_kernel(cache):
                return (cache.index_select(0, slots),)
            rows = new_rows(cache, len(slots), cache.shape[1])
            kernels_for(cache).gather_rows(cache, slots, rows)
        return (rows,)

    def sum(
        self, indptr: Tensor, source: Tensor, slots: Tensor, weight: Tensor | None, a: Tensor, at: Ref, *, mean: bool
    ) -> tuple[Tensor]:
        """A declared reduction over the rows in the cache."""
        cache, weight = self.device.buffer(at.tensor), self.at.no_weights if weight is None else weight
        with torch.no_grad():
            kernels_for(cache).csc_aggregate(self._known(indptr), source, slots, weight, mean, cache, a)
        return (a,)

    def sort_edges(
        self, indptr: Tensor, source: Tensor, weight: Tensor | None, start: Tensor, destination: Tensor,
        scale: Tensor | None = None, *, mean: bool,
    ) -> None:  # fmt: skip
        """Put the edges in the order of their sources, for ``transpose_sum``."""
        weight, scale = (self.at.no_weights if x is None else x for x in (weight, scale))
        kernels_for(weight).order_by_source(indptr, source, weight, mean, start[None], destination, scale)

    def transpose_sum(
        self, indptr: Tensor, source: Tensor, slots: Tensor, weight: Tensor | None, grad: Tensor, *order: Tensor,
        at: Ref, mean: bool,
    ) -> None:  # fmt: skip
        """Add A^T of a gradient to the cache, A as in ``sum``; ``order``: what ``sort_edges`` made."""
        cache, weight = self.device.buffer(at.tensor), self.at.no_weights if weight is None else weight
        kernels = kernels_for(grad)
        if order:
            start, destination, scale = (*order, self.at.no_weights)[:3]
            kernels.add_by_source(start, destination, slots, scale, plain_rows(grad), cache)
            return
        kernels.csc_aggregate_transpose(self._known(indptr), source, slots, weight, mean, plain_rows(grad), cache)

    def _known(self, indptr: Tensor) -> Tensor:
        if not on_numba(indptr) and self.chunk.p.view.longest[self.number] <= HUB:
            has_no_hub(indptr)
        return indptr

    def aggregate(
        self, z: Tensor, *others: Tensor, layer: int, states: tuple[str, ...], graph: bool
    ) -> Iterable[Tensor]:
        """The layer's own, of z, s and these states of edges; new states beside it, where it gives any. ``graph``: it
        is recorded, where the body is."""
        s, e = others[: len(others) - len(states)], others[len(others) - len(states) :]
        with nullcontext() if graph else torch.no_grad():
            a, *given = self.network.aggregate(layer, self._block, z, s, e)
        self.graph.outs = edges_of(given)
        return [a, *(x.detach() for x in given)]

    def combine(self, a: Tensor, *s: Tensor, layer: int) -> tuple[Tensor]:
        """The aggregate together with s, as the layer combines them."""
        with torch.no_grad():
            return (self.network.combine(layer, a, s, self._rows),)

    # ------------------------------------------------------------------------------------------------------ backward

    def uncombine(
        self, grad_DA: Tensor, *, layer: int, s: tuple[int, ...], wanted: tuple[bool, ...]
    ) -> Iterable[Tensor | None]:
        """The gradients of the plain aggregate and of s (of so many columns) from that of what ``combine`` gave, None
        for those that are not wanted. It is linear, so that values do not matter."""
        nothing, widths = self.at.nothing.detach(), (grad_DA.shape[1], *s)
        a, *others = (nothing.expand(len(grad_DA), columns).requires_grad_() for columns in widths)
        out = self.network.combine(layer, a, tuple(others), self._rows, gradients_only=True)
        inputs = [part for part, is_wanted in zip((a, *others), wanted, strict=True) if is_wanted]
        given = zip(run_backward([out], [grad_DA], inputs), inputs, strict=True)
        found = iter([torch.zeros_like(part) if grad is None else grad for grad, part in given])
        return [next(found) if is_wanted else None for is_wanted in wanted]

    def transpose_aggregate(self, grad_DA: Tensor, at: Ref, *, layer: int, z: int, s: tuple[int, ...]) -> None:
        """The same as ``transpose_sum`` for a layer's own linear aggregate; z and s have so many columns."""
        sources = len(self.registers["slot_of_source"])
        rows, *others = (
            new_rows(grad_DA, count, columns, zero=True)
            for count, columns in ((sources, z), *((self.num_dst, columns) for columns in s))
        )
        (entry,), (z_SF,) = entered([rows])
        a = self.network.aggregate(layer, self._block, z_SF, tuple(others))
        Graph(outs=edges_of(a)).backward([grad_DA])
        self.add_to_cache(self.registers["slot_of_source"], entry.gradient(), at)

    def add_to_cache(self, slots: Tensor, grad_SF: Tensor, at: Ref) -> None:
        """Add the gradients of the sources' rows, side by side."""
        cache = self.device.buffer(at.tensor)
        kernels_for(cache).scatter_add_rows(cache, slots, plain_rows(grad_SF))

    # ------------------------------------------------------------------------------------------------------- at hand

    @cached_property
    def _rows(self) -> Rows:
        here = self.registers
        return Rows(ids=here["ids"], statistics=here.get("statistics"), factors=here.get("factors"))

    @cached_property
    def _block(self) -> Block:
        here = self.registers
        none = here["slot_of_source"].new_empty(0)
        return Block(
            indptr=self._known(here["indptr"]),
            local_source=here["local_source"],
            sources=here.get("sources", none),
            first=self.chunk.first,
            edge_weight=here.get("edge_weight"),
            rows=self._rows,
            edge_id_start=here.get("edge_id_start", none),
            num_graph_edges=self.at.num_graph_edges,
            active=here.get("active"),
            edge_features=here.get("edge_features"),
            edge_type=here.get("edge_type"),
            memo=self.chunk.of_edges,
        )

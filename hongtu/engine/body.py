"""What is computed on one chunk: a body of instructions on its registers.

Legend: D destinations, S sources of the chunk; C slots of a cache; z, s, a as in :class:`hongtu.nn.Layer`.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import cached_property

import torch
from torch import Tensor

from hongtu.device.base import Stores
from hongtu.engine.chunk import Chunk
from hongtu.engine.saved import Entry, Graph, Saved, Settled, edges_of, move_saved, saving
from hongtu.graph.sparse_rows import PARTS
from hongtu.kernels.dispatch import (
    HUB,
    has_no_hub,
    has_numba_kernel,
    kernels_for,
    knowing_hubs,
    new_rows,
    on_numba,
    plain_rows,
)
from hongtu.nn.block import Block, Rows
from hongtu.plan.program import computing, moves


class Body:
    """Runs one, a method for each kind of instruction.

    Attributes:
        graph: what autograd knows of the stage.
        places: what its operations saved.
    """

    def __init__(self, chunk: Chunk) -> None:
        self.chunk, self.at = chunk, chunk.at
        self.registers = chunk.registers
        self.device, self.host, self.network = chunk.device, chunk.host, chunk.network
        self.number, self.num_dst, self.set = chunk.number, chunk.num_dst, chunk.set
        self.graph = Graph()
        self.places: list[Saved] = []
        self.settled = Settled(self.device.save)

    def run(self, x: moves.Compute) -> None:
        """On ``compute``."""
        self.network.chunk = self.number
        always = self.number in self.chunk.p.view.largest_chunks
        with (
            self.device.computing(self.chunk.p.name, self.number, always=always),
            torch.set_grad_enabled(x.graph),
            saving(self.places) if x.saves else nullcontext(),
            knowing_hubs(),
            self.at.asking or nullcontext(),
        ):
            for instruction in x.body:
                getattr(self, instruction.verb)(instruction)

    def here(self, x: computing.Here) -> None:
        self.registers[x.name] = self.chunk.part(x.buffer, x.start)

    def own(self, x: computing.Own) -> None:
        self.registers[x.name] = self._rows_on_device(x.tensor)

    def pick(self, x: computing.Pick) -> None:
        part = self.device.staging(x.name, self.set)[: self.num_dst]
        rows, index = self.registers[x.name], self.registers["row_in_chunk"]
        self.registers[x.name] = torch.index_select(rows, 0, index, out=part)

    def front(self, x: computing.Front) -> None:
        self.registers[x.name] = self.device.buffer(x.buffer)[: self.num_dst]

    def new(self, x: computing.New) -> None:
        self.registers[x.name] = new_rows(self.at.no_weights, self.num_dst, x.columns, zero=x.zero)

    def _rows_on_device(self, name: str) -> Tensor:
        return self.device.buffer(name)[self.chunk.first - self.at.first : self.chunk.end - self.at.first]

    def take(self, x: computing.Take) -> None:
        self.registers[x.name] = self.at.pieces[x.name][self.number]
        if x.last:
            del self.at.pieces[x.name][self.number]

    def copy(self, x: computing.Copy) -> None:
        for name in x.names:
            self.registers[name] = self.registers[name].clone()

    def dense(self, x: computing.Dense) -> None:
        start, column, value = (self.registers[f"{x.name} {part}"] for part in PARTS)
        rows = self.device.staging(x.name, self.set)[: self.num_dst].zero_()
        row = torch.repeat_interleave(start.diff(), output_size=len(column))
        self.registers[x.name] = rows.index_put_((row, column.long()), value)

    def drop(self, x: computing.Drop) -> None:
        for name in x.names:
            self.registers.pop(name, None)

    def enter(self, x: computing.Enter) -> None:
        for name in x.names:
            entry = self.graph.entries[name] = Entry()
            self.registers[name] = entry.of(self.registers[name])

    def gather(self, x: computing.Gather) -> None:
        cache, slots = self.device.buffer(x.cache), self.registers["slot_of_source"]
        with torch.no_grad():
            if has_numba_kernel(cache):
                self.registers[x.into] = cache.index_select(0, slots)
            else:
                rows = self.registers[x.into] = new_rows(cache, len(slots), cache.shape[1])
                kernels_for(cache).gather_rows(cache, slots, rows)

    def sum(self, x: computing.Sum) -> None:
        cache = self.device.buffer(x.cache)
        with torch.no_grad():
            kernels_for(cache).csc_aggregate(*self._csc(x), cache, self.registers[x.a])

    def _csc(self, x: computing.Sum | computing.TransposeSum) -> tuple[Tensor, Tensor, Tensor, Tensor, bool]:
        here = self.registers
        weight = here["edge_weight"] if x.weighted else self.at.no_weights
        return self._indptr, here["local_source"], here["slot_of_source"], weight, x.mean

    @cached_property
    def _indptr(self) -> Tensor:
        indptr: Tensor = self.registers["indptr"]
        if not on_numba(indptr) and self.chunk.p.view.longest[self.number] <= HUB:
            has_no_hub(indptr)
        return indptr

    def aggregate(self, x: computing.Aggregate) -> None:
        z, *s = (self.registers[name] for name in x.reads)
        with nullcontext() if x.graph else torch.no_grad():
            self.registers[x.a] = self.network.aggregate(x.layer, self._block, z, tuple(s))

    def combine(self, x: computing.Combine) -> None:
        a, *s = (self.registers[name] for name in x.reads)
        with torch.no_grad():
            self.registers[x.a] = self.network.combine(x.layer, a, tuple(s), self._rows)

    @cached_property
    def _rows(self) -> Rows:
        here = self.registers
        return Rows(ids=here["ids"], statistics=here.get("statistics"), factors=here.get("factors"))

    @cached_property
    def _block(self) -> Block:
        here = self.registers
        none = here["slot_of_source"].new_empty(0)
        return Block(
            indptr=self._indptr,
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
        )

    def stage(self, x: computing.Stage) -> None:
        s, values = (tuple(self.registers[name] for name in names) for names in (x.s, x.values))
        outs = self.network.stage(
            x.stage, self.registers[x.base], s, self._rows, values,
            keeps_input=x.keeps_input, gradients_only=x.gradients_only,
        )  # fmt: skip
        self.graph.outs = edges_of(outs)
        self.registers |= zip(x.gives, (out.detach() for out in outs), strict=True)
        for number, place in enumerate(self.places):
            self.device.recognize(place.rows, number)

    def gather_moments(self, x: computing.GatherMoments) -> None:
        self.at.moments.add(self.registers[x.name][: self.chunk.num_own])

    def loss(self, x: computing.Loss) -> None:
        known = self.host["loss_bits"].numpy()[self.chunk.rows]
        out, labels, loss_bits = (self.registers[name] for name in (x.output, "labels", "loss_bits"))
        self.registers[x.gradient], part = self.at.loss.gradient(out, labels, loss_bits, known)
        self.at.loss_value.add_(part)

    def add(self, x: computing.Add) -> None:
        first, *others = (self.registers[name] for name in x.parts)
        self.registers[x.name] = sum(others, start=first)

    def write(self, x: computing.Write) -> None:
        """Store or add the destinations' rows, or get them on their way."""
        out = self.registers[x.register]
        there = self.registers[x.register] = WRITES[x.where](self, out, x, self.chunk.stores(x))
        if x.holds:
            move_saved(self.places, out, there)

    def _to_host(self, out: Tensor, x: computing.Write, stores: Stores) -> Tensor:
        index = self.registers["row_in_chunk"] if x.picked else None
        self.device.emit(x.name, self.set, out, self.chunk.on_host(x), stores=stores, index=index)
        return out

    def _to_device(self, out: Tensor, x: computing.Write, stores: Stores) -> Tensor:
        rows = self._rows_on_device(x.name)
        if not x.picked:
            return rows.copy_(out) if stores else rows.add_(out)
        if stores:
            rows.index_copy_(0, self.registers["row_in_chunk"].long(), out)
        else:
            rows.index_add_(0, self.registers["row_in_chunk"], out)
        return out

    def _to_chunk(self, out: Tensor, x: computing.Write, stores: Stores) -> Tensor:
        """Keep a tensor that a layer made, as it is; others refer to it, so that nobody may write to it."""
        pieces = self.at.pieces[x.name]
        self.device.recognize(out, x.name)
        out = self.device.as_made_by_layers(out) if stores else pieces[self.number] + out
        self.device.count(out)
        pieces[self.number] = self.settled.of(out)
        return pieces[self.number]

    def save(self, x: computing.Save) -> None:
        for place in self.places:
            place.move(self.settled.of(place.rows))
        self.places.clear()
        self.at.graphs[x.stage, self.number] = self.graph

    def resume(self, x: computing.Resume) -> None:
        self.graph = self.at.graphs.pop((x.stage, self.number))

    def through_moments(self, x: computing.ThroughMoments) -> None:
        norm, rows, grad = self.network.norm(x.stage), self.registers[x.x], self.registers[x.gradient]
        self.registers[x.gradient] = norm.with_gradient_through_statistics(rows, grad, self.chunk.num_own)

    def differentiate(self, x: computing.Differentiate) -> None:
        self.graph.backward([None if name is None else self.registers[name] for name in x.gradients])
        self.registers |= zip(x.gives, (entry.gradient() for entry in self.graph.entries.values()), strict=True)
        self.graph = Graph()

    def uncombine(self, x: computing.Uncombine) -> None:
        """It is linear, so that values do not matter."""
        grad_DA = self.registers[x.gradient]
        nothing = self.at.nothing.detach()
        widths = (grad_DA.shape[1], *x.columns)
        a, *s = (nothing.expand(len(grad_DA), columns).requires_grad_() for columns in widths)
        out = self.network.combine(x.layer, a, tuple(s), self._rows, gradients_only=True)
        wanted = {name: part for name, part in zip(x.gives, (a, *s), strict=True) if name is not None}
        found = torch.autograd.grad(out, list(wanted.values()), grad_DA, materialize_grads=True)
        self.registers |= zip(wanted, found, strict=True)

    def transpose_sum(self, x: computing.TransposeSum) -> None:
        grad_DA, cache = self.registers[x.gradient], self.device.buffer(x.cache)
        kernels_for(grad_DA).csc_aggregate_transpose(*self._csc(x), plain_rows(grad_DA), cache)

    def transpose_aggregate(self, x: computing.TransposeAggregate) -> None:
        grad_DA = self.registers[x.gradient]
        entry, sources = Entry(), len(self.registers["slot_of_source"])
        z, *s = (
            new_rows(grad_DA, count, columns, zero=True)
            for count, columns in ((sources, x.z), *((self.num_dst, columns) for columns in x.s))
        )
        a = self.network.aggregate(x.layer, self._block, entry.of(z), tuple(s))
        Graph(outs=edges_of([a])).backward([grad_DA])
        self._add_to_cache(entry.gradient(), x.cache)

    def add_to_cache(self, x: computing.AddToCache) -> None:
        self._add_to_cache(self.registers[x.gradient], x.cache)

    def _add_to_cache(self, grad_SF: Tensor, name: str) -> None:
        cache = self.device.buffer(name)
        kernels_for(cache).scatter_add_rows(cache, self.registers["slot_of_source"], plain_rows(grad_SF))


WRITES = {"host": Body._to_host, "device": Body._to_device, "chunk": Body._to_chunk}

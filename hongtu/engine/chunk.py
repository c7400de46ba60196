"""One chunk in one pass: its registers, and the instructions that compute on them.

Legend: D destinations, S sources, E in-edges of the chunk; C slots of a cache; z, s, a as in :class:`hongtu.nn.Layer`.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hongtu.device.base import Device, Stores
from hongtu.engine.host_store import HostStore
from hongtu.engine.moments import Moments
from hongtu.engine.saved import Entry, Graph, Place, Settled, edges_of, move_saved, saving
from hongtu.graph.sparse_rows import PARTS
from hongtu.graph.topology import ChunkTopology
from hongtu.kernels.dispatch import kernels_for
from hongtu.model.network import Network
from hongtu.nn.block import Block, Rows
from hongtu.plan.program import computing, moves
from hongtu.plan.program import instruction as operands
from hongtu.plan.program.program import PassProgram


class Partition:
    """What one partition's chunks share in a run.

    Args:
        first: its first vertex.
        num_graph_edges: of the whole graph.

    Attributes:
        loss_value: float64 scalar on the device: the chunks' parts of the loss.
        pieces: rows that chunks have for themselves, by vertex tensor and chunk.
        graphs: what chunks saved for backward, by stage and chunk.
        moments: what the pass gathers, or None.
    """

    def __init__(
        self, device: Device, network: Network, host: HostStore, loss: Any, first: int, num_graph_edges: int
    ) -> None:
        self.device, self.network, self.host, self.loss = device, network, host, loss
        self.first, self.num_graph_edges = first, num_graph_edges
        self.loss_value = device.numbers()
        self.pieces: dict[tuple[str, int], Tensor] = {}
        self.graphs: dict[tuple[int | None, int], Graph] = {}
        self.moments: Moments | None = None


class Chunk:
    """A chunk with destinations.

    Args:
        at: its partition.
        p: the pass.
        number: of the chunk among all.
        set: of staging memory.

    Attributes:
        first, end: its vertices.
        index: int32 [D], the positions of those that the pass computes, or None for all of them.
        num_dst: D.
        registers: tensors by name.
    """

    def __init__(self, at: Partition, p: PassProgram, i: int, batch: int, number: int, set: int) -> None:
        self.at, self.p, self.i, self.batch, self.number, self.set = at, p, i, batch, number, set
        self.device, self.host, self.network = at.device, at.host, at.network
        self.first, self.end = (int(x) for x in p.view.chunk_start[number : number + 2])
        active = p.view.active_rows(number)
        self.index = None if active is None else active - np.int32(self.first)
        self.num_dst = self.end - self.first if active is None else len(active)
        self.registers: dict[str, Any] = {}
        self.graph = Graph()
        self.places: list[Place] = []
        self.settled = Settled(self.device.keep)

    # ------------------------------------------------------------------------------------------------ bring and send

    def array(self, name: str) -> np.ndarray:
        """An array of the chunk's structure."""
        view = self.p.view
        if name == "row_in_chunk":
            assert self.index is not None
            return self.index
        if name in ("edge_features", "edge_type"):
            return view.edge_rows(getattr(view, name), self.number)
        found: np.ndarray = getattr(self._structure, name)
        return found

    @cached_property
    def _structure(self) -> ChunkTopology:
        return self.p.view.chunk(self.number)

    def read(self, name: str, link: str) -> None:
        """The destinations' rows of a host tensor."""
        rows = self.host.rows(name, self.first, self.end)
        if self.index is None:
            self.registers[name] = self.device.bring(name, self.set, rows, link)
        else:
            self.registers[name] = self.device.bring_rows(name, self.set, rows, self.index, link)

    def read_sparse(self, name: str) -> None:
        """The destinations' rows of a CSR host tensor."""
        for part, tensor in zip(PARTS, self.host.sparse_rows(name, self.first, self.end, self.index), strict=True):
            key = f"{name} {part}"
            self.registers[key] = self.device.bring(key, self.set, tensor, "read")

    def bring(self, name: str, array: np.ndarray) -> None:
        self.registers[name] = self.device.bring(name, self.set, array, "topology")

    def fill(self, x: moves.Fill) -> None:
        """The chunk's part of what stays on the device."""
        own = self.number - self.i * self.p.view.chunks
        lo, hi = x.start[self.i][own : own + 2]
        if hi > lo:
            if x.rows:
                rows = self.host.rows(x.source, self.first, self.end)
            else:
                array = self.array(x.source) if x.slots is None else x.slots.of(self.i, self.batch)
                rows = torch.from_numpy(np.ascontiguousarray(array))
            self.device.fill(self.device.buffer(x.buffer)[lo:hi], rows, x.link)

    def send(self, x: moves.Send) -> None:
        rows = self.host.rows(x.name, self.first, self.end)
        stores = self._stores(x.stores)
        self.device.send(x.name, self.set, self.num_dst, rows, stores=stores, index=self.index)

    def _stores(self, stores: operands.Stores) -> Stores:
        """Of the destinations' rows."""
        if isinstance(stores, bool):
            return stores
        own = stores[self.first : self.end]
        return own if self.index is None else own[self.index]

    # ------------------------------------------------------------------------------------------------------- compute

    def compute(self, x: moves.Compute) -> None:
        """On ``compute``: run the body."""
        self.network.chunk = self.number
        always = self.number in self.p.view.largest_chunks
        with (
            self.device.computing(self.p.name, self.number, always=always),
            torch.set_grad_enabled(x.graph),
            saving(self.places) if x.saves else nullcontext(),
        ):
            for instruction in x.body:
                getattr(self, instruction.verb)(instruction)

    def here(self, x: computing.Here) -> None:
        own = self.number - self.i * self.p.view.chunks
        lo, hi = x.start[self.i][own : own + 2]
        self.registers[x.name] = self.device.buffer(x.buffer)[lo:hi]

    def own(self, x: computing.Own) -> None:
        rows = self._rows_on_device(x.name)
        if self.index is not None:
            part = self.device.staging(x.name, self.set)[: self.num_dst]
            rows = torch.index_select(rows, 0, self.registers["row_in_chunk"], out=part)
        self.registers[x.name] = rows

    def _rows_on_device(self, name: str) -> Tensor:
        return self.device.buffer(name)[self.first - self.at.first : self.end - self.at.first]

    def take(self, x: computing.Take) -> None:
        key = x.name, self.number
        self.registers[x.name] = self.at.pieces.pop(key) if x.last else self.at.pieces[key]

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
        with torch.no_grad():
            self.registers[x.into] = self.device.buffer(x.cache).index_select(0, self.registers["slot_of_source"])

    def sum(self, x: computing.Sum) -> None:
        cache = self.device.buffer(x.cache)
        if x.place is None:
            a = cache.new_empty((self.num_dst, cache.shape[1]))
        elif x.place == "aggregate":
            a = self.device.buffer(x.place)[: self.num_dst]
        else:
            a = self._rows_on_device(x.place)
        with torch.no_grad():
            kernels_for(cache).csc_aggregate(*self._csc(x.weighted, x.mean), cache, a)
        self.registers[x.a] = a

    def _csc(self, weighted: bool, mean: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, bool]:
        here = self.registers
        weight = here.get("edge_weight") if weighted else None
        if weight is None:
            weight = here["indptr"].new_empty(0, dtype=self.host.dtype)
        return here["indptr"], here["local_source"], here["slot_of_source"], weight, mean

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
        return Rows(ids=self.registers["ids"], statistics=self.registers.get("statistics"))

    @cached_property
    def _block(self) -> Block:
        here = self.registers
        none = here["slot_of_source"].new_empty(0)
        return Block(
            indptr=here["indptr"],
            local_source=here["local_source"],
            sources=here.get("sources", none),
            first=self.first,
            edge_weight=here.get("edge_weight"),
            rows=self._rows,
            edge_id_start=here.get("edge_id_start", none),
            num_graph_edges=self.at.num_graph_edges,
            active=here.get("active"),
            edge_features=here.get("edge_features"),
            edge_type=here.get("edge_type"),
        )

    def stage(self, x: computing.Stage) -> None:
        base = self.registers[x.base]
        s, values = (tuple(self.registers[name] for name in names) for names in (x.s, x.values))
        h, a = (base, None) if x.stage == 0 else (None, base)
        self.network.gradients_only = x.gradients_only
        try:
            outs = self.network.stage(x.stage, h, a, s, self._rows, values)
        finally:
            self.network.gradients_only = False
        if x.keeps_input and outs[0] is not base:
            raise RuntimeError("layer 0: transform changes its input, unlike when planned; make a new Trainer")
        self.graph.outs = edges_of(outs)
        self.registers |= zip(x.gives, (out.detach() for out in outs), strict=True)
        for number, place in enumerate(self.places):
            self.device.recognize(place.rows, number)

    def gather_moments(self, x: computing.GatherMoments) -> None:
        if self.at.moments is not None:
            self.at.moments.add(self.registers[x.name])

    def loss(self, x: computing.Loss) -> None:
        bits = self.host.rows("loss_bits", self.first, self.end).numpy()
        known = bits if self.index is None else bits[self.index]
        out, labels, loss_bits = (self.registers[name] for name in (x.output, "labels", "loss_bits"))
        self.registers[x.gradient], part = self.at.loss.gradient(out, labels, loss_bits, known)
        self.at.loss_value.add_(part)

    def write(self, x: computing.Write) -> None:
        """Store or add the destinations' rows, or get them on their way."""
        parts = [part for part in map(self.registers.get, x.parts) if part is not None]
        if not parts:
            parts = [torch.zeros((self.num_dst, x.columns), dtype=self.host.dtype, device=self._rows.ids.device)]
        out = sum(parts[1:], start=parts[0])
        there = WRITES[x.where](self, out, x.name, self._stores(x.stores))
        if x.holds:
            move_saved(self.places, out, there)
        if len(x.parts) == 1:
            self.registers[x.parts[0]] = there

    def _to_host(self, out: Tensor, name: str, stores: Stores) -> Tensor:
        rows, index = self.host.rows(name, self.first, self.end), self.registers.get("row_in_chunk")
        self.device.emit(name, self.set, out, rows, stores=stores, index=index)
        return out

    def _to_device(self, out: Tensor, name: str, stores: Stores) -> Tensor:
        rows, index = self._rows_on_device(name), self.registers.get("row_in_chunk")
        if index is None:
            return rows.copy_(out) if stores else rows.add_(out)
        if stores:
            rows.index_copy_(0, index.long(), out)
        else:
            rows.index_add_(0, index, out)
        return out

    def _to_chunk(self, out: Tensor, name: str, stores: Stores) -> Tensor:
        """Keep a tensor that a layer made, as it is; others refer to it, so that nobody may write to it."""
        key = name, self.number
        self.device.recognize(out, name)
        if not stores:
            out = self.at.pieces[key] + out
        elif not self.device.made_by_layers(out):
            out = out.clone()
        self.device.count(out)
        self.at.pieces[key] = self.settled.of(out)
        return self.at.pieces[key]

    def save(self, x: computing.Save) -> None:
        for place in self.places:
            place.move(self.settled.of(place.rows))
        self.places.clear()
        self.at.graphs[x.stage, self.number] = self.graph

    def resume(self, x: computing.Resume) -> None:
        self.graph = self.at.graphs.pop((x.stage, self.number))

    def through_moments(self, x: computing.ThroughMoments) -> None:
        more = self.network.norm(x.stage).gradient_through_statistics(self.registers[x.x])
        if more is not None:
            self.registers[x.gradient] = more.add_(self.registers[x.gradient])

    def differentiate(self, x: computing.Differentiate) -> None:
        self.graph.backward([None if name is None else self.registers[name] for name in x.gradients])
        for name, entry in zip(x.gives, self.graph.entries.values(), strict=True):
            if entry.grad is not None:
                self.registers[name] = entry.grad
        self.graph = Graph()

    def uncombine(self, x: computing.Uncombine) -> None:
        """Both are linear, so their values do not matter."""
        grad_DA = self.registers.get(x.gradient)
        if grad_DA is None:
            return
        nothing = grad_DA.new_zeros(1)
        a = nothing.expand(grad_DA.shape).requires_grad_()
        s = tuple(
            nothing.expand(len(grad_DA), columns).requires_grad_(name is not None)
            for columns, name in zip(x.columns, x.gives[1:], strict=True)
        )
        torch.autograd.backward(self.network.combine(x.layer, a, s, self._rows), grad_DA)
        for name, part in zip(x.gives, (a, *s), strict=True):
            if name is not None and part.grad is not None:
                self.registers[name] = part.grad

    def transpose_sum(self, x: computing.TransposeSum) -> None:
        grad_DA = self.registers.get(x.gradient)
        if grad_DA is not None:
            csc, cache = self._csc(x.weighted, x.mean), self.device.buffer(x.cache)
            kernels_for(grad_DA).csc_aggregate_transpose(*csc, grad_DA.contiguous(), cache)

    def transpose_aggregate(self, x: computing.TransposeAggregate) -> None:
        grad_DA = self.registers.get(x.gradient)
        if grad_DA is None:
            return
        z = grad_DA.new_zeros((len(self.registers["slot_of_source"]), x.z)).requires_grad_()
        s = tuple(grad_DA.new_zeros((self.num_dst, columns)) for columns in x.s)
        a = self.network.aggregate(x.layer, self._block, z, s)
        if a.requires_grad:
            torch.autograd.backward(a, grad_DA)
        self._add_to_cache(z.grad, x.cache)

    def add_to_cache(self, x: computing.AddToCache) -> None:
        self._add_to_cache(self.registers.get(x.gradient), x.cache)

    def _add_to_cache(self, grad_SF: Tensor | None, name: str) -> None:
        if grad_SF is not None:
            cache = self.device.buffer(name)
            kernels_for(cache).scatter_add_rows(cache, self.registers["slot_of_source"], grad_SF.contiguous())


WRITES = {"host": Chunk._to_host, "device": Chunk._to_device, "chunk": Chunk._to_chunk}

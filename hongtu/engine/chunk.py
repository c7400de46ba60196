"""One chunk in one pass: its registers, and the instructions that compute on them.

Legend: D destinations, S sources, E in-edges of the chunk; C slots of a cache; z, s, a as in :class:`hongtu.nn.Layer`.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hongtu.device.base import Device, Stores
from hongtu.engine.host_store import HostStore
from hongtu.engine.saved import Entry, Graph, Saved, Settled, edges_of, move_saved, saving
from hongtu.graph.sparse_rows import PARTS
from hongtu.graph.topology import ChunkTopology
from hongtu.kernels.dispatch import kernels_for
from hongtu.model.network import Network
from hongtu.nn.block import Block, Rows
from hongtu.nn.moments import Moments
from hongtu.plan.program import computing, moves
from hongtu.plan.program.program import PassProgram

OnHost = moves.Read | moves.Deliver | computing.Write  # whose operands say where rows are


class Partition:
    """What one partition's chunks share in a run.

    Args:
        first: its first vertex.
        own_end: the vertex behind the last that is this rank's own; those from there on are other ranks'.
        num_graph_edges: of the whole graph.

    Attributes:
        loss_value: float64 scalar on the device: the chunks' parts of the loss. no_weights: [0], on the device.
        pieces: rows that chunks have for themselves, by vertex tensor and chunk.
        graphs: what chunks saved for backward, by stage and chunk.
        moments: what the pass gathers.
    """

    def __init__(
        self,
        device: Device,
        network: Network,
        host: HostStore,
        loss: Any,
        first: int,
        own_end: int,
        num_graph_edges: int,
    ) -> None:
        self.device, self.network, self.host, self.loss = device, network, host, loss
        self.first, self.own_end, self.num_graph_edges = first, own_end, num_graph_edges
        self.loss_value, self.no_weights = device.numbers(), device.empty((0,), host.dtype)
        self.pieces: defaultdict[str, dict[int, Tensor]] = defaultdict(dict)
        self.graphs: dict[tuple[int, int], Graph] = {}
        self.moments: Moments


class Chunk:
    """A chunk with destinations.

    Args:
        at: its partition.
        p: the pass.
        number: of the chunk among all.
        set: of staging memory.

    Attributes:
        first, end: its vertices.
        rows: those that the pass computes.
        index: int32 [D], their positions among its vertices, or None where they are all of these.
        num_dst: D.
        registers: tensors by name.
    """

    def __init__(self, at: Partition, p: PassProgram, i: int, batch: int, number: int, set: int) -> None:
        self.at, self.p, self.i, self.batch, self.number, self.set = at, p, i, batch, number, set
        self.device, self.host, self.network = at.device, at.host, at.network
        self.first, self.end = (int(x) for x in p.view.chunk_start[number : number + 2])
        self.rows, self.index = p.view.destinations(number), p.view.row_in_chunk(number)
        self.num_dst = int(p.view.num_dst[number])
        self.registers: dict[str, Any] = {}
        self.graph = Graph()
        self.places: list[Saved] = []
        self.settled = Settled(self.device.save)

    def bare(self) -> Chunk:
        """The same with nothing at hand, for who works on it when its batch is over: what layers took is free then."""
        return Chunk(self.at, self.p, self.i, self.batch, self.number, self.set)

    # ------------------------------------------------------------------------------------------------ bring and deliver

    def _array(self, name: str) -> Any:
        """An array of the chunk's structure."""
        view = self.p.view
        if name == "row_in_chunk":
            return self.index
        if name in ("edge_features", "edge_type"):
            return view.edge_rows(getattr(view, name), self.number)
        return getattr(self._structure, name)

    @cached_property
    def _structure(self) -> ChunkTopology:
        return self.p.view.chunk(self.number)

    def _in_memory(self, x: OnHost) -> bool:
        return x.kept is None or x.kept.has(self.i, self.first)

    def _on_host(self, x: OnHost) -> Tensor:
        """The chunk's rows of a host tensor, or staging memory of those that are on the disk."""
        if self._in_memory(x):
            return self.host.rows(x.name, self.first, self.end)
        return self.device.beside(f"disk {x.name}", self.set)[: self.end - self.first]

    def _stores(self, x: moves.Deliver | computing.Write) -> Stores:
        """What goes to the disk is stored; it is added up when it is recalled."""
        return x.stores.of(self.rows) if self._in_memory(x) else True

    def read(self, x: moves.Read) -> None:
        self.registers[x.name] = self.device.bring(x.name, self.set, self._on_host(x), x.link, self.index)

    def read_sparse(self, x: moves.ReadSparse) -> None:
        assert self.host.sparse is not None
        of = dict(zip(PARTS, self.host.sparse.part(self.rows), strict=True))
        for part, name in x.parts.items():
            self._bring(name, of[part], "read")

    def bring(self, x: moves.Bring) -> None:
        self._bring(x.name, self._array(x.name), "topology")

    def bring_slots(self, x: moves.BringSlots) -> None:
        self._bring(x.name, x.slots.of(self.i, self.batch), "topology")

    def _bring(self, name: str, array: np.ndarray, link: str) -> None:
        self.registers[name] = self.device.bring(name, self.set, array, link)

    def fill(self, x: moves.Fill) -> None:
        self._fill(x, torch.from_numpy(np.ascontiguousarray(self._array(x.name))), "topology")

    def fill_rows(self, x: moves.FillRows) -> None:
        self._fill(x, self.host.rows(x.name, self.first, self.end), x.link)

    def fill_slots(self, x: moves.FillSlots) -> None:
        self._fill(x, torch.from_numpy(x.slots.of(self.i, self.batch)), "topology")

    @property
    def num_own(self) -> int:
        """How many of the destinations are this rank's own: the first ones."""
        return self.p.view.destinations_before(self.number, self.at.own_end)

    def _fill(self, x: moves.Fill | moves.FillRows | moves.FillSlots, rows: Tensor, link: str) -> None:
        self.device.fill(self._part(x.buffer, x.start), rows, link)

    def _part(self, buffer: str, start: tuple[np.ndarray, ...]) -> Tensor:
        """The chunk's part of what stays on the device."""
        own = self.number - self.i * self.p.view.chunks
        return self.device.buffer(buffer)[start[self.i][own] : start[self.i][own + 1]]

    def deliver(self, x: moves.Deliver) -> None:
        rows, stores = self._on_host(x), self._stores(x)
        self.device.deliver(x.name, self.set, self.num_dst, rows, stores=stores, index=self.index)

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
        self.registers[x.name] = self._part(x.buffer, x.start)

    def own(self, x: computing.Own) -> None:
        self.registers[x.name] = self._rows_on_device(x.tensor)

    def pick(self, x: computing.Pick) -> None:
        part = self.device.staging(x.name, self.set)[: self.num_dst]
        rows, index = self.registers[x.name], self.registers["row_in_chunk"]
        self.registers[x.name] = torch.index_select(rows, 0, index, out=part)

    def front(self, x: computing.Front) -> None:
        self.registers[x.name] = self.device.buffer(x.buffer)[: self.num_dst]

    def new(self, x: computing.New) -> None:
        make = torch.zeros if x.zero else torch.empty
        where = self.registers["ids"].device
        self.registers[x.name] = make((self.num_dst, x.columns), dtype=self.host.dtype, device=where)

    def _rows_on_device(self, name: str) -> Tensor:
        return self.device.buffer(name)[self.first - self.at.first : self.end - self.at.first]

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
        with torch.no_grad():
            self.registers[x.into] = self.device.buffer(x.cache).index_select(0, self.registers["slot_of_source"])

    def sum(self, x: computing.Sum) -> None:
        cache = self.device.buffer(x.cache)
        with torch.no_grad():
            kernels_for(cache).csc_aggregate(*self._csc(x), cache, self.registers[x.a])

    def _csc(self, x: computing.Sum | computing.TransposeSum) -> tuple[Tensor, Tensor, Tensor, Tensor, bool]:
        here = self.registers
        weight = here["edge_weight"] if x.weighted else self.at.no_weights
        return here["indptr"], here["local_source"], here["slot_of_source"], weight, x.mean

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
        self.at.moments.add(self.registers[x.name][: self.num_own])

    def loss(self, x: computing.Loss) -> None:
        known = self.host["loss_bits"].numpy()[self.rows]
        out, labels, loss_bits = (self.registers[name] for name in (x.output, "labels", "loss_bits"))
        self.registers[x.gradient], part = self.at.loss.gradient(out, labels, loss_bits, known)
        self.at.loss_value.add_(part)

    def add(self, x: computing.Add) -> None:
        first, *others = (self.registers[name] for name in x.parts)
        self.registers[x.name] = sum(others, start=first)

    def write(self, x: computing.Write) -> None:
        """Store or add the destinations' rows, or get them on their way."""
        out = self.registers[x.register]
        there = self.registers[x.register] = WRITES[x.where](self, out, x, self._stores(x))
        if x.holds:
            move_saved(self.places, out, there)

    def _to_host(self, out: Tensor, x: computing.Write, stores: Stores) -> Tensor:
        index = self.registers["row_in_chunk"] if x.picked else None
        self.device.emit(x.name, self.set, out, self._on_host(x), stores=stores, index=index)
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
        self.registers[x.gradient] = norm.with_gradient_through_statistics(rows, grad, self.num_own)

    def differentiate(self, x: computing.Differentiate) -> None:
        self.graph.backward([None if name is None else self.registers[name] for name in x.gradients])
        self.registers |= zip(x.gives, (entry.gradient() for entry in self.graph.entries.values()), strict=True)
        self.graph = Graph()

    def uncombine(self, x: computing.Uncombine) -> None:
        """It is linear, so that values do not matter."""
        grad_DA = self.registers[x.gradient]
        nothing = grad_DA.new_zeros(1)
        widths = (grad_DA.shape[1], *x.columns)
        a, *s = (nothing.expand(len(grad_DA), columns).requires_grad_() for columns in widths)
        out = self.network.combine(x.layer, a, tuple(s), self._rows, gradients_only=True)
        wanted = {name: part for name, part in zip(x.gives, (a, *s), strict=True) if name is not None}
        found = torch.autograd.grad(out, list(wanted.values()), grad_DA, materialize_grads=True)
        self.registers |= zip(wanted, found, strict=True)

    def transpose_sum(self, x: computing.TransposeSum) -> None:
        grad_DA, cache = self.registers[x.gradient], self.device.buffer(x.cache)
        kernels_for(grad_DA).csc_aggregate_transpose(*self._csc(x), grad_DA.contiguous(), cache)

    def transpose_aggregate(self, x: computing.TransposeAggregate) -> None:
        grad_DA = self.registers[x.gradient]
        entry, sources = Entry(), len(self.registers["slot_of_source"])
        z, *s = (grad_DA.new_zeros(size) for size in ((sources, x.z), *((self.num_dst, columns) for columns in x.s)))
        a = self.network.aggregate(x.layer, self._block, entry.of(z), tuple(s))
        Graph(outs=edges_of([a])).backward([grad_DA])
        self._add_to_cache(entry.gradient(), x.cache)

    def add_to_cache(self, x: computing.AddToCache) -> None:
        self._add_to_cache(self.registers[x.gradient], x.cache)

    def _add_to_cache(self, grad_SF: Tensor, name: str) -> None:
        cache = self.device.buffer(name)
        kernels_for(cache).scatter_add_rows(cache, self.registers["slot_of_source"], grad_SF.contiguous())


WRITES = {"host": Chunk._to_host, "device": Chunk._to_device, "chunk": Chunk._to_chunk}

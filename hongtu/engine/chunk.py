"""One chunk in one pass: its registers, and what comes to them and leaves.

Legend: D destinations of the chunk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hongtu.device.base import Chosen, Device, Stores
from hongtu.device.capture import Asking
from hongtu.engine.host_store import HostStore
from hongtu.engine.saved import Graph
from hongtu.graph.sparse_rows import PARTS
from hongtu.graph.topology import ChunkTopology
from hongtu.model.network import Network
from hongtu.nn.whole_graph import Moments
from hongtu.plan.memory.host import Kept
from hongtu.plan.program.moves import Copy
from hongtu.plan.program.program import PassProgram
from hongtu.plan.program.ref import Ref
from hongtu.plan.program.ref import Stores as Stored
from hongtu.plan.program.rows import DESTINATIONS, FRONT, OwnRows, PartOfChunk, Selection, SlotsOfSources, SparsePart


class Partition:
    """What one partition's chunks share in a run.

    Args:
        first: its first vertex.
        own_end: the vertex behind the last that is this rank's own; those from there on are other ranks'.
        num_graph_edges: of the whole graph.

    Attributes:
        loss_value: float64 scalar on the device: the chunks' parts of the loss.
        no_weights: [0], on the device; ``nothing``: [1], a zero.
        pieces: rows that chunks have for themselves, by vertex tensor and chunk.
        graphs: what chunks saved for backward, by stage and chunk.
        moments: what the pass gathers.
        asking: notes what its layers ask the device for, where that is wanted.
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
        self.nothing = device.empty((1,), host.dtype)
        device.streams.compute.run(self.nothing.zero_)
        self.pieces: defaultdict[str, dict[int, Tensor]] = defaultdict(dict)
        self.graphs: dict[tuple[int, int], Graph] = {}
        self.moments: Moments
        self.asking: Asking | None = None


class Chunk:
    """A chunk with destinations.

    Args:
        at: its partition.
        p: the pass.
        number: of the chunk among all.
        set: the batch's number in its pass, by which it has a set of staging memory.

    Attributes:
        own_number: its number among those of the partition.
        first, end: its vertices.
        rows: those that the pass computes.
        index: int32 [D], their positions among its vertices, or None where they are all of these.
        num_dst: D.
        registers: tensors by name; None has none.
    """

    def __init__(self, at: Partition, p: PassProgram, i: int, batch: int, number: int, set: int) -> None:
        self.at, self.p, self.i, self.batch, self.number, self.set = at, p, i, batch, number, set
        self.device, self.host, self.network = at.device, at.host, at.network
        self.first, self.end = (int(x) for x in p.view.chunk_start[number : number + 2])
        self.rows, self.index = p.view.destinations(number), p.view.row_in_chunk(number)
        self.num_dst = int(p.view.num_dst[number])
        self.own_number = number - i * p.view.chunks
        self._slices: dict[Selection, slice] = {}
        self._bringing: dict[Copy, tuple[Callable[[], Any], Callable[[], Tensor]]] = {}  # as it is in every epoch
        self.of_edges: dict[str, bool] = {}  # what blocks of the chunk know of its edges
        self.begin()

    def begin(self) -> None:
        """Have nothing at hand; what was stays with the body that works on it."""
        self.registers: dict[str | None, Any] = {None: None}

    def bare(self) -> Chunk:
        """The same with nothing at hand, for who works on it when its batch is over: what layers took is free then."""
        return Chunk(self.at, self.p, self.i, self.batch, self.number, self.set)

    def _source(self, src: Ref) -> Callable[[], Any]:
        """Gives what is to be brought; it does not hold the chunk."""
        name, rows, view = src.tensor, src.rows, self.p.view
        if isinstance(rows, SparsePart):
            return partial(self._sparse.__getitem__, rows.part)
        if src.where == "host" and self.in_memory(src.kept):
            return partial(self.host.rows, name, *self.span(rows))
        if src.where == "host":
            return self._window(src)
        if isinstance(rows, SlotsOfSources):
            return partial(rows.array, self.i, self.batch)
        if isinstance(rows, OwnRows):
            return partial(rows.index, view, self.number)
        if name in ("edge_features", "edge_type"):
            return partial(view.edge_rows, getattr(view, name), self.number)
        return partial(getattr, self._structure, name)

    @cached_property
    def _structure(self) -> ChunkTopology:
        return self.p.view.chunk(self.number)

    def in_memory(self, kept: Kept | None) -> bool:
        """Whether the chunk's rows of a host tensor are, of which only some may be."""
        return kept is None or kept.has(self.i, self.first)

    def span(self, rows: Selection) -> tuple[int, int]:
        """Where its rows of a tensor begin and end among all."""
        return rows.row_of(self.first), rows.row_of(self.end)

    def on_host(self, ref: Ref) -> Tensor:
        """The chunk's rows of a host tensor, or staging memory of those that are on the disk."""
        if self.in_memory(ref.kept):
            return self.host.rows(ref.tensor, *self.span(ref.rows))
        return self.in_window(ref)

    def in_window(self, ref: Ref) -> Tensor:
        """Staging memory of the chunk's rows of a tensor that lie below the host."""
        return self._window(ref)()

    def _window(self, ref: Ref) -> Callable[[], Tensor]:
        (first, end), device, name, number = self.span(ref.rows), self.device, f"disk {ref.tensor}", self.set
        return lambda: device.beside(name, number)[: end - first]

    def _index(self, rows: Selection) -> np.ndarray | None:
        """int32, which of these rows of a tensor the pass has; None: all."""
        if rows is DESTINATIONS:
            return self.index
        return rows.index(self.p.view, self.number) if isinstance(rows, OwnRows) else None

    def _chosen(self, rows: Selection) -> Chosen | None:
        """The same, and to where they were brought."""
        index = self._index(rows)
        return Chosen(rows.places, index) if isinstance(rows, OwnRows) and index is not None else None

    def stores(self, stored: Stored, kept: Kept | None) -> Stores:
        """What goes to the disk is stored; it is added up when it is recalled."""
        return stored.among(self.rows) if self.in_memory(kept) else True

    def bring(self, x: Copy) -> None:
        """An array, or rows of a host tensor, to a register or to where it stays."""
        if x not in self._bringing:
            array, name = self._source(x.src), x.dst.tensor
            chosen = self._chosen(x.src.rows) if x.src.where == "host" else None
            self._bringing[x] = array, partial(self.device.bring, name, self.set, array, x.link, chosen)
        array, bring = self._bringing[x]
        if isinstance(x.dst.rows, PartOfChunk):
            rows = array()
            rows = rows if isinstance(rows, Tensor) else torch.from_numpy(np.ascontiguousarray(rows))
            index = self._index(x.src.rows) if x.src.where == "host" else None
            rows = rows if index is None else rows.index_select(0, torch.from_numpy(index))
            self.device.fill(self.on_device(x.dst), rows, x.link)
        elif x.in_place and not self.in_memory(x.src.kept):
            # through NumPy: the disk writes to other sets, which autograd counts as a write to all
            self.registers[x.dst.tensor] = torch.from_numpy(array().numpy())
        else:
            self.registers[x.dst.tensor] = bring()

    @cached_property
    def _sparse(self) -> dict[str, np.ndarray]:
        return dict(zip(PARTS, self.host.sparse.part(self.rows), strict=True))

    @property
    def num_own(self) -> int:
        """How many of the destinations are this rank's own: the first ones."""
        return self.p.view.destinations_before(self.number, self.at.own_end)

    def on_device(self, ref: Ref) -> Tensor:
        """The chunk's rows of a buffer, or its part of what stays on the device."""
        found = self._slices.get(ref.rows)
        if found is None:
            found = self._slices[ref.rows] = self._slice(ref.rows)
        buffer = self.device.buffer(ref.tensor)
        return buffer if not found.start and found.stop == buffer.shape[0] else buffer[found]

    def _slice(self, rows: Selection) -> slice:
        if isinstance(rows, PartOfChunk):
            return slice(*rows.start[self.i][self.own_number : self.own_number + 2].tolist())
        if rows is FRONT:
            return slice(self.num_dst)
        assert isinstance(rows, OwnRows)
        before, (first, end) = rows.row_of(self.at.first), self.span(rows)
        return slice(first - before, end - before)

    def deliver(self, x: Copy) -> None:
        """What was written for a host tensor reaches it."""
        name, kept, stored, own = x.dst.tensor, x.dst.kept, x.dst.access, x.dst.rows
        assert isinstance(stored, Stored) and isinstance(own, OwnRows)
        rows, stores = self.on_host(x.dst), self.stores(stored, kept)
        count = int(x.src.rows.entries(self.p.view)[self.number])
        self.device.deliver(name, self.set, count, rows, stores=stores, chosen=self._chosen(own))

"""Which rows of a tensor an instruction handles, on the device that runs it and in its batch.

Legend: C chunks; B batches; K intervals of one device's cache.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hongtu.graph.neighbour_sets import count_below
from hongtu.graph.topology import Topology
from hongtu.plan.cache.intervals import Intervals
from hongtu.plan.cache.transfer import DeviceCounts
from hongtu.plan.memory.structure import Over, chunk_entries, device_entries

Transfers = tuple[DeviceCounts, ...]  # of every device


class Selection:
    """Some of them.

    Attributes:
        words: which, for people; ``unit``: what they are.
        edges: the chunks whose in-edges the tensor has rows of; None: it has those of vertices.
        of_chunk: every chunk has some, those of other batches' none; else a device has them, whatever its chunk.
    """

    words, unit, of_chunk = "chunk", "rows", True
    edges: Topology | None = None

    def row_of(self, vertex: int) -> int:
        """The row of the tensor with which those of a vertex begin, or would."""
        return vertex if self.edges is None else int(self.edges.in_edge_start[vertex])

    def entries(self, view: Topology) -> np.ndarray:
        """int64 [C], how many every chunk has."""
        raise NotImplementedError

    def total(self, view: Topology, device: int) -> int:
        """How many a device's chunks with destinations have."""
        own = slice(device * view.chunks, (device + 1) * view.chunks)
        return int(self.entries(view)[own][view.num_dst[own] > 0].sum())

    def lengths(self, view: Topology, device: int, chunks: np.ndarray, batches: Sequence[int]) -> np.ndarray:
        """int64 [B], how many there are in batches in which a device has these chunks."""
        found: np.ndarray = self.entries(view)[chunks] * (view.num_dst[chunks] > 0)
        return found


@dataclass(frozen=True, eq=False)
class OfChunk(Selection):
    """One for each of the chunk's destinations, sources, edges or column pointers."""

    over: Over
    words: str = "chunk"

    @property
    def unit(self) -> str:  # type: ignore[override]
        return "rows" if isinstance(self, OwnRows) or self.over == "destinations" else "entries"

    def entries(self, view: Topology) -> np.ndarray:
        return chunk_entries(view)[self.over]

    def total(self, view: Topology, device: int) -> int:
        return device_entries(view)[device].busy[self.over]


@dataclass(frozen=True, eq=False)
class OwnRows(OfChunk):
    """The chunk's own rows of a tensor: of the vertices that the pass computes, or of their in-edges.

    Attributes:
        places: the register that says which of them a pass has, where it has not all.
    """

    edges: Topology | None = None
    places: str = "row_in_chunk"

    def index(self, view: Topology, chunk: int) -> np.ndarray | None:
        """int32, which of the rows that a chunk has in the tensor it has in a pass; None: all."""
        return view.row_in_chunk(chunk) if self.edges is None else view.edges_among(self.edges, chunk)

    def numbers(self, view: Topology, chunk: int) -> np.ndarray:
        """Those rows."""
        first, end = (self.row_of(vertex) for vertex in view.chunk_start[chunk : chunk + 2].tolist())
        index = self.index(view, chunk)
        return np.arange(first, end) if index is None else first + index


DESTINATIONS = OwnRows("destinations")
SOURCES = OfChunk("sources", "slot_of_source")  # the slots of the chunk's sources
FRONT, EDGE_FRONT = OfChunk("destinations", ":"), OfChunk("edges", ":")  # of a buffer, the first so many


@dataclass(frozen=True, eq=False)
class PartOfChunk(OfChunk):
    """The chunk's part of an array that stays on the device.

    Attributes:
        start: of every device int64 [n + 1], where each chunk's part begins.
    """

    start: tuple[np.ndarray, ...] = ()


@dataclass(frozen=True, eq=False)
class SparsePart(Selection):
    """The part "start" of the destinations' CSR rows, of which there is one more than rows, "column" or "value".

    Attributes:
        numbers: int64 [C], what the rows of every chunk hold.
    """

    part: str
    numbers: np.ndarray
    unit = "entries"

    def entries(self, view: Topology) -> np.ndarray:
        return view.num_dst + 1 if self.part == "start" else self.numbers


@dataclass(frozen=True, eq=False)
class SlotsOfSources(OfChunk):
    """The slot of every source of a chunk, as the plan has it.

    Attributes:
        devices: the transfers of every device.
    """

    devices: Transfers = ()

    def array(self, device: int, batch: int) -> np.ndarray:
        """int32 [S]."""
        return self.devices[device].slots(batch)  # type: ignore[attr-defined]


@dataclass(frozen=True, eq=False)
class Picks:
    """The intervals that an instruction handles in every batch.

    Attributes:
        devices: the transfers of every device.
        mirrors: of each, the intervals that mirror a peer's row; else those whose rows come from the host.
        retiring: the intervals that retire after a batch, else those that open before it.
    """

    devices: Transfers
    mirrors: bool
    retiring: bool

    def table(self, device: int) -> Intervals:
        transfers = self.devices[device]
        return transfers.pulls if self.mirrors else transfers.loads  # type: ignore[return-value]

    def intervals(self, device: int, batch: int) -> slice | np.ndarray:
        """Which rows of the table."""
        table = self.table(device)
        return table.retiring(batch) if self.retiring else table.opening(batch)

    def column(self, name: str, device: int, batch: int) -> np.ndarray:
        """int32 [K], what the table says of these: "row", "slot", "peer" or "peer_slot"; "place": that of the row
        among them, where they lie in a bucket."""
        column: np.ndarray = getattr(self.table(device), "row" if name == "place" else name)
        picked = column[self.intervals(device, batch)]
        if name != "place":
            return picked
        place = np.empty(len(picked), np.int32)
        place[np.argsort(picked, kind="stable")] = np.arange(len(picked), dtype=np.int32)
        return place

    def by_peer(self, device: int, batch: int) -> list[tuple[int, slice]]:
        """Every peer with its range among these, the next device first: no two devices visit one peer at a time (paper
        section 5)."""
        if (device, batch) in self._peers:
            return self._peers[device, batch]
        m = len(self.devices)
        ends = count_below(self.column("peer", device, batch), range(m + 1)).tolist()
        peers = [(device + k) % m for k in range(1, m + 1)]
        found = [(peer, slice(ends[peer], ends[peer + 1])) for peer in peers if ends[peer] < ends[peer + 1]]
        self._peers[device, batch] = found
        return found

    @functools.cached_property
    def contended(self) -> frozenset[tuple[int, int]]:
        """The batches and owners where several devices push to one row."""
        devices, found = range(len(self.devices)), set()
        batches = self.table(0).num_batches if len(devices) > 2 else 0  # else an owner has one peer
        for batch in range(batches):
            peer, slot = (
                np.concatenate([self.column(name, i, batch) for i in devices]) for name in ("peer", "peer_slot")
            )
            order = np.lexsort((slot, peer))
            peer, slot = peer[order], slot[order]
            again = (peer[1:] == peer[:-1]) & (slot[1:] == slot[:-1])
            found |= {(batch, owner) for owner in np.unique(peer[1:][again]).tolist()}
        return frozenset(found)

    @functools.cached_property
    def _peers(self) -> dict[tuple[int, int], list[tuple[int, slice]]]:
        """Of every device and batch that was asked for."""
        return {}


@dataclass(frozen=True, eq=False)
class Picked(Selection):
    """The rows of picked intervals, sorted by peer where they mirror.

    Attributes:
        column: what the table of intervals says of each: "row" of the host, "place" in a bucket, "slot", "peer_slot".
        at: the array on the device that says the same; "": none does.
    """

    picks: Picks
    column: Literal["row", "place", "slot", "peer_slot"]
    at: str = ""
    of_chunk = False

    @property
    def words(self) -> str:  # type: ignore[override]
        return self.at or f"{self.column}s"

    def __str__(self) -> str:
        kind, which = "mirrors" if self.picks.mirrors else "loaded rows", "last" if self.picks.retiring else "first"
        return f"{self.column} of {kind} whose {which} batch it is"

    def array(self, device: int, batch: int) -> np.ndarray:
        """int32 [K]."""
        return self.picks.column(self.column, device, batch)

    def total(self, view: Topology, device: int) -> int:
        return len(self.picks.table(device))

    def lengths(self, view: Topology, device: int, chunks: np.ndarray, batches: Sequence[int]) -> np.ndarray:
        return np.array([len(self.picks.column("slot", device, batch)) for batch in batches], dtype=np.int64)

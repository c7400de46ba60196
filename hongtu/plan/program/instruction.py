"""What an instruction of a program is, and the operands that several kinds have."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
from typing_extensions import dataclass_transform

from hongtu.graph.topology import Topology
from hongtu.plan.cache.intervals import Intervals
from hongtu.plan.cache.transfer import DeviceCounts, DeviceTransfers
from hongtu.plan.memory.disk import Region

Where = Literal["host", "device", "chunk"]  # in host rows; on the partition's device; as layers made it, by chunk
Transfers = tuple[DeviceTransfers | DeviceCounts, ...]  # of every device

T = TypeVar("T")


@dataclass_transform(frozen_default=True, eq_default=False, kw_only_default=True)
def kind(cls: type[T]) -> type[T]:
    """Make a class with operands a kind of instruction."""
    return dataclass(frozen=True, eq=False, kw_only=True)(cls)


class Instruction:
    """A move or a computation with every operand resolved.

    Attributes:
        verb: what it is called in listings and by whoever runs it: "begin_moments" of BeginMoments.
        on: the stream that does it, in the body of a pass.
        words: what it does, for listings, with its operands' names in braces.
    """

    verb: ClassVar[str]
    on: ClassVar[str] = ""
    words: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "verb" not in vars(cls):
            cls.verb = re.sub("(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()


@dataclass(frozen=True, eq=False)
class Stores:
    """Which rows are stored; others are added to what is there.

    Attributes:
        where: all or none of them; or bool, those where it is True.
    """

    where: bool | np.ndarray

    def of(self, rows: slice | np.ndarray) -> bool | np.ndarray:
        """The same of some rows alone."""
        return self.where if isinstance(self.where, bool) else self.where[rows]


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

    def of(self, device: int, batch: int) -> slice | np.ndarray:
        """Which rows of the table."""
        table = self.table(device)
        return table.retiring(batch) if self.retiring else table.opening(batch)

    def column(self, name: str, device: int, batch: int) -> np.ndarray:
        """int32 [K], what the table says of these: "row", "slot", "peer" or "peer_slot"; "place": that of the row
        among them, where they lie in a bucket."""
        column: np.ndarray = getattr(self.table(device), "row" if name == "place" else name)
        picked = column[self.of(device, batch)]
        if name != "place":
            return picked
        place = np.empty(len(picked), np.int32)
        place[np.argsort(picked, kind="stable")] = np.arange(len(picked), dtype=np.int32)
        return place

    def by_peer(self, device: int, batch: int) -> list[tuple[int, slice]]:
        """Every peer with its range among these, the next device first: no two devices visit one peer at a time (paper
        section 5)."""
        m = len(self.devices)
        ends = np.searchsorted(self.column("peer", device, batch), range(m + 1)).tolist()
        peers = [(device + k) % m for k in range(1, m + 1)]
        return [(peer, slice(ends[peer], ends[peer + 1])) for peer in peers if ends[peer] < ends[peer + 1]]


@dataclass(frozen=True, eq=False)
class Contended:
    """Where several devices push to one row.

    Attributes:
        picks: what is pushed.
        batches: all of the pass.
    """

    picks: Picks
    batches: range

    @functools.cached_property
    def pairs(self) -> frozenset[tuple[int, int]]:
        """The batches and owners."""
        devices, found = range(len(self.picks.devices)), set()
        for batch in self.batches if len(devices) > 2 else ():  # else an owner has one peer
            peer, slot = (
                np.concatenate([self.picks.column(name, i, batch) for i in devices]) for name in ("peer", "peer_slot")
            )
            order = np.lexsort((slot, peer))
            peer, slot = peer[order], slot[order]
            again = (peer[1:] == peer[:-1]) & (slot[1:] == slot[:-1])
            found |= {(batch, owner) for owner in np.unique(peer[1:][again]).tolist()}
        return frozenset(found)


class Piece(NamedTuple):
    """Rows of a chunk that lie together on the disk.

    Attributes:
        begin: the first byte there; ``rows``: how many rows.
        take: which of them count, or None for all.
        row: int32, the vertices of these.
        stores: whether they are stored or added.
    """

    begin: int
    rows: int
    take: np.ndarray | None
    row: np.ndarray
    stores: bool | np.ndarray


@dataclass(frozen=True, eq=False)
class Given:
    """What one pass gave of a tensor that lies on the disk.

    Attributes:
        view, schedule: the chunks that it computed, and when.
        own: the first byte of their own rows, or None; ``stores``: which of them are stored.
        flushed: the rows that its caches let go, or None; ``flush_stores``: of every device, which of them are stored.
    """

    view: Topology
    schedule: np.ndarray
    own: int | None
    stores: Stores
    flushed: Region | None
    flush_stores: tuple[Stores, ...]

    def own_rows(self, first: int, end: int) -> np.ndarray:
        """int32, those of a range of vertices that the pass computed."""
        active = self.view.active
        if active is None:
            return np.arange(first, end, dtype=np.int32)
        rows: np.ndarray = active[slice(*np.searchsorted(active, (first, end)))]
        return rows

    def count(self, device: int, chunk: int, first: int, end: int) -> int:
        """How many rows there are of a chunk."""
        own = end - first if self.own is not None and len(self.own_rows(first, end)) else 0
        return own + (0 if self.flushed is None else int(self.flushed.buckets[device].count[:, chunk].sum()))

    def pieces(self, device: int, chunk: int, first: int, end: int, row_bytes: int) -> Iterator[Piece]:
        """What there is of a chunk, in the order in which it was given: in a batch own rows come before those that are
        flushed.

        Args:
            chunk: its number on the device; whoever has flushed rows has these chunks, too.
            first, end: its vertices.
        """
        rows, own = self.own_rows(first, end), []
        if self.own is not None and len(rows):
            take = None if self.view.active is None else rows - np.int32(first)
            own = [Piece(self.own + first * row_bytes, end - first, take, rows, self.stores.of(rows))]
        if self.flushed is None:
            yield from own
            return
        buckets, begin = self.flushed.buckets[device], self.flushed.begin[device]
        lies = buckets.of_chunk(chunk)
        batch = int(np.flatnonzero(self.schedule[device] == chunk)[0])
        between = int(buckets.begin[batch, chunk]) if own else lies.start
        for lo, hi, then in ((lies.start, between, own), (between, lies.stop, [])):
            if lo < hi:
                stores = self.flush_stores[device].of(buckets.interval[lo:hi])
                yield Piece(begin + lo * row_bytes, hi - lo, None, buckets.rows(slice(lo, hi)), stores)
            yield from then

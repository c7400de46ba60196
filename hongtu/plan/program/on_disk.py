"""Rows of a tensor that lie on the disk: what earlier passes gave, each in a region of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hongtu.graph.neighbour_sets import count_below
from hongtu.graph.topology import Topology
from hongtu.plan.memory.disk import Region
from hongtu.plan.memory.host import Kept
from hongtu.plan.program.ref import Stores
from hongtu.plan.program.rows import Picks, Selection


def chunks_on_disk(view: Topology, device: int, kept: Kept) -> list[tuple[int, int, int]]:
    """The number on the device, and the first row and the one behind the last, of chunks that run and have the rows of
    a tensor on the disk."""
    n = view.chunks
    ends, busy = view.chunk_start[device * n : (device + 1) * n + 1].tolist(), view.num_dst[device * n :][:n] > 0
    away = (c for c in np.flatnonzero(busy).tolist() if not kept.has(device, ends[c]))
    return [(c, int(kept.at(ends[c])), int(kept.at(ends[c + 1]))) for c in away]


def _place(laid: np.ndarray | None, vertex: int) -> int:
    """How many rows lie before that of a vertex."""
    return vertex if laid is None else int(count_below(laid, vertex))


Target = tuple[int, slice | np.ndarray]  # a first byte on the disk, and which rows of staging memory go there


class OnDisk(Selection):
    """All rows of a chunk, unless they are in memory."""

    def entries(self, view: Topology) -> np.ndarray:
        return np.diff(view.chunk_start) if self.edges is None else np.asarray(self.edges.chunk_edges)

    def moved(self, view: Topology, device: int, kept: Kept) -> int:
        """How many rows go to or from the disk in a pass."""
        return sum(end - first for _, first, end in chunks_on_disk(view, device, kept))


ARTIFACT = OnDisk()  # in the artifact's own file


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
        laid: int32, the vertices that have rows there, or None for all.
        flushed: the rows that its caches let go, or None; ``flush_stores``: of every device, which of them are stored.
    """

    view: Topology
    schedule: np.ndarray
    own: int | None
    laid: np.ndarray | None
    stores: Stores
    flushed: Region | None
    flush_stores: tuple[Stores, ...]

    def own_rows(self, first: int, end: int) -> np.ndarray:
        """int32, those of a range of vertices that the pass computed."""
        active = self.view.active
        if active is None:
            return np.arange(first, end, dtype=np.int32)
        rows: np.ndarray = active[slice(*count_below(active, (first, end)))]
        return rows

    def count(self, device: int, chunk: int, first: int, end: int) -> int:
        """How many rows there are of a chunk."""
        rows = 0 if self.own is None else len(self.own_rows(first, end))
        own = end - first if rows and self.laid is None else rows
        return own + (0 if self.flushed is None else int(self.flushed.buckets[device].count[:, chunk].sum()))

    def pieces(self, device: int, chunk: int, first: int, end: int, row_bytes: int) -> Iterator[Piece]:
        """What there is of a chunk, in the order in which it was given: in a batch own rows come before those that are
        flushed.

        Args:
            chunk: its number on the device; whoever has flushed rows has these chunks, too.
            first, end: its rows.
        """
        rows, own = self.own_rows(first, end), []
        if self.own is not None and len(rows):
            begin, count = _place(self.laid, first), len(rows)
            take = None if self.view.active is self.laid else rows - np.int32(first)
            count = count if take is None else end - first
            own = [Piece(self.own + begin * row_bytes, count, take, rows, self.stores.among(rows))]
        if self.flushed is None:
            yield from own
            return
        buckets, begin = self.flushed.buckets[device], self.flushed.begin[device]
        lies = buckets.of_chunk(chunk)
        batch = int(np.flatnonzero(self.schedule[device] == chunk)[0])
        between = int(buckets.begin[batch, chunk]) if own else lies.start
        for lo, hi, then in ((lies.start, between, own), (between, lies.stop, [])):
            if lo < hi:
                stores = self.flush_stores[device].among(buckets.interval[lo:hi])
                yield Piece(begin + lo * row_bytes, hi - lo, None, buckets.rows(slice(lo, hi)), stores)
            yield from then


@dataclass(frozen=True, eq=False)
class Summed(OnDisk):
    """The sum of what passes gave of a chunk's rows, in their order.

    Attributes:
        straight: they are there as they are.
    """

    given: tuple[Given, ...]
    straight: bool
    edges: Topology | None = None

    @property
    def words(self) -> str:  # type: ignore[override]
        return f"chunk, by {_count(len(self.given))}"

    def moved(self, view: Topology, device: int, kept: Kept) -> int:
        return sum(of.count(device, *chunk) for chunk in chunks_on_disk(view, device, kept) for of in self.given)


@dataclass(frozen=True, eq=False)
class Laid(OnDisk):
    """Where a pass's own rows go.

    Attributes:
        own: their first byte, or None where nobody reads these.
        laid: int32, the vertices that have rows there, or None for all.
        takers: where later passes load them.
    """

    own: int | None
    laid: np.ndarray | None
    takers: tuple[Region, ...]
    edges: Topology | None = None

    @property
    def words(self) -> str:  # type: ignore[override]
        read, loaded = "to be read", f"for {_count(len(self.takers))} to load"
        return ", ".join(["chunk", *[read] * (self.own is not None), *[loaded] * bool(self.takers)])

    def places(self, device: int, chunk: int, first: int, end: int, row_bytes: int) -> Iterator[Target]:
        """Of the chunk of this number on a device, which has these rows."""
        if self.own is not None:
            begin, laid = _place(self.laid, first), self.laid
            yield (
                self.own + begin * row_bytes,
                slice(None) if laid is None else laid[begin : _place(laid, end)] - np.int32(first),
            )
        for region in self.takers:
            buckets = region.buckets[device]
            for lo, count in zip(buckets.begin[:, chunk].tolist(), buckets.count[:, chunk].tolist(), strict=True):
                if count:
                    yield region.begin[device] + lo * row_bytes, buckets.rows(slice(lo, lo + count)) - first

    def moved(self, view: Topology, device: int, kept: Kept) -> int:
        busy = view.num_dst[device * view.chunks :][: view.chunks] > 0
        away = () if self.own is None else chunks_on_disk(view, device, kept)
        count = view.num_dst[device * view.chunks :]
        own = sum(end - first if self.laid is None else int(count[c]) for c, first, end in away)
        return own + sum(int(region.buckets[device].count[:, busy].sum()) for region in self.takers)


@dataclass(frozen=True, eq=False)
class Bucket(OnDisk):
    """The rows that a batch loads or flushes."""

    region: Region
    picks: Picks
    words, of_chunk = "bucket", False

    def places(self, device: int, batch: int, row_bytes: int) -> Iterator[Target]:
        """Of the rows that a batch flushes, which are sorted; first come those that are in memory."""
        buckets = self.region.buckets[device]
        at = buckets.in_memory(batch)
        for lo, count in zip(buckets.begin[batch].tolist(), buckets.count[batch].tolist(), strict=True):
            if count:
                yield self.region.begin[device] + lo * row_bytes, slice(at, at + count)
            at += count

    def lengths(self, view: Topology, device: int, chunks: np.ndarray, batches: Sequence[int]) -> np.ndarray:
        return np.array([int(self.region.buckets[device].count[batch].sum()) for batch in batches], dtype=np.int64)

    def moved(self, view: Topology, device: int, kept: Kept) -> int:
        return len(self.region.buckets[device])


def _count(passes: int) -> str:
    return f"{passes} {'pass' if passes == 1 else 'passes'}"

"""Reuse policies: from the rows each batch requests to intervals that hold them (paper section 5).

``none``   every chunk loads its whole neighbour set from the host (the paper's baseline, V_ori rows).
``p2p``    the transition set T_ij is loaded once per batch by its owner, and mirrors pull from it (V_+p2p rows).
``paper``  the transition set T_ij is loaded once per batch by its owner, mirrors pull from it, and rows that the
           next batch needs again stay where they are (V_+ru rows).

A schedule is an int array [m, B]: ``schedule[i, b]`` is the chunk j that device i runs in batch b.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np

from hongtu.graph.neighbour_sets import count_below, union_sets
from hongtu.graph.topology import Topology
from hongtu.plan.cache.gaps import ALL, Gaps, count_gaps
from hongtu.plan.cache.intervals import Columns, chain, next_uses


@dataclass(frozen=True, eq=False)
class Requests:
    """The rows that one device requests, batch by batch.

    Attributes:
        start: int64 [B + 1], where each batch's begin.
        row: int32 [K], ascending in a batch, which requests a row once.
    """

    num_vertices: int
    start: np.ndarray
    row: np.ndarray

    @property
    def batch(self) -> np.ndarray:
        """int32 [K], of each request."""
        return np.repeat(np.arange(len(self.start) - 1, dtype=np.int32), np.diff(self.start))

    @property
    def next_use(self) -> np.ndarray:
        """int32 [K], batch of each request's next request of the same row, or -1. Found anew each time: what is
        remembered of many grains takes more than the sweep is worth."""
        return next_uses(self.start, self.row, self.num_vertices)

    @cached_property
    def gaps(self) -> Gaps:
        return count_gaps(self.start, self.next_use, ALL)

    def intervals(self, stays: np.ndarray) -> Columns:
        """Those of rows that stay until their next request where ``stays``, bool [K], says so."""
        return chain(self.start, self.row, stays, self.num_vertices)


@dataclass(frozen=True, eq=False)
class Uses:
    """The rows that one device requests: ``own``, of its own partition (its transition sets), and of others
    (``mirror``)."""

    own: Requests
    mirror: Requests
    _window_rows: dict[int, np.ndarray] = field(default_factory=dict, init=False)

    def window_rows(self, prefetch: int) -> np.ndarray:
        """int64 [B], distinct rows that batches b .. b + prefetch request."""
        if prefetch not in self._window_rows:
            own, mirror = (
                _window_rows(x.start, x.row, prefetch, x.num_vertices) if prefetch else np.diff(x.start)
                for x in (self.own, self.mirror)
            )
            self._window_rows[prefetch] = own + mirror
        return self._window_rows[prefetch]


def uses_of(topology: Topology, schedule: np.ndarray) -> list[Uses]:
    """What every device requests under deduplication; remembered in ``topology.memo``."""
    key, v = ("uses", np.asarray(schedule).tobytes()), topology.num_vertices
    if key not in topology.memo and topology.partitions == 1:
        topology.memo[key] = [Uses(neighbour_requests(topology, schedule, 0), no_requests(topology, schedule))]
    elif key not in topology.memo:
        chunk = np.arange(topology.partitions)[:, None] * topology.chunks + schedule
        sets = topology.source_start, topology.sources, chunk
        topology.memo[key] = [
            Uses(Requests(v, *_transition_requests(*sets, lo, hi)), Requests(v, *_mirror_requests(*sets, i, lo, hi)))
            for i, (lo, hi) in enumerate(pairwise(topology.partition_start.tolist()))
        ]
    return list(topology.memo[key])


def no_requests(topology: Topology, schedule: np.ndarray) -> Requests:
    """Of as many batches."""
    start = np.zeros(schedule.shape[1] + 1, dtype=np.int64)
    return Requests(topology.num_vertices, start, np.empty(0, dtype=np.int32))


def neighbour_requests(topology: Topology, schedule: np.ndarray, device: int) -> Requests:
    """The neighbour set of every batch's chunk on one device: the topology's own array where chunks run in order."""
    first, end = device * topology.chunks, (device + 1) * topology.chunks
    if np.array_equal(schedule[device], np.arange(topology.chunks)):
        bounds = np.asarray(topology.source_start[first : end + 1])
        rows = np.asarray(topology.sources[bounds[0] : bounds[-1]])
        return Requests(topology.num_vertices, bounds - bounds[0], rows)
    sets = [topology.neighbour_set(first + int(j)) for j in schedule[device]]
    start = np.zeros(len(sets) + 1, dtype=np.int64)
    np.cumsum([len(s) for s in sets], out=start[1:])
    rows = np.concatenate([np.asarray(s) for s in sets]) if sets else np.empty(0, np.int32)
    return Requests(topology.num_vertices, start, rows)


def adjacent_intervals(requests: Requests) -> Columns:
    """One interval per maximal run of consecutive batches that request a row (the paper's in-place reuse).

    >>> requests = Requests(10, np.array([0, 2, 4, 5]), np.array([3, 7, 3, 9, 7]))  # batches {3, 7}, {3, 9}, {7}
    >>> [column.tolist() for column in adjacent_intervals(requests)]
    [[3, 7, 9, 7], [0, 0, 1, 2], [1, 0, 1, 2]]
    """
    return requests.intervals(requests.next_use == requests.batch + 1)


def single_intervals(requests: Requests) -> Columns:
    """One interval per request: nothing is reused."""
    batch = requests.batch
    return requests.row.copy(), batch, batch  # rows may be the topology's


def _mirror_requests(source_start, sources, chunk, device, lo, hi):
    """Per batch, the rows of N_ij that other partitions than lo .. hi - 1 own."""
    parts, start = [sources[:0]], np.zeros(chunk.shape[1] + 1, dtype=np.int64)
    for b, c in enumerate(chunk[device]):
        wanted = sources[source_start[c] : source_start[c + 1]]
        below, above = count_below(wanted, (lo, hi))
        parts += wanted[:below], wanted[above:]
        start[b + 1] = start[b] + below + len(wanted) - above
    return start, np.concatenate(parts).astype(np.int32, copy=False)


def _transition_requests(source_start, sources, chunk, lo, hi):
    """Per batch, the transition set: rows lo .. hi - 1 that some chunk of the batch needs."""

    def own(c):
        wanted = sources[source_start[c] : source_start[c + 1]]
        return wanted[slice(*count_below(wanted, (lo, hi)))]

    sets = [[own(c) for c in batch] for batch in chunk.T]
    return union_sets(sets, sum(len(rows) for batch in sets for rows in batch), lo, hi - lo)


def _window_rows(start, row, prefetch, num_vertices):
    num_batches = len(start) - 1
    change = np.zeros(num_batches + 1, dtype=np.int64)
    last_seen = np.full(num_vertices, -prefetch - 2, dtype=np.int64)
    for b in range(num_batches):
        # a row requested in b counts for windows b - prefetch .. b, except those its previous request covers
        rows = row[start[b] : start[b + 1]]
        change += np.bincount(np.maximum(last_seen[rows] + 1, max(b - prefetch, 0)), minlength=num_batches + 1)
        change[b + 1] -= len(rows)
        last_seen[rows] = b
    return np.cumsum(change)[:num_batches]

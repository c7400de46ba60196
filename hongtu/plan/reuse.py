"""Reuse policies: from the rows each batch requests to intervals that hold them (paper section 5).

``none``   every chunk loads its whole neighbour set from the host (the paper's baseline, V_ori rows).
``p2p``    the transition set T_ij is loaded once per batch by its owner, and mirrors pull from it (V_+p2p rows).
``paper``  the transition set T_ij is loaded once per batch by its owner, mirrors pull from it, and rows that the
           next batch needs again stay where they are (V_+ru rows).

A schedule is an int array [m, B]: ``schedule[i, b]`` is the chunk j that device i runs in batch b.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numba
import numpy as np

from hongtu.plan.intervals import chain, next_uses
from hongtu.topology import Topology


@dataclass(frozen=True, eq=False)
class Uses:
    """The rows that one device requests, batch by batch, and when it requests each of them again.

    Attributes:
        own: of its own partition (its transition sets).
        mirror: of other partitions.
    """

    own: Requests
    mirror: Requests
    num_vertices: int

    @cached_property
    def own_next(self) -> np.ndarray:
        """int32 [K], batch of each request's next request of the same row, or -1."""
        return next_uses(*self.own, self.num_vertices)

    @cached_property
    def mirror_next(self) -> np.ndarray:
        return next_uses(*self.mirror, self.num_vertices)


def uses_of(topology: Topology, schedule: np.ndarray) -> list[Uses]:
    """What every device requests under deduplication; remembered in ``topology.memo``."""
    key = "uses", np.asarray(schedule).tobytes()
    if key not in topology.memo:
        topology.memo[key] = [
            Uses(
                transition_requests(topology, schedule, i),
                mirror_requests(topology, schedule, i),
                topology.num_vertices,
            )
            for i in range(topology.partitions)
        ]
    return list(topology.memo[key])


Requests = tuple[np.ndarray, np.ndarray]  # start int64 [B + 1], row int32 [sum]: rows of batch b, ascending


def neighbour_requests(topology: Topology, schedule: np.ndarray, device: int) -> Requests:
    """The neighbour set of every batch's chunk on one device."""
    chunks = device * topology.chunks + schedule[device]
    sets = [topology.neighbour_set(int(c)) for c in chunks]
    return _concatenate(sets)


def mirror_requests(topology: Topology, schedule: np.ndarray, device: int) -> Requests:
    """Per batch, the rows of N_ij that other partitions own."""
    lo, hi = topology.partition_start[device : device + 2]
    start, row = neighbour_requests(topology, schedule, device)
    return _select(start, row, (row < lo) | (row >= hi))


def transition_requests(topology: Topology, schedule: np.ndarray, device: int) -> Requests:
    """Per batch, the transition set T_ij: rows of partition ``device`` that some chunk of the batch needs."""
    lo, hi = (int(x) for x in topology.partition_start[device : device + 2])
    wanted = []
    for peer in range(topology.partitions):
        start, row = neighbour_requests(topology, schedule, peer)
        wanted.append(_select(start, row, (row >= lo) & (row < hi)))
    return _union(tuple(start for start, _ in wanted), tuple(row for _, row in wanted), lo, hi)


def adjacent_intervals(requests: Requests) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One interval per maximal run of consecutive batches that request a row (the paper's in-place reuse).

    Returns:
        row, first, last: int32 [K], sorted by (first, row).

    >>> requests = (np.array([0, 2, 4, 5]), np.array([3, 7, 3, 9, 7]))  # batches {3, 7}, {3, 9}, {7}
    >>> [column.tolist() for column in adjacent_intervals(requests)]
    [[3, 7, 9, 7], [0, 0, 1, 2], [1, 0, 1, 2]]
    """
    start, row = requests
    num_rows = int(row.max()) + 1 if len(row) else 0
    batch = np.repeat(np.arange(len(start) - 1, dtype=np.int32), np.diff(start))
    return chain(start, row, next_uses(start, row, num_rows) == batch + 1, num_rows)


def single_intervals(requests: Requests) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One interval per request: nothing is reused."""
    start, row = requests
    batch = np.repeat(np.arange(len(start) - 1, dtype=np.int32), np.diff(start))
    return row, batch, batch


def _concatenate(sets: list[np.ndarray]) -> Requests:
    start = np.zeros(len(sets) + 1, dtype=np.int64)
    np.cumsum([len(s) for s in sets], out=start[1:])
    return start, np.concatenate([np.asarray(s) for s in sets]) if sets else np.empty(0, np.int32)


def _select(start: np.ndarray, row: np.ndarray, keep: np.ndarray) -> Requests:
    kept = np.zeros(len(row) + 1, dtype=np.int64)
    np.cumsum(keep, out=kept[1:])
    return kept[start], row[keep]


@numba.njit(cache=True, nogil=True)
def _union(starts, rows, lo, hi):
    num_batches = len(starts[0]) - 1
    total = 0
    for row in rows:
        total += len(row)
    out = np.empty(total, dtype=np.int32)
    start = np.zeros(num_batches + 1, dtype=np.int64)
    seen = np.full(hi - lo, -1, dtype=np.int32)
    at = 0
    for b in range(num_batches):
        begin = at
        for p in range(len(starts)):
            for k in range(starts[p][b], starts[p][b + 1]):
                r = rows[p][k]
                if seen[r - lo] != b:
                    seen[r - lo] = b
                    out[at] = r
                    at += 1
        out[begin:at] = np.sort(out[begin:at])
        start[b + 1] = at
    return start, out[:at].copy()

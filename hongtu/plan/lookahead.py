"""The lookahead policy: which rows to keep between uses when the whole schedule is known (Belady).

Keeping a row from a use in batch j to its next use in batch k saves one transfer and takes a slot in the batches
between. Choosing the most gaps under a room that varies by batch is interval scheduling: whenever more gaps are open
than there is room, drop the one that ends last (optimal, Belady's farthest next use).

Owners choose first, so host loads are as few as the capacity allows; mirrors then use the room that is left, and only
where the owner keeps the row over the whole gap.
"""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np

from hongtu.errors import BudgetError
from hongtu.plan.intervals import chain, next_uses
from hongtu.plan.reuse import Requests, mirror_requests, transition_requests
from hongtu.topology import Topology

Columns = tuple[np.ndarray, np.ndarray, np.ndarray]  # row, first, last of intervals
UNLIMITED = np.iinfo(np.int64).max // 2


def lookahead_intervals(
    topology: Topology, schedule: np.ndarray, capacity: Sequence[int] | int | None, prefetch: int = 0
) -> tuple[list[Columns], list[Columns]]:
    """Owner and mirror intervals of every device.

    Args:
        schedule: int32 [m, B].
        capacity: slots of each device, one number for all, or None for as many as there are rows.
        prefetch: batches ahead of its first use that a row is brought.

    Raises:
        BudgetError: when one batch (with the ``prefetch`` next ones) needs more slots than ``capacity``.
    """
    owners = [transition_requests(topology, schedule, i) for i in range(topology.partitions)]
    mirrors = [mirror_requests(topology, schedule, i) for i in range(topology.partitions)]
    limits = np.broadcast_to(UNLIMITED if capacity is None else capacity, topology.partitions)
    v = topology.num_vertices
    owner_columns, rooms = [], []
    for i, (own, mirror) in enumerate(zip(owners, mirrors, strict=True)):
        limit = int(limits[i])
        room = limit - window_sizes(own, prefetch, v) - window_sizes(mirror, prefetch, v)
        if room.min(initial=0) < 0:
            batch = int(room.argmin())
            raise BudgetError(
                f"device {i}, batch {batch}: its rows need {limit - int(room[batch])} cache slots, there are {limit}; "
                "raise the device memory or preprocess with more chunks"
            )
        next_use = next_uses(*own, v)
        keep, used = choose_gaps(own[0], next_use, room, prefetch, np.empty(0, np.bool_))
        owner_columns.append(chain(*own, keep, v))
        rooms.append(room - used)
    intervals = [interval_of_request(*own, *columns, v) for own, columns in zip(owners, owner_columns, strict=True)]
    mirror_columns = []
    for mirror, room in zip(mirrors, rooms, strict=True):
        next_use = next_uses(*mirror, v)
        covered = _covered(mirror, tuple(owners), tuple(intervals), v)
        keep, _ = choose_gaps(mirror[0], next_use, room, prefetch, covered)
        mirror_columns.append(chain(*mirror, keep, v))
    return owner_columns, mirror_columns


def window_sizes(requests: Requests, prefetch: int, num_vertices: int) -> np.ndarray:
    """int64 [B], distinct rows that batches b .. b + prefetch request."""
    start, row = requests
    if prefetch == 0:
        return np.diff(start)
    return _window_sizes(start, row, prefetch, num_vertices)


@numba.njit(cache=True, nogil=True)
def _window_sizes(start, row, prefetch, num_vertices):
    num_batches = len(start) - 1
    sizes = np.zeros(num_batches, dtype=np.int64)
    last_seen = np.full(num_vertices, -prefetch - 2, dtype=np.int64)
    for b in range(num_batches):
        for k in range(start[b], start[b + 1]):
            # a row requested in b counts for windows b - prefetch .. b, except those its previous request covers
            begin = max(b - prefetch, last_seen[row[k]] + 1, 0)
            for w in range(begin, b + 1):
                sizes[w] += 1
            last_seen[row[k]] = b
    return sizes


@numba.njit(cache=True, nogil=True)
def choose_gaps(start, next_use, room, prefetch, allowed):
    """Which requests keep their row until the next use.

    A gap from batch j to k takes a slot in batches j + 1 .. k - 1 - prefetch; shorter gaps cost nothing.

    Args:
        room: int64 [B], free slots in each batch beside the rows that the batch itself needs.
        allowed: bool [K], False where the gap must be dropped; empty = all allowed.

    Returns:
        keep bool [K] and used int64 [B], the slots that kept gaps take in each batch.
    """
    num_batches = len(start) - 1
    keep = next_use >= 0
    newest = np.full(num_batches + 1, -1, dtype=np.int64)  # the open gaps by last batch occupied, as linked lists
    below = np.full(len(next_use), -1, dtype=np.int64)
    size = np.zeros(num_batches + 1, dtype=np.int64)
    used = np.zeros(num_batches, dtype=np.int64)
    active = 0
    top = 0
    for t in range(num_batches):
        if t > 0:
            active -= size[t - 1]
            for k in range(start[t - 1], start[t]):
                end = next_use[k] - 1 - prefetch
                if len(allowed) > 0 and not allowed[k]:
                    keep[k] = False
                elif keep[k] and end >= t:
                    below[k] = newest[end]
                    newest[end] = k
                    size[end] += 1
                    active += 1
                    top = max(top, end)
        while active > room[t]:
            while size[top] == 0:
                top -= 1
            k = newest[top]
            newest[top] = below[k]
            size[top] -= 1
            active -= 1
            keep[k] = False
        used[t] = active
    return keep, used


@numba.njit(cache=True, nogil=True)
def interval_of_request(start, row, interval_row, first, last, num_vertices):
    """int64 [K], the interval (sorted by first) that serves each request."""
    current = np.full(num_vertices, -1, dtype=np.int64)
    out = np.empty(len(row), dtype=np.int64)
    at = 0
    for b in range(len(start) - 1):
        while at < len(first) and first[at] == b:
            current[interval_row[at]] = at
            at += 1
        for k in range(start[b], start[b + 1]):
            out[k] = current[row[k]]
    return out


@numba.njit(cache=True, nogil=True)
def _covered(mirror, owners, intervals, num_vertices):
    """bool [K], whether the owner keeps each mirror request's row until the mirror's next request."""
    mirror_start, mirror_row = mirror
    current = np.full(num_vertices, -1, dtype=np.int64)
    previous = np.full(num_vertices, -1, dtype=np.int64)  # the mirror's last request of a row
    owner_interval = np.full(len(mirror_row), -1, dtype=np.int64)
    covered = np.zeros(len(mirror_row), dtype=np.bool_)
    for b in range(len(mirror_start) - 1):
        for p in range(len(owners)):
            start, row = owners[p]
            for k in range(start[b], start[b + 1]):
                current[row[k]] = intervals[p][k]
        for k in range(mirror_start[b], mirror_start[b + 1]):
            r = mirror_row[k]
            owner_interval[k] = current[r]
            if previous[r] >= 0 and owner_interval[previous[r]] == current[r]:
                covered[previous[r]] = True
            previous[r] = k
    return covered

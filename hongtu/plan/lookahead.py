"""The lookahead policy: which rows to keep between uses when the whole schedule is known (Belady).

Keeping a row from a use in batch j to its next use in batch k saves one transfer and takes a slot in the batches
between. Choosing the most gaps under a room that varies by batch is interval scheduling: whenever more gaps are open
than there is room, drop the one that ends last (optimal, Belady's farthest next use).

Owners choose first, so host loads are as few as the capacity allows; mirrors then use the room that is left, and only
where the owner keeps the row over the whole gap. Where rows of peers cost enough beside rows of the host, a plan in
which owners and mirrors choose together may be cheaper (fewer pulls, more loads): then it is taken (Equation 4).
"""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np

from hongtu.errors import BudgetError
from hongtu.plan.intervals import chain
from hongtu.plan.reuse import Requests, Uses, uses_of
from hongtu.topology import Topology

Columns = tuple[np.ndarray, np.ndarray, np.ndarray]  # row, first, last of intervals
UNLIMITED = np.iinfo(np.int64).max // 2
ALL = np.empty(0, dtype=np.bool_)  # every gap may be kept
DEAR_PEERS = 0.5  # from this cost on, counting lets owners and mirrors choose together


def lookahead_intervals(
    topology: Topology,
    schedule: np.ndarray,
    capacity: Sequence[int] | int | None,
    prefetch: int = 0,
    peer_cost: float = 0.0,
) -> tuple[list[Columns], list[Columns]]:
    """Owner and mirror intervals of every device.

    Args:
        schedule: int32 [m, B].
        capacity: slots of each device, one number for all, or None for as many as there are rows.
        prefetch: batches ahead of its first use that a row is brought.
        peer_cost: seconds that a row of a peer takes, in those of a row of the host.

    Raises:
        BudgetError: when one batch (with the ``prefetch`` next ones) needs more slots than ``capacity``.
    """
    uses, v = uses_of(topology, schedule), topology.num_vertices
    rooms = _rooms(uses, capacity, prefetch)
    kept = [choose_gaps(u.own[0], u.own_next, room, prefetch, ALL) for u, room in zip(uses, rooms, strict=True)]
    found = _finish(uses, kept, rooms, prefetch, v)
    if topology.partitions == 1 or peer_cost == 0 or capacity is None:
        return found
    kept = [_choose_together(u, room, prefetch) for u, room in zip(uses, rooms, strict=True)]
    together = _finish(uses, kept, rooms, prefetch, v)
    return min((found, together), key=lambda columns: _cost(columns, peer_cost))


def count_lookahead(
    topology: Topology, schedule: np.ndarray, capacity: Sequence[int] | int | None, peer_cost: float = 0.0
) -> list[tuple[int, int]]:
    """Per device, about how many rows are loaded and pulled: what ``lookahead_intervals`` gives, but mirrors are
    taken to find their owner's row wherever they look, and only one of the two ways to choose is tried: the one that
    is likelier at this cost of peers. Exact with one device.

    Raises:
        BudgetError: as there.
    """
    uses = uses_of(topology, schedule)
    together = topology.partitions > 1 and peer_cost >= DEAR_PEERS
    counts = []
    for u, room in zip(uses, _rooms(uses, capacity, 0), strict=True):
        keep = _choose_together(u, room) if together else choose_gaps(u.own[0], u.own_next, room, 0, ALL)
        left = room - gap_slots(u.own[0], u.own_next, keep, 0)
        mirrors = choose_gaps(u.mirror[0], u.mirror_next, left, 0, ALL)
        counts.append((len(keep) - int(np.count_nonzero(keep)), len(mirrors) - int(np.count_nonzero(mirrors))))
    return counts


def _rooms(uses: list[Uses], capacity: Sequence[int] | int | None, prefetch: int) -> list[np.ndarray]:
    """Per device int64 [B], slots beside those that each batch's own rows take."""
    limits = np.broadcast_to(UNLIMITED if capacity is None else capacity, len(uses))
    rooms = []
    for i, u in enumerate(uses):
        room = limits[i] - window_sizes(u.own, prefetch, u.num_vertices)
        room = room - window_sizes(u.mirror, prefetch, u.num_vertices)
        if room.min(initial=0) < 0:
            batch = int(room.argmin())
            raise BudgetError(
                f"device {i}, batch {batch}: its rows need {int(limits[i] - room[batch])} cache slots, there are "
                f"{limits[i]}; raise the device memory or preprocess with more chunks"
            )
        rooms.append(room)
    return rooms


def _choose_together(uses: Uses, room: np.ndarray, prefetch: int = 0) -> np.ndarray:
    """bool [K], the owner's gaps that stay when its gaps and its mirrors' compete for the same room."""
    own_start, mirror_start = uses.own[0], uses.mirror[0]
    own_at = np.arange(len(uses.own_next)) + np.repeat(mirror_start[:-1], np.diff(own_start))
    mirror_at = np.arange(len(uses.mirror_next)) + np.repeat(own_start[1:], np.diff(mirror_start))
    next_use = np.empty(len(own_at) + len(mirror_at), dtype=np.int32)
    next_use[own_at], next_use[mirror_at] = uses.own_next, uses.mirror_next
    return choose_gaps(own_start + mirror_start, next_use, room, prefetch, ALL)[own_at]


def _finish(
    uses: list[Uses], kept: list[np.ndarray], rooms: list[np.ndarray], prefetch: int, v: int
) -> tuple[list[Columns], list[Columns]]:
    """All intervals, once the owners' gaps are chosen: mirrors take the room that is left."""
    owners = tuple(u.own for u in uses)
    owner_columns = [chain(*own, keep, v) for own, keep in zip(owners, kept, strict=True)]
    intervals = tuple(interval_of_request(*own, *found, v) for own, found in zip(owners, owner_columns, strict=True))
    mirror_columns = []
    for u, keep, room in zip(uses, kept, rooms, strict=True):
        left = room - gap_slots(u.own[0], u.own_next, keep, prefetch)
        covered = _covered(u.mirror, owners, intervals, v)
        mirror_columns.append(chain(*u.mirror, choose_gaps(u.mirror[0], u.mirror_next, left, prefetch, covered), v))
    return owner_columns, mirror_columns


def _cost(columns: tuple[list[Columns], list[Columns]], peer_cost: float) -> float:
    """Equation 4 in rows of the host; rows that stay where they are cost nothing, as with in-place reuse."""
    owners, mirrors = columns
    return sum(len(row) for row, _, _ in owners) + peer_cost * sum(len(row) for row, _, _ in mirrors)


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
        bool [K].
    """
    num_batches = len(start) - 1
    keep = next_use >= 0
    newest = np.full(num_batches + 1, -1, dtype=np.int64)  # the open gaps by last batch occupied, as linked lists
    below = np.full(len(next_use), -1, dtype=np.int64)
    size = np.zeros(num_batches + 1, dtype=np.int64)
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
    return keep


@numba.njit(cache=True, nogil=True)
def gap_slots(start, next_use, keep, prefetch):
    """int64 [B], slots that kept gaps take in each batch."""
    num_batches = len(start) - 1
    change = np.zeros(num_batches + 1, dtype=np.int64)
    for b in range(num_batches):
        for k in range(start[b], start[b + 1]):
            if keep[k] and next_use[k] - prefetch > b + 1:
                change[b + 1] += 1
                change[next_use[k] - prefetch] -= 1
    return np.cumsum(change)[:num_batches]


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

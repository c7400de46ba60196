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

import numpy as np

from hongtu.errors import BudgetError
from hongtu.graph.neighbour_sets import count_below
from hongtu.graph.topology import Topology
from hongtu.plan.cache.gaps import ALL, bridged, choose_gaps, count_gaps, gap_slots, merge_gaps
from hongtu.plan.cache.intervals import Columns
from hongtu.plan.cache.reuse import Uses, uses_of

UNLIMITED = np.iinfo(np.int64).max // 2
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
    uses = uses_of(topology, schedule)
    rooms = _rooms(uses, capacity, prefetch)
    kept = [choose_gaps(u.own.gaps, room, prefetch) for u, room in zip(uses, rooms, strict=True)]
    found = _finish(uses, kept, rooms, prefetch)
    if topology.partitions == 1 or peer_cost == 0 or capacity is None:
        return found
    kept = [_choose_together(u, room, prefetch) for u, room in zip(uses, rooms, strict=True)]
    together = _finish(uses, kept, rooms, prefetch)
    return min((found, together), key=lambda columns: _cost(columns, peer_cost))


def count_lookahead(
    topology: Topology,
    schedule: np.ndarray,
    capacity: Sequence[int] | int | None,
    prefetch: int = 0,
    peer_cost: float = 0.0,
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
    for u, room in zip(uses, _rooms(uses, capacity, prefetch), strict=True):
        kept = _choose_together(u, room, prefetch) if together else choose_gaps(u.own.gaps, room, prefetch)
        mirrors = choose_gaps(u.mirror.gaps, room - gap_slots(u.own.gaps, kept, prefetch), prefetch)
        counts.append((len(u.own.row) - int(kept.sum()), len(u.mirror.row) - int(mirrors.sum())))
    return counts


def _rooms(uses: list[Uses], capacity: Sequence[int] | int | None, prefetch: int) -> list[np.ndarray]:
    """Per device int64 [B], slots beside those that each batch's own rows take."""
    limits = np.broadcast_to(UNLIMITED if capacity is None else capacity, len(uses))
    rooms = []
    for i, u in enumerate(uses):
        room = limits[i] - u.window_rows(prefetch)
        if room.min(initial=0) < 0:
            batch = int(room.argmin())
            raise BudgetError(
                f"device {i}, batch {batch}: its rows need {int(limits[i] - room[batch])} cache slots, there are "
                f"{limits[i]}; raise the device memory or preprocess with more chunks"
            )
        rooms.append(room)
    return rooms


def _choose_together(uses: Uses, room: np.ndarray, prefetch: int) -> np.ndarray:
    """int32 [G], the owner's gaps that stay when its gaps and its mirrors' compete for the same room."""
    gaps, own = merge_gaps(uses.own.gaps, uses.mirror.gaps)
    return np.asarray(choose_gaps(gaps, room, prefetch)[own])


def _finish(
    uses: list[Uses], kept: list[np.ndarray], rooms: list[np.ndarray], prefetch: int
) -> tuple[list[Columns], list[Columns]]:
    """All intervals, once the owners' gaps are chosen: mirrors take the room that is left."""
    owner_columns = []
    for u, count in zip(uses, kept, strict=True):
        owner_columns.append(u.own.intervals(bridged(u.own.start, u.own.next_use, ALL, u.own.gaps, count)))
    mirror_columns = []
    for u, count, room in zip(uses, kept, rooms, strict=True):
        next_use = u.mirror.next_use
        covered = _covered(u.mirror, next_use, owner_columns)
        gaps = count_gaps(u.mirror.start, next_use, covered)
        chosen = choose_gaps(gaps, room - gap_slots(u.own.gaps, count, prefetch), prefetch)
        mirror_columns.append(u.mirror.intervals(bridged(u.mirror.start, next_use, covered, gaps, chosen)))
    return owner_columns, mirror_columns


def _cost(columns: tuple[list[Columns], list[Columns]], peer_cost: float) -> float:
    """Equation 4 in rows of the host; rows that stay where they are cost nothing, as with in-place reuse."""
    owners, mirrors = columns
    return sum(len(row) for row, _, _ in owners) + peer_cost * sum(len(row) for row, _, _ in mirrors)


def _covered(requests, next_use, owners):
    """bool [K], whether the owner keeps the row of a mirror's request until the mirror's next request.

    Args:
        owners: the interval columns of every device.
    """
    start, row = requests.start, requests.row
    kept_until = np.full(requests.num_vertices, -1, dtype=np.int32)
    covered = np.zeros(len(row), dtype=np.bool_)
    for b in range(len(start) - 1):
        for interval_row, first, last in owners:
            opening = slice(*count_below(first, (b, b + 1)))
            kept_until[interval_row[opening]] = last[opening]
        mine = slice(start[b], start[b + 1])
        covered[mine] = (next_use[mine] >= 0) & (next_use[mine] <= kept_until[row[mine]])
    return covered

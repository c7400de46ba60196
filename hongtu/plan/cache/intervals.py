"""Intervals: which row lives in which slot of one device's cache, from which batch to which.

Read forward, an interval *opens* by a load or a pull before its first batch and *retires* after its last.
Read backward, it opens after its last batch (zeroed for gradients, filled for recomputation) and ends before
its first with a push or a flush.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hongtu.compiled import compiled


@dataclass(frozen=True)
class Intervals:
    """K cache intervals of one device over B batches, sorted by (first, row).

    Attributes:
        row: int32 [K], vertex (new id).
        slot: int32 [K], position in the device's cache.
        first, last: int32 [K], first and last batch of the interval, inclusive.
        peer: int32 [K], device to pull from; empty where rows come from the host.
        peer_slot: int32 [K], slot of the owner's row; empty likewise.
        first_start: int64 [B + 1], intervals ``first_start[b] : first_start[b + 1]`` open before batch b.
        by_last: int32 [K], the intervals sorted by last, those of a batch by peer, as those that open in one are.
        last_start: int64 [B + 1], ``by_last[last_start[b] : last_start[b + 1]]`` retire after batch b.
    """

    row: np.ndarray
    slot: np.ndarray
    first: np.ndarray
    last: np.ndarray
    peer: np.ndarray
    peer_slot: np.ndarray
    first_start: np.ndarray
    by_last: np.ndarray
    last_start: np.ndarray

    def __len__(self) -> int:
        return len(self.row)

    def opening(self, batch: int) -> slice:
        """The intervals whose first batch is ``batch``."""
        return slice(int(self.first_start[batch]), int(self.first_start[batch + 1]))

    def retiring(self, batch: int) -> np.ndarray:
        """int32, the intervals whose last batch is ``batch``."""
        return self.by_last[self.last_start[batch] : self.last_start[batch + 1]]


def make_intervals(
    row: np.ndarray,
    slot: np.ndarray,
    first: np.ndarray,
    last: np.ndarray,
    num_batches: int,
    peer: np.ndarray | None = None,
    peer_slot: np.ndarray | None = None,
) -> Intervals:
    """Index interval columns, which are sorted by (first, row), by first and by last batch."""
    none = np.empty(0, dtype=np.int32)
    if peer is None:
        by_last, last_start = by_batch(last, num_batches)
    else:  # by last batch, and in it by peer
        by_peer, _ = by_batch(peer + 1, int(peer.max(initial=0)) + 2)
        order, last_start = by_batch(last[by_peer], num_batches)
        by_last = by_peer[order]
    return Intervals(
        row=row,
        slot=slot,
        first=first,
        last=last,
        peer=none if peer is None else peer,
        peer_slot=none if peer_slot is None else peer_slot,
        first_start=np.searchsorted(first, np.arange(num_batches + 1)),
        by_last=by_last,
        last_start=last_start,
    )


@compiled
def by_batch(batch, num_batches):
    """Stable counting sort: int32 [K] order and int64 [B + 1] starts.

    >>> order, start = by_batch(np.array([1, 0, 1]), 2)
    >>> order.tolist(), start.tolist()
    ([1, 0, 2], [0, 1, 3])
    """
    start = np.zeros(num_batches + 1, dtype=np.int64)
    for k in range(len(batch)):
        start[batch[k] + 1] += 1
    start = np.cumsum(start)
    at = start[:-1].copy()
    order = np.empty(len(batch), dtype=np.int32)
    for k in range(len(batch)):
        order[at[batch[k]]] = k
        at[batch[k]] += 1
    return order, start


@compiled
def assign_slots(first, last, num_batches):
    """Slots for intervals sorted by ``first``: a slot is free again from the batch after ``last``.

    Args:
        first, last: int32 [K].

    Returns:
        slot int32 [K] and the capacity: the largest number of intervals alive in one batch.

    >>> slot, capacity = assign_slots(np.array([0, 0, 1, 2]), np.array([0, 2, 1, 2]), 3)
    >>> slot.tolist(), capacity
    ([0, 1, 0, 0], 2)
    """
    retiring, _ = by_batch(last, num_batches)
    slot = np.empty(len(first), dtype=np.int32)
    free = np.empty(len(first), dtype=np.int32)
    num_free = 0
    capacity = 0
    freed = 0
    for k in range(len(first)):
        while freed < len(retiring) and last[retiring[freed]] < first[k]:
            free[num_free] = slot[retiring[freed]]
            num_free += 1
            freed += 1
        if num_free > 0:
            num_free -= 1
            slot[k] = free[num_free]
        else:
            slot[k] = capacity
            capacity += 1
    return slot, capacity


@compiled
def next_uses(start, row, num_vertices):
    """int32 [K], the batch of each request's next request of the same row, or -1.

    >>> next_uses(np.array([0, 2, 3, 5]), np.array([3, 7, 3, 3, 7]), 8).tolist()  # batches {3, 7}, {3}, {3, 7}
    [1, 2, 2, -1, -1]
    """
    ahead = np.full(num_vertices, -1, dtype=np.int32)
    out = np.empty(len(row), dtype=np.int32)
    for b in range(len(start) - 2, -1, -1):
        for k in range(start[b], start[b + 1]):
            out[k] = ahead[row[k]]
        for k in range(start[b], start[b + 1]):
            ahead[row[k]] = b
    return out


@compiled
def chain(start, row, keep, num_vertices):
    """Intervals (row, first, last) int32 [K] from requests and which of them keep their row until the next use."""
    kept = np.zeros(num_vertices, dtype=np.bool_)
    count = 0
    for k in range(len(row)):
        count += not kept[row[k]]
        kept[row[k]] = keep[k]
    out_row, first, last = np.empty(count, np.int32), np.empty(count, np.int32), np.empty(count, np.int32)
    open_interval = np.full(num_vertices, -1, dtype=np.int32)
    count = 0
    for b in range(len(start) - 1):
        for k in range(start[b], start[b + 1]):
            r = row[k]
            i = open_interval[r]
            if i < 0:
                i = count
                out_row[i], first[i] = r, b
                count += 1
            last[i] = b
            open_interval[r] = i if keep[k] else -1
    return out_row, first, last

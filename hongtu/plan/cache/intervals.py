"""Intervals: which row lives in which slot of one device's cache, from which batch to which.

Read forward, an interval *opens* by a load or a pull before its first batch and *retires* after its last.
Read backward, it opens after its last batch (zeroed for gradients, filled for recomputation) and ends before
its first with a push or a flush.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hongtu.graph.neighbour_sets import count_below

Columns = tuple[np.ndarray, np.ndarray, np.ndarray]  # int32 [K] each: row, first, last of intervals by (first, row)


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

    @property
    def num_batches(self) -> int:
        return len(self.first_start) - 1

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
        first_start=count_below(first, range(num_batches + 1)),
        by_last=by_last,
        last_start=last_start,
    )


def by_batch(batch: np.ndarray, num_batches: int) -> tuple[np.ndarray, np.ndarray]:
    """Sort by batch: int32 [K] order, of a batch as they come, and int64 [B + 1] starts.

    >>> order, start = by_batch(np.array([1, 0, 1]), 2)
    >>> order.tolist(), start.tolist()
    ([1, 0, 2], [0, 1, 3])
    """
    short = batch.astype(np.uint16) if num_batches <= 1 << 16 else batch  # which numpy sorts by counting
    count = np.bincount(batch, minlength=num_batches)
    return np.argsort(short, kind="stable").astype(np.int32), np.concatenate([[0], np.cumsum(count)])


def assign_slots(first: np.ndarray, last: np.ndarray, num_batches: int) -> tuple[np.ndarray, int]:
    """Slots for intervals sorted by ``first``: a slot is free again from the batch after ``last``.

    Args:
        first, last: int32 [K].

    Returns:
        slot int32 [K] and the capacity: the largest number of intervals alive in one batch.

    >>> slot, capacity = assign_slots(np.array([0, 0, 1, 2]), np.array([0, 2, 1, 2]), 3)
    >>> slot.tolist(), capacity
    ([0, 1, 0, 0], 2)
    """
    retiring, start = by_batch(last, num_batches)
    slot = np.empty(len(first), dtype=np.int32)
    free = np.empty(len(first), dtype=np.int32)  # a stack
    num_free, capacity, opened = 0, 0, count_below(first, range(num_batches + 1))
    for b in range(num_batches):
        if b > 0:
            freed = slot[retiring[start[b - 1] : start[b]]]
            free[num_free : num_free + len(freed)] = freed
            num_free += len(freed)
        count = int(opened[b + 1] - opened[b])
        again = min(count, num_free)
        mine = slot[opened[b] : opened[b + 1]]
        mine[:again] = free[num_free - again : num_free][::-1]
        mine[again:] = np.arange(capacity, capacity + count - again)
        num_free -= again
        capacity += count - again
    return slot, capacity


def next_uses(start: np.ndarray, row: np.ndarray, num_vertices: int) -> np.ndarray:
    """int32 [K], the batch of each request's next request of the same row, or -1; a batch requests a row once.

    >>> next_uses(np.array([0, 2, 3, 5]), np.array([3, 7, 3, 3, 7]), 8).tolist()  # batches {3, 7}, {3}, {3, 7}
    [1, 2, 2, -1, -1]
    """
    ahead = np.full(num_vertices, -1, dtype=np.int32)
    out = np.empty(len(row), dtype=np.int32)
    for b in range(len(start) - 2, -1, -1):
        rows = row[start[b] : start[b + 1]]
        out[start[b] : start[b + 1]] = ahead[rows]
        ahead[rows] = b
    return out


def chain(start: np.ndarray, row: np.ndarray, keep: np.ndarray, num_vertices: int) -> Columns:
    """Intervals (row, first, last) int32 [K] from requests and which of them keep their row until the next use."""
    out_row, first, last = (np.empty(len(row), np.int32) for _ in range(3))
    open_interval = np.full(num_vertices, -1, dtype=np.int32)
    count = 0
    for b in range(len(start) - 1):
        rows, stay = row[start[b] : start[b + 1]], keep[start[b] : start[b + 1]]
        interval = open_interval[rows]
        new = interval < 0
        end = count + np.count_nonzero(new)
        interval[new] = np.arange(count, end)
        out_row[count:end], first[count:end] = rows[new], b
        last[interval] = b
        open_interval[rows] = np.where(stay, interval, -1)
        count = end
    return out_row[:count].copy(), first[:count].copy(), last[:count].copy()

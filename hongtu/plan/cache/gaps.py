"""Which gaps between uses a cache bridges (Belady's choice), counted in groups.

A gap from a use in batch j to the next use of the same row in batch k is bridged by keeping the row, which saves one
transfer and takes a slot in the batches between. All gaps from j to k are alike, so only their number matters: the
choice takes as long as there are pairs (j, k), whatever the graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from hongtu.compiled import compiled

ALL = np.empty(0, dtype=np.bool_)  # every gap may be kept


class Gaps(NamedTuple):
    """The gaps of one device's requests, alike ones counted: gaps ``start[b] : start[b + 1]`` begin in batch b.

    Attributes:
        start: int64 [B + 1].
        end: int32 [G], batch in which the row is used next.
        number: int32 [G].
    """

    start: np.ndarray
    end: np.ndarray
    number: np.ndarray


def count_gaps(request_start: np.ndarray, next_use: np.ndarray, allowed: np.ndarray) -> Gaps:
    """The gaps of requests.

    Args:
        request_start: int64 [B + 1].
        next_use: int32 [K], batch of each request's next request, or -1.
        allowed: bool [K], False for gaps that must not be kept, or ``ALL``.

    >>> start, end, count = count_gaps(np.array([0, 3, 5, 6]), np.array([1, 1, 2, -1, -1, -1]), ALL)
    >>> start.tolist(), end.tolist(), count.tolist()
    ([0, 2, 2, 2], [1, 2], [2, 1])
    """
    start, ends, numbers = [0], [np.empty(0, dtype=np.int32)], [np.empty(0, dtype=np.int32)]
    for _, following in _batches(request_start, next_use, allowed):
        number = np.bincount(following + 1)[1:]
        end = np.flatnonzero(number)
        ends.append(end.astype(np.int32))
        numbers.append(number[end].astype(np.int32))
        start.append(start[-1] + len(end))
    return Gaps(np.array(start), np.concatenate(ends), np.concatenate(numbers))


def _batches(
    request_start: np.ndarray, next_use: np.ndarray, allowed: np.ndarray
) -> Iterator[tuple[slice, np.ndarray]]:
    """The requests of each batch, and where the gap ends that each begins; -1 where it begins none that may be kept."""
    for first, end in pairwise(request_start.tolist()):
        mine = slice(first, end)
        yield mine, np.where(allowed[mine], next_use[mine], -1) if len(allowed) else next_use[mine]


def merge_gaps(one: Gaps, other: Gaps) -> tuple[Gaps, np.ndarray]:
    """The gaps of two kinds of requests in one list, those of ``one`` first in every batch, and where they are."""
    at = np.arange(len(one.end)) + np.repeat(other.start[:-1], np.diff(one.start))
    other_at = np.arange(len(other.end)) + np.repeat(one.start[1:], np.diff(other.start))
    end, count = (np.empty(len(at) + len(other_at), dtype=np.int32) for _ in range(2))
    end[at], end[other_at] = one.end, other.end
    count[at], count[other_at] = one.number, other.number
    return Gaps(one.start + other.start, end, count), at


@compiled(plain=True)
def choose_gaps(gaps, room, prefetch):
    """How many gaps of each kind to keep.

    A gap from batch j to k takes a slot in batches j + 1 .. k - 1 - prefetch; shorter gaps cost nothing.

    Args:
        gaps: Gaps.
        room: int64 [B], free slots in each batch beside the rows that the batch itself needs.

    Returns:
        int32 [G].
    """
    num_batches = len(gaps.start) - 1
    kept = gaps.number.copy()
    newest = np.full(num_batches + 1, -1, dtype=np.int64)  # the open gaps by last batch occupied, as linked lists
    below = np.full(len(kept), -1, dtype=np.int64)
    size = np.zeros(num_batches + 1, dtype=np.int64)
    active = 0
    top = 0
    for t in range(num_batches):
        if t > 0:
            active -= size[t - 1]
            for g in range(gaps.start[t - 1], gaps.start[t]):
                end = gaps.end[g] - 1 - prefetch
                if end >= t:
                    below[g] = newest[end]
                    newest[end] = g
                    size[end] += kept[g]
                    active += kept[g]
                    top = max(top, end)
        while active > room[t]:
            while size[top] == 0:
                top -= 1
            g = newest[top]
            dropped = min(kept[g], active - room[t])
            kept[g] -= dropped
            size[top] -= dropped
            active -= dropped
            if kept[g] == 0:
                newest[top] = below[g]
    return kept


def gap_slots(gaps: Gaps, kept: np.ndarray, prefetch: int) -> np.ndarray:
    """int64 [B], slots that kept gaps take in each batch."""
    num_batches = len(gaps.start) - 1
    begin, end = np.repeat(np.arange(num_batches), np.diff(gaps.start)) + 1, gaps.end - prefetch
    takes = end > begin
    opened, closed = (np.bincount(at[takes], kept[takes], num_batches + 1) for at in (begin, end))
    return np.cumsum((opened - closed).astype(np.int64))[:num_batches]


def bridged(
    request_start: np.ndarray, next_use: np.ndarray, allowed: np.ndarray, gaps: Gaps, kept: np.ndarray
) -> np.ndarray:
    """bool [K], the requests whose row stays until its next use: of alike gaps the first ``kept``."""
    stays, whole = np.zeros(len(next_use), dtype=np.bool_), np.zeros(len(gaps.start), dtype=np.bool_)
    for (mine, following), first, end in zip(
        _batches(request_start, next_use, allowed), gaps.start[:-1], gaps.start[1:], strict=True
    ):
        ends, some = gaps.end[first:end], kept[first:end]
        all_stay = some == gaps.number[first:end]
        whole[ends] = all_stay
        stays[mine] = whole[following]  # -1 finds the last, which no gap ends in
        whole[ends] = False
        for k in np.flatnonzero(~all_stay & (some > 0)):
            stays[mine.start + np.flatnonzero(following == ends[k])[: some[k]]] = True
    return stays

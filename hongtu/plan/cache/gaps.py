"""Which gaps between uses a cache bridges (Belady's choice), counted in groups.

A gap from a use in batch j to the next use of the same row in batch k is bridged by keeping the row, which saves one
transfer and takes a slot in the batches between. All gaps from j to k are alike, so only their number matters: the
choice takes as long as there are pairs (j, k), whatever the graph.
"""

from __future__ import annotations

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
    return Gaps(*_count_gaps(request_start, next_use, allowed))


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


def _alike(request_start, next_use, allowed):
    """Which requests begin a gap that may be kept, and of each of them, where it begins and ends as one number."""
    which = np.flatnonzero((next_use >= 0) & allowed if len(allowed) else next_use >= 0)
    begin = np.searchsorted(request_start, which, side="right") - 1
    return which, begin * (len(request_start) - 1) + next_use[which]


def _bridged_arrays(request_start, next_use, allowed, gaps, kept):
    """As ``bridged``."""
    which, key = _alike(request_start, next_use, allowed)
    order = np.argsort(key, kind="stable")
    key, num_batches = key[order], len(request_start) - 1
    of_gap = np.repeat(np.arange(num_batches), np.diff(gaps.start)) * num_batches + gaps.end
    by_key = np.argsort(of_gap)
    most = kept[by_key[np.searchsorted(of_gap[by_key], key)]]
    stays = np.zeros(len(next_use), dtype=np.bool_)
    stays[which[order[np.arange(len(key)) - np.searchsorted(key, key) < most]]] = True
    return stays


def _count_gaps_arrays(request_start, next_use, allowed):
    """As ``_count_gaps``."""
    num_batches = len(request_start) - 1
    key, first, number = np.unique(_alike(request_start, next_use, allowed)[1], return_index=True, return_counts=True)
    key, number = (found[np.argsort(first)] for found in (key, number))
    begin, end = np.divmod(key, max(1, num_batches))
    return np.searchsorted(begin, np.arange(num_batches + 1)), end.astype(np.int32), number.astype(np.int32)


@compiled(plain=_bridged_arrays)
def bridged(request_start, next_use, allowed, gaps, kept):
    """bool [K], the requests whose row stays until its next use: of alike gaps the first ``kept``."""
    num_batches = len(request_start) - 1
    left = np.zeros(num_batches + 1, dtype=np.int64)
    stays = np.zeros(len(next_use), dtype=np.bool_)
    for b in range(num_batches):
        for g in range(gaps.start[b], gaps.start[b + 1]):
            left[gaps.end[g]] = kept[g]
        for k in range(request_start[b], request_start[b + 1]):
            end = next_use[k]
            if end >= 0 and left[end] > 0 and (len(allowed) == 0 or allowed[k]):
                left[end] -= 1
                stays[k] = True
    return stays


@compiled(plain=_count_gaps_arrays)
def _count_gaps(request_start, next_use, allowed):
    num_batches = len(request_start) - 1
    most = 0
    for b in range(num_batches):
        most += min(request_start[b + 1] - request_start[b], num_batches - 1 - b)
    start = np.zeros(num_batches + 1, dtype=np.int64)
    end, count = np.empty(most, dtype=np.int32), np.empty(most, dtype=np.int32)
    tally = np.zeros(num_batches, dtype=np.int32)
    at = 0
    for b in range(num_batches):
        for k in range(request_start[b], request_start[b + 1]):
            n = next_use[k]
            if n >= 0 and (len(allowed) == 0 or allowed[k]):
                if tally[n] == 0:
                    end[at] = n
                    at += 1
                tally[n] += 1
        for g in range(start[b], at):
            count[g] = tally[end[g]]
            tally[end[g]] = 0
        start[b + 1] = at
    return start, end[:at].copy(), count[:at].copy()

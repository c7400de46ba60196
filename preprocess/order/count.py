"""How many rows a step order loads from the host under lookahead, counted from a histogram of gaps.

For unit rows and a fixed order of steps the fewest loads under any capacity depend only on how many rows have
consecutive uses in steps j and k. Building the histogram is
O(E); evaluating a capacity is O(B^2).

Legend: V vertices, E edges, m devices, B steps (batches).
"""

from __future__ import annotations

import numpy as np

from hongtu.compiled import compiled
from hongtu.graph.neighbour_sets import distinct


def count_loads(
    order: np.ndarray,
    chunk_start: np.ndarray,
    part: np.ndarray,
    partitions: int,
    in_edge_start: np.ndarray,
    source: np.ndarray,
    capacity: np.ndarray | None,
) -> tuple[int, np.ndarray]:
    """Rows loaded from the host in one pass over an order's chunks, caches cold.

    Args:
        order: int32 [V], vertices (ids of the CSC) in the order to judge, partition by partition.
        chunk_start: int64 [m * B + 1], positions in ``order``.
        part: int32 [V], partition of every vertex.
        in_edge_start, source: the graph's CSC.
        capacity: int64 [m], slots per device; None: what the paper's reuse would need.

    Returns:
        the rows, and the slots that each device's largest step needs, int64 [m]; where these exceed ``capacity`` the
        order does not fit and the rows mean nothing.

    >>> starts, source = np.array([0, 1, 2, 3, 3]), np.array([3, 0, 3])  # 3->0, 0->1, 3->2; a chunk per vertex
    >>> each, one = np.arange(4, dtype=np.int32), np.zeros(4, dtype=np.int32)
    >>> [count_loads(each, np.arange(5), one, 1, starts, source, np.array([slots]))[0] for slots in (1, 2)]
    [3, 2]
    """
    gaps, owned, mirrored = _gap_histogram(order, chunk_start, part, partitions, in_edge_start, source)
    needed = (owned + mirrored).max(axis=1, initial=0)
    capacity = needed if capacity is None else capacity
    rows = int(owned.sum())
    for i in range(partitions):
        rows -= _kept_gaps(gaps[i], capacity[i] - owned[i] - mirrored[i])
    return rows, needed


def _plain_gap_histogram(order, chunk_start, part, m, in_edge_start, source):
    steps = (len(chunk_start) - 1) // m
    chunk = np.empty(len(part), dtype=np.int64)  # of every vertex
    chunk[order[chunk_start[0] : chunk_start[-1]]] = np.repeat(np.arange(m * steps), np.diff(chunk_start))
    reader = np.repeat(chunk, np.diff(in_edge_start))
    row, c = np.divmod(distinct(source.astype(np.int64) * (m * steps) + reader), m * steps)
    mirrored = np.bincount(c[part[row] != c // steps], minlength=m * steps)
    row, step = np.divmod(distinct(row * steps + c % steps), steps)
    at = part[row].astype(np.int64) * steps + step
    owned = np.bincount(at, minlength=m * steps)
    again = np.flatnonzero(row[1:] == row[:-1])
    gaps = np.bincount(at[again] * steps + step[again + 1], minlength=m * steps * steps)
    return gaps.reshape(m, steps, steps), owned.reshape(m, steps), mirrored.reshape(m, steps)


@compiled(plain=_plain_gap_histogram)
def _gap_histogram(order, chunk_start, part, m, in_edge_start, source):
    """gaps[i, j, k]: rows of partition i whose consecutive uses are steps j and k; owned[i, j], mirrored[i, j]: rows
    that step j needs on device i of its own partition, and of others."""
    steps = (len(chunk_start) - 1) // m
    gaps = np.zeros((m, steps, steps), dtype=np.int64)
    owned = np.zeros((m, steps), dtype=np.int64)
    mirrored = np.zeros((m, steps), dtype=np.int64)
    last_step = np.full(len(part), -1, dtype=np.int32)
    seen_by = np.full(len(part), -1, dtype=np.int32)
    for b in range(steps):
        for i in range(m):
            c = i * steps + b
            for position in range(chunk_start[c], chunk_start[c + 1]):
                v = order[position]
                for e in range(in_edge_start[v], in_edge_start[v + 1]):
                    r = source[e]
                    if part[r] != i and seen_by[r] != c:
                        seen_by[r] = c
                        mirrored[i, b] += 1
                    if last_step[r] != b:
                        owned[part[r], b] += 1
                        if last_step[r] >= 0:
                            gaps[part[r], last_step[r], b] += 1
                        last_step[r] = b
    return gaps, owned, mirrored


def _kept_gaps(gaps: np.ndarray, room: np.ndarray) -> int:
    """The most gaps that fit: in every step, drop those that end last (see ``hongtu.plan.cache.lookahead``)."""
    ending, kept = np.zeros(len(room), dtype=np.int64), 0  # open gaps by the step of their next use
    for t in range(len(room)):
        kept += int(ending[t])
        ending[t] = 0
        if t > 0:
            kept += int(gaps[t - 1, t])  # the row stays where it is
            ending[t + 1 :] += gaps[t - 1, t + 1 :]
        excess = int(ending.sum() - room[t])
        if excess > 0:
            later = np.cumsum(ending[::-1])[::-1]
            ending -= np.clip(excess - (later - ending), 0, ending)
    return kept

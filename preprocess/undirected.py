"""The graph made undirected: what partitioners and orders look at."""

from __future__ import annotations

import numba
import numpy as np


def symmetric_neighbours(in_edge_start: np.ndarray, source: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Undirected neighbour lists without duplicates and self-loops: starts int64 [V + 1] and neighbours int32.

    >>> start, neighbour = symmetric_neighbours(np.array([0, 2, 3, 4]), np.int32([0, 1, 0, 0]))
    >>> start.tolist(), neighbour.tolist()  # 0->0, 1->0, 0->1, 0->2
    ([0, 2, 3, 4], [1, 2, 0, 0])
    """
    return _symmetric(in_edge_start, source)


@numba.njit(cache=True, nogil=True)
def _symmetric(in_edge_start, source):
    num_vertices = len(in_edge_start) - 1
    room = np.zeros(num_vertices + 1, dtype=np.int64)  # start of each list before duplicates are dropped
    for v in range(num_vertices):
        for e in range(in_edge_start[v], in_edge_start[v + 1]):
            if source[e] != v:
                room[v + 1] += 1
                room[source[e] + 1] += 1
    for v in range(num_vertices):
        room[v + 1] += room[v]
    at = room[:-1].copy()
    neighbour = np.empty(room[num_vertices], dtype=np.int32)
    for v in range(num_vertices):
        for e in range(in_edge_start[v], in_edge_start[v + 1]):
            u = source[e]
            if u != v:
                neighbour[at[v]] = u
                at[v] += 1
                neighbour[at[u]] = v
                at[u] += 1
    start = np.zeros(num_vertices + 1, dtype=np.int64)
    seen_by = np.full(num_vertices, -1, dtype=np.int32)
    kept = 0
    for v in range(num_vertices):
        for e in range(room[v], room[v + 1]):
            u = neighbour[e]
            if seen_by[u] != v:
                seen_by[u] = v
                neighbour[kept] = u
                kept += 1
        start[v + 1] = kept
    return start, neighbour[:kept].copy()

"""The graph read the other way, and made undirected: what partitioners and orders look at.

Legend: V vertices, E edges, A adjacency entries, T threads.
"""

from __future__ import annotations

import numpy as np

from hongtu.compiled import compiled, num_threads, prange
from hongtu.files import in_memory
from hongtu.preprocess.bucket_sort import group_by_key


def transpose(in_edge_start: np.ndarray, source: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Who reads every vertex: starts int64 [V + 1] and destinations int32 [E], ascending. Takes 14 bytes per edge.

    >>> start, reader = transpose(np.array([0, 2, 3, 4]), np.int32([0, 1, 0, 0]))
    >>> start.tolist(), reader.tolist()  # 0->0, 1->0, 0->1, 0->2
    ([0, 3, 4, 4], [0, 1, 2, 0])
    """
    destination = np.empty(source.shape, dtype=np.int32)
    _destinations(in_edge_start, destination)
    return group_by_key([(source, destination)], len(in_edge_start) - 1, in_memory)


def symmetric_neighbours(in_edge_start: np.ndarray, source: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Undirected neighbour lists without duplicates and self-loops: starts int64 [V + 1] and neighbours int32 [A].

    >>> start, neighbour = symmetric_neighbours(np.array([0, 2, 3, 4]), np.int32([0, 1, 0, 0]))
    >>> start.tolist(), neighbour.tolist()  # 0->0, 1->0, 0->1, 0->2
    ([0, 2, 3, 4], [1, 2, 0, 0])
    """
    out_start, reader = transpose(in_edge_start, source)
    bounds = np.linspace(0, len(in_edge_start) - 1, num_threads() + 1).astype(np.int64)
    graph = (in_edge_start, source, out_start, reader, bounds)
    start = np.zeros(len(in_edge_start), dtype=np.int64)
    np.cumsum(_merge(*graph, start, np.empty(0, dtype=np.int32), False), out=start[1:])
    neighbour = np.empty(int(start[-1]), dtype=np.int32)
    _merge(*graph, start, neighbour, True)
    return start, neighbour


def _plain_destinations(in_edge_start, destination):
    destination[:] = np.repeat(np.arange(len(in_edge_start) - 1, dtype=np.int32), np.diff(in_edge_start))


@compiled(plain=_plain_destinations, parallel=True)
def _destinations(in_edge_start, destination):
    for v in prange(len(in_edge_start) - 1):
        destination[in_edge_start[v] : in_edge_start[v + 1]] = v


def _plain_merge(in_edge_start, source, out_start, reader, bounds, start, neighbour, write):
    num_vertices = len(in_edge_start) - 1
    vertex = np.concatenate([np.repeat(np.arange(num_vertices), np.diff(ends)) for ends in (in_edge_start, out_start)])
    other = np.concatenate([source, reader])
    order = np.argsort(vertex, kind="stable")  # the sources of each before its readers
    vertex, other = vertex[order], other[order]
    first = np.sort(np.unique(vertex * num_vertices + other, return_index=True)[1])
    first = first[vertex[first] != other[first]]
    if write:
        neighbour[:] = other[first]
    return np.bincount(vertex[first], minlength=num_vertices)


@compiled(plain=_plain_merge, parallel=True)
def _merge(in_edge_start, source, out_start, reader, bounds, start, neighbour, write):
    """How many neighbours every vertex has, int64 [V]; written to ``neighbour`` where ``start`` says, if ``write``."""
    num_vertices = len(in_edge_start) - 1
    count = np.zeros(num_vertices, dtype=np.int64)
    for t in prange(len(bounds) - 1):
        seen_by = np.full(num_vertices, -1, dtype=np.int32)
        for v in range(bounds[t], bounds[t + 1]):
            seen_by[v] = v
            for e in range(in_edge_start[v], in_edge_start[v + 1]):
                if seen_by[source[e]] != v:
                    seen_by[source[e]] = v
                    if write:
                        neighbour[start[v] + count[v]] = source[e]
                    count[v] += 1
            for e in range(out_start[v], out_start[v + 1]):
                if seen_by[reader[e]] != v:
                    seen_by[reader[e]] = v
                    if write:
                        neighbour[start[v] + count[v]] = reader[e]
                    count[v] += 1
    return count

"""The graph read the other way, and made undirected: what partitioners and orders look at.

Legend: V vertices, E edges, A adjacency entries, T threads.
"""

from __future__ import annotations

import numpy as np

from hongtu.compiled import compiled
from hongtu.files import in_memory
from hongtu.preprocess.bucket_sort import group_by_key
from hongtu.threads import num_threads


def transpose(in_edge_start: np.ndarray, source: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Who reads every vertex: starts int64 [V + 1] and destinations int32 [E], ascending. Takes 14 bytes per edge.

    >>> start, reader = transpose(np.array([0, 2, 3, 4]), np.int32([0, 1, 0, 0]))
    >>> start.tolist(), reader.tolist()  # 0->0, 1->0, 0->1, 0->2
    ([0, 3, 4, 4], [0, 1, 2, 0])
    """
    num_vertices = len(in_edge_start) - 1
    destination = np.repeat(np.arange(num_vertices, dtype=np.int32), np.diff(in_edge_start))
    return group_by_key([(source, destination)], num_vertices, in_memory)


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
    count = np.zeros(len(in_edge_start) - 1, dtype=np.int64)
    _merge.each(len(bounds) - 1, *graph, start, np.empty(0, dtype=np.int32), count)
    np.cumsum(count, out=start[1:])
    neighbour = np.empty(int(start[-1]), dtype=np.int32)
    _merge.each(len(bounds) - 1, *graph, start, neighbour, count)
    return start, neighbour


def _plain_merge(in_edge_start, source, out_start, reader, bounds, start, neighbour, count):
    num_vertices = len(in_edge_start) - 1
    vertex = np.concatenate([np.repeat(np.arange(num_vertices), np.diff(ends)) for ends in (in_edge_start, out_start)])
    other = np.concatenate([source, reader])
    order = np.argsort(vertex, kind="stable")  # the sources of each before its readers
    vertex, other = vertex[order], other[order]
    first = np.sort(np.unique(vertex * num_vertices + other, return_index=True)[1])
    first = first[vertex[first] != other[first]]
    if len(neighbour):
        neighbour[:] = other[first]
    count[:] = np.bincount(vertex[first], minlength=num_vertices)


@compiled(plain=_plain_merge)
def _merge(part, in_edge_start, source, out_start, reader, bounds, start, neighbour, count):
    """How many neighbours every vertex has, to ``count`` int64 [V]; they, to ``neighbour`` where ``start`` says, unless
    that is of length 0."""
    write = len(neighbour) > 0
    seen_by = np.empty(len(count), dtype=np.int32)
    for v in range(len(seen_by)):
        seen_by[v] = -1
    for v in range(bounds[part], bounds[part + 1]):
        seen_by[v] = v
        at = start[v]
        for e in range(in_edge_start[v], in_edge_start[v + 1]):
            if seen_by[source[e]] != v:
                seen_by[source[e]] = v
                if write:
                    neighbour[at] = source[e]
                at += 1
        for e in range(out_start[v], out_start[v + 1]):
            if seen_by[reader[e]] != v:
                seen_by[reader[e]] = v
                if write:
                    neighbour[at] = reader[e]
                at += 1
        count[v] = at - start[v]

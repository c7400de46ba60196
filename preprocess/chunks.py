"""Neighbour sets and local source indices of every chunk: ``build_topology`` in parallel, straight to where they stay.

A chunk marks its sources in a bitmap of all vertices. Read from left to right the bitmap is the ascending neighbour
set, and the bits before a source are its local index: nothing is sorted, and the bitmap stays in the cache.

Legend: V vertices, E edges, C chunks, W words of 64 vertices.
"""

from __future__ import annotations

import numba
import numpy as np

from hongtu.preprocess.bits import count_ones, lowest
from hongtu.preprocess.bucket_sort import Create, in_memory


def neighbour_sets(
    chunk_start: np.ndarray, in_edge_start: np.ndarray, source: np.ndarray, create: Create = in_memory
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """source_start int64 [C + 1], sources int32 [sum |N_c|] and local_source int32 [E] of ``hongtu.topology.Topology``.

    Args:
        chunk_start: int64 [C + 1].
        in_edge_start: int64 [V + 1].
        source: int32 [E], new ids.
        create: makes "sources" and "local_source".

    >>> # five vertices, two chunks {0, 1} and {2, 3, 4}; edges 3->0, 4->1, 3->1, 0->2, 0->4
    >>> found = neighbour_sets(np.array([0, 2, 5]), np.array([0, 1, 3, 4, 4, 5]), np.int32([3, 4, 3, 0, 0]))
    >>> [array.tolist() for array in found]
    [[0, 2, 3], [3, 4, 0], [0, 1, 0, 0, 0]]
    """
    edge_start = np.asarray(in_edge_start)[chunk_start]
    words = (len(in_edge_start) - 1 + 63) // 64
    source_start = np.zeros(len(chunk_start), dtype=np.int64)
    np.cumsum(_set_sizes(edge_start, source, words), out=source_start[1:])
    sources = create("sources", "int32", (int(source_start[-1]),))
    local_source = create("local_source", "int32", source.shape)
    _fill(edge_start, source, words, source_start, sources, local_source)
    return source_start, sources, local_source


@numba.njit(inline="always")
def _mark(source, first, end, words):
    marks = np.zeros(words, dtype=np.uint64)
    for e in range(first, end):
        marks[source[e] >> 6] |= np.uint64(1) << np.uint64(source[e] & 63)
    return marks


@numba.njit(cache=True, parallel=True)
def _set_sizes(edge_start, source, words):
    sizes = np.zeros(len(edge_start) - 1, dtype=np.int64)
    for c in numba.prange(len(edge_start) - 1):
        marks = _mark(source, edge_start[c], edge_start[c + 1], words)
        count = 0
        for w in range(words):
            count += count_ones(marks[w])
        sizes[c] = count
    return sizes


@numba.njit(cache=True, parallel=True)
def _fill(edge_start, source, words, source_start, sources, local_source):
    for c in numba.prange(len(edge_start) - 1):
        marks = _mark(source, edge_start[c], edge_start[c + 1], words)
        before = np.empty(words, dtype=np.int32)
        first = source_start[c]
        at = first
        for w in range(words):
            before[w] = at - first
            left = marks[w]
            while left != 0:
                sources[at] = (w << 6) + lowest(left)
                at += 1
                left &= left - np.uint64(1)
        for e in range(edge_start[c], edge_start[c + 1]):
            w = source[e] >> 6
            below = (np.uint64(1) << np.uint64(source[e] & 63)) - np.uint64(1)
            local_source[e] = before[w] + count_ones(marks[w] & below)

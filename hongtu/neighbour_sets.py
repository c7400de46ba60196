"""The neighbour set of a chunk, and where every edge's source stands in it: what all loops over chunks are made of.

A chunk marks its sources in a bitmap of all vertices. Read from left to right the bitmap is the ascending neighbour
set, and the bits before a source are its local index: nothing is sorted, and the bitmap stays in the cache.

Legend: E edges of a graph, S sources of the chunk, W words of 64 vertices.
"""

from __future__ import annotations

import numba
import numpy as np

from hongtu.bits import count_ones, lowest


@numba.njit(inline="always")
def _mark(source, first, end, words):
    marks = np.zeros(words, dtype=np.uint64)
    for e in range(first, end):
        marks[source[e] >> 6] |= np.uint64(1) << np.uint64(source[e] & 63)
    return marks


@numba.njit(cache=True, nogil=True)
def set_size(source, first, end, words):
    """S of the chunk that has the edges first .. end - 1.

    >>> set_size(np.array([70, 3, 70, 3, 9]), 0, 4, 2)
    2
    """
    marks = _mark(source, first, end, words)
    count = 0
    for w in range(words):
        count += count_ones(marks[w])
    return count


@numba.njit(cache=True, nogil=True)
def fill_set(source, first, end, words, sources, local_source):
    """Writes the chunk's set to ``sources`` [S], and to ``local_source[first:end]`` where each edge's source is in it.

    >>> sources, local_source = np.zeros(2, dtype=np.int32), np.zeros(5, dtype=np.int32)
    >>> fill_set(np.array([70, 3, 70, 3, 9]), 0, 4, 2, sources, local_source)
    >>> sources.tolist(), local_source.tolist()
    ([3, 70], [1, 0, 1, 0, 0])
    """
    marks = _mark(source, first, end, words)
    before = np.empty(words, dtype=np.int32)
    at = 0
    for w in range(words):
        before[w] = at
        left = marks[w]
        while left != 0:
            sources[at] = (w << 6) + lowest(left)
            at += 1
            left &= left - np.uint64(1)
    for e in range(first, end):
        w = source[e] >> 6
        below = (np.uint64(1) << np.uint64(source[e] & 63)) - np.uint64(1)
        local_source[e] = before[w] + count_ones(marks[w] & below)

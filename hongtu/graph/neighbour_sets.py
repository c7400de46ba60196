"""The neighbour set of a chunk, and where every edge's source stands in it: what all loops over chunks are made of.

A chunk marks its sources in a bitmap of all vertices. Read from left to right the bitmap is the ascending neighbour
set, and the bits before a source are its local index: nothing is sorted, and the bitmap stays in the cache.

Legend: E edges of a graph, S sources of the chunk, W words of 64 vertices.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from hongtu.compiled import compiled
from hongtu.files import Create, in_memory
from hongtu.graph.bitmap import count_ones, insert, lowest, take_all
from hongtu.graph.distinct import distinct

PIECES = 64  # of the edges, for threads


@compiled(inline="always")
def _mark(source, first, end, words):
    marks = np.zeros(words, dtype=np.uint64)
    for e in range(first, end):
        marks[source[e] >> 6] |= np.uint64(1) << np.uint64(source[e] & 63)
    return marks


@compiled
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


@compiled
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


def neighbour_sets(
    chunk_start: np.ndarray, in_edge_start: np.ndarray, source: np.ndarray, create: Create = in_memory
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """source_start int64 [C + 1], sources int32 [sum |N_c|] and local_source int32 [E] of ``Topology``.

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
    edge_start = np.asarray(in_edge_start, dtype=np.int64)[chunk_start]
    words = (len(in_edge_start) - 1 + 63) // 64
    source_start = np.zeros(len(chunk_start), dtype=np.int64)
    _set_sizes.each(len(edge_start) - 1, edge_start, source, words, source_start[1:])
    np.cumsum(source_start, out=source_start)
    sources = create("sources", "int32", (int(source_start[-1]),))
    local_source = create("local_source", "int32", source.shape)
    _fill.each(len(edge_start) - 1, edge_start, source, words, source_start, sources, local_source)
    return source_start, sources, local_source


def _plain_set_sizes(edge_start, source, words, sizes):
    sizes[:] = [len(distinct(source[lo:hi])) for lo, hi in pairwise(edge_start)]


@compiled(plain=_plain_set_sizes)
def _set_sizes(c, edge_start, source, words, sizes):
    sizes[c] = set_size(source, edge_start[c], edge_start[c + 1], words)


def _plain_fill(edge_start, source, words, source_start, sources, local_source):
    for c, (lo, hi) in enumerate(pairwise(edge_start)):
        own = sources[source_start[c] : source_start[c + 1]]
        own[:], local_source[lo:hi] = np.unique(source[lo:hi], return_inverse=True)


@compiled(plain=_plain_fill)
def _fill(c, edge_start, source, words, source_start, sources, local_source):
    own = sources[source_start[c] : source_start[c + 1]]
    fill_set(source, edge_start[c], edge_start[c + 1], words, own, local_source)


def _plain_merge_sets(source_start, sources, partitions, size, num_vertices):
    chunks = (len(source_start) - 1) // partitions
    first = np.concatenate([np.arange(i * chunks, (i + 1) * chunks, size) for i in range(partitions)])
    ends = source_start[np.append(first, partitions * chunks)]
    found = [distinct(sources[lo:hi]) for lo, hi in pairwise(ends)]
    start = np.zeros(len(found) + 1, dtype=np.int64)
    np.cumsum([len(rows) for rows in found], out=start[1:])
    return start, np.concatenate(found)


@compiled(plain=_plain_merge_sets)
def merge_sets(source_start, sources, partitions, size, num_vertices):
    """The sets of groups of ``size`` consecutive chunks of a partition: where they begin, and the sets."""
    chunks = (len(source_start) - 1) // partitions
    groups = (chunks + size - 1) // size
    words = np.zeros((num_vertices + 63) // 64, dtype=np.uint64)
    start = np.zeros(partitions * groups + 1, dtype=np.int64)
    merged = np.empty(len(sources), dtype=np.int32)
    at = 0
    for i in range(partitions):
        for g in range(groups):
            lowest, end = num_vertices, 0
            for c in range(i * chunks + g * size, min(i * chunks + (g + 1) * size, (i + 1) * chunks)):
                rows = sources[source_start[c] : source_start[c + 1]]
                if len(rows) > 0:
                    insert(words, rows, 0)
                    lowest, end = min(lowest, rows[0]), max(end, rows[-1] + 1)
            at = take_all(words, lowest, end, 0, merged, at)
            start[i * groups + g + 1] = at
    return start, merged[:at].copy()


def _plain_relabel(
    edge_start, larger_edge_start, source_start, sources, larger_start, larger, local_source, num_vertices
):  # fmt: skip
    out, group = np.empty(len(local_source), dtype=np.int32), 0
    for c, (lo, hi) in enumerate(pairwise(edge_start)):
        while larger_edge_start[group + 1] < hi:
            group += 1
        rows = sources[source_start[c] : source_start[c + 1]]
        among = np.searchsorted(larger[larger_start[group] : larger_start[group + 1]], rows)
        out[lo:hi] = among[local_source[lo:hi]] if hi > lo else 0
    return out


@compiled(plain=_plain_relabel)
def relabel(edge_start, larger_edge_start, source_start, sources, larger_start, larger, local_source, num_vertices):
    """int32 [E], local sources in the neighbour sets of larger chunks."""
    rank = np.empty(num_vertices, dtype=np.int32)
    out = np.empty(len(local_source), dtype=np.int32)
    group = -1
    for c in range(len(edge_start) - 1):
        while group < 0 or larger_edge_start[group + 1] < edge_start[c + 1]:
            group += 1
            for k in range(larger_start[group], larger_start[group + 1]):
                rank[larger[k]] = k - larger_start[group]
        own = rank[sources[source_start[c] : source_start[c + 1]]]
        for e in range(edge_start[c], edge_start[c + 1]):
            out[e] = own[local_source[e]]
    return out


def globalise(
    edge_start: np.ndarray, source_start: np.ndarray, sources: np.ndarray, local_source: np.ndarray
) -> np.ndarray:
    """int32 [E], the vertex that each edge's local source is."""
    source = np.empty(len(local_source), dtype=np.int32)
    first = np.arange(PIECES + 1) * len(local_source) // PIECES
    chunk = np.searchsorted(edge_start, first, side="right") - 1
    _globalise.each(PIECES, first, chunk, edge_start, source_start, sources, local_source, source)
    return source


def _plain_globalise(first, chunk, edge_start, source_start, sources, local_source, source):
    count = np.diff(edge_start)
    source[:] = sources[np.repeat(source_start[: len(count)], count)[: len(local_source)] + local_source]


@compiled(plain=_plain_globalise)
def _globalise(part, first, chunk, edge_start, source_start, sources, local_source, source):
    c = chunk[part]
    for e in range(first[part], first[part + 1]):
        while e >= edge_start[c + 1]:
            c += 1
        source[e] = sources[source_start[c] + local_source[e]]

"""The neighbour set of a chunk, and where every edge's source stands in it: what all loops over chunks are made of;
and sets of rows: they go in, in any order and more than once, and come out ascending, each once; sorted, or
as bits; and how often a sequence of accesses to rows finds them in a cache.

A chunk marks its sources in a bitmap of all vertices. Read from left to right the bitmap is the ascending neighbour
set, and the bits before a source are its local index: nothing is sorted, and the bitmap stays in the cache.

Legend: E edges of a graph, S sources of the chunk, W words of 64 vertices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from hongtu.compiled import compiled
from hongtu.files import Create, in_memory
from hongtu.parallel import parallel_for


@compiled(inline="always")
def _mark(source, first, end, words):
    marks = np.zeros(words, dtype=np.uint64)
    for e in range(first, end):
        marks[source[e] >> 6] |= np.uint64(1) << np.uint64(source[e] & 63)
    return marks


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


def count_below(ascending: np.ndarray, values: Any) -> np.ndarray:
    """How many numbers are less than each of a few values: ``np.searchsorted``, which makes a copy of all numbers where
    values are of another dtype.

    >>> count_below(np.int32([2, 3, 5]), (3, 9)).tolist()
    [1, 3]
    """
    return ascending.searchsorted(np.asarray(values, dtype=ascending.dtype))


def _plain_set_sizes(edge_start, source, words, sizes):
    sizes[:] = [len(distinct(source[lo:hi])) for lo, hi in pairwise(edge_start)]


@compiled(plain=_plain_set_sizes)
def _set_sizes(c, edge_start, source, words, sizes):
    marks, count = _mark(source, edge_start[c], edge_start[c + 1], words), 0
    for w in range(words):
        count += count_ones(marks[w])
    sizes[c] = count


def _plain_fill(edge_start, source, words, source_start, sources, local_source):
    for c, (lo, hi) in enumerate(pairwise(edge_start)):
        own = sources[source_start[c] : source_start[c + 1]]
        own[:], local_source[lo:hi] = np.unique(source[lo:hi], return_inverse=True)


@compiled(plain=_plain_fill)
def _fill(c, edge_start, source, words, source_start, sources, local_source):
    """Writes a chunk's set to ``sources``, and to ``local_source`` where each of its edges' source is in the set."""
    first, end = edge_start[c], edge_start[c + 1]
    marks, before = _mark(source, first, end, words), np.empty(words, dtype=np.int32)
    begin = at = source_start[c]
    for w in range(words):
        before[w] = at - begin
        left = marks[w]
        while left != 0:
            sources[at] = (w << 6) + lowest(left)
            at += 1
            left &= left - np.uint64(1)
    for e in range(first, end):
        w = source[e] >> 6
        below = (np.uint64(1) << np.uint64(source[e] & 63)) - np.uint64(1)
        local_source[e] = before[w] + count_ones(marks[w] & below)


def merge_sets(
    source_start: np.ndarray, sources: np.ndarray, partitions: int, size: int, num_vertices: int
) -> tuple[np.ndarray, np.ndarray]:
    """The sets of groups of ``size`` consecutive chunks of a partition: where they begin, and the sets."""
    chunks = (len(source_start) - 1) // partitions
    first = np.concatenate([np.arange(i * chunks, (i + 1) * chunks, size) for i in range(partitions)])
    ends = source_start[np.append(first, partitions * chunks)]
    return union_sets(([sources[lo:hi]] for lo, hi in pairwise(ends)), len(sources), 0, num_vertices)


def union_sets(groups: Iterable[list[np.ndarray]], most: int, offset: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The union of the sets of each group: where they begin, int64 [G + 1], and they, int32.

    Args:
        groups: of arrays of ``size`` vertices from ``offset`` on.
        most: entries of all arrays.

    >>> start, rows = union_sets([[np.int32([5, 7]), np.int32([4, 7])], [np.int32([6])]], 5, 4, 4)
    >>> start.tolist(), rows.tolist()
    ([0, 3, 4], [4, 5, 7, 6])
    """
    words, out = np.zeros((size + 63) // 64, dtype=np.uint64), np.empty(most, dtype=np.int32)
    ends = [0]
    for sets in groups:
        rows = sets[0] if len(sets) == 1 else np.concatenate(sets)
        ends.append(put_distinct(rows, offset, words, out, ends[-1]))
    return np.array(ends, dtype=np.int64), out[: ends[-1]].copy()


def relabel(
    edge_start: np.ndarray,
    larger_edge_start: np.ndarray,
    source_start: np.ndarray,
    sources: np.ndarray,
    larger_start: np.ndarray,
    larger: np.ndarray,
    local_source: np.ndarray,
) -> np.ndarray:
    """int32 [E], local sources in the neighbour sets of larger chunks."""
    group = np.searchsorted(larger_edge_start, edge_start[1:], side="left") - 1

    def rank(c: int) -> np.ndarray:
        among = larger[larger_start[group[c]] : larger_start[group[c] + 1]]
        return np.searchsorted(among, sources[source_start[c] : source_start[c + 1]]).astype(np.int32)

    return _of_sources(edge_start, local_source, rank)


def globalise(
    edge_start: np.ndarray, source_start: np.ndarray, sources: np.ndarray, local_source: np.ndarray
) -> np.ndarray:
    """int32 [E], the vertex that each edge's local source is."""
    return _of_sources(edge_start, local_source, lambda c: sources[source_start[c] : source_start[c + 1]])


def _of_sources(edge_start: np.ndarray, local_source: np.ndarray, numbers: Callable[[int], np.ndarray]) -> np.ndarray:
    """int32 [E], for each edge that of the numbers of its chunk's sources which is its own source's."""
    out = np.empty(len(local_source), dtype=np.int32)

    def put(c: int) -> None:
        if (edges := slice(edge_start[c], edge_start[c + 1])).start < edges.stop:
            np.take(numbers(c), local_source[edges], out=out[edges], mode="clip")

    parallel_for(put, len(edge_start) - 1)
    return out


def distinct(values: np.ndarray) -> np.ndarray:
    """The values of an integer array, ascending, each once.

    As ``np.unique``, which since numpy 2.3 puts millions of keys in a hash table, ten times as slow as sorting them.

    >>> distinct(np.array([3, 1, 3])).tolist(), distinct(np.array([], np.int32)).tolist()
    ([1, 3], [])
    """
    values = np.sort(values)
    first = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return values[first]


def _plain_put_distinct(rows, offset, words, out, at):
    found = distinct(rows)
    out[at : at + len(found)] = found
    return at + len(found)


@compiled(plain=_plain_put_distinct)
def put_distinct(rows, offset, words, out, at):
    """Write ``rows``, ascending and each once, to ``out[at:]``, by way of words of 64 rows from ``offset`` on, which
    are 0 before and after; returns where they end.

    >>> words, out = np.zeros(2, dtype=np.uint64), np.empty(3, dtype=np.int32)
    >>> put_distinct(np.int32([163, 101, 163, 102]), 100, words, out, 0), out.tolist(), words.tolist()
    (3, [101, 102, 163], [0, 0])
    """
    first, last = len(words), -1
    for k in range(len(rows)):
        row = np.int64(rows[k]) - offset
        word = row >> 6
        words[word] |= np.uint64(1) << np.uint64(row & 63)
        first = word if word < first else first
        last = word if word > last else last
    for word in range(first, last + 1):
        bits = words[word]
        while bits != np.uint64(0):
            out[at] = offset + 64 * word + lowest(bits)
            at += 1
            bits &= bits - np.uint64(1)
        words[word] = np.uint64(0)
    return at


@compiled(inline="always")
def count_ones(word):
    """How many bits of a uint64 are set."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@compiled(inline="always")
def lowest(word):
    """The position of the lowest set bit of a uint64 that is not 0."""
    return count_ones((word & (~word + np.uint64(1))) - np.uint64(1))


SIZES = 32  # of caches: 1, 2, 4, ... rows


def miss_ratio(rows: np.ndarray) -> np.ndarray:
    """float64 [SIZES]: the share of accesses that do not find their row among the 1, 2, 4, ... used most recently.

    As many rows are held as a window of so many accesses has on average, which follows from the gaps between accesses
    to the same row; accesses with longer gaps miss (P. J. Denning and S. C. Schwartz, Properties of the working-set
    model, 1972).

    Args:
        rows: integers [N], not negative.

    >>> miss_ratio(np.array([0, 1] * 1000))[:3].round(2).tolist()
    [1.0, 0.0, 0.0]
    """
    if not len(rows):
        return np.ones(SIZES)
    gaps = np.zeros(len(rows), np.int64)
    _count_gaps(rows, np.full(int(rows.max()) + 1, -1, np.int64), gaps)
    longer = 1 - np.cumsum(gaps) / len(rows)  # of accesses with a gap beyond each number, or without one
    held = np.cumsum(longer)  # rows in a window of each number of accesses, from 1 on
    window = np.searchsorted(held, 2.0 ** np.arange(SIZES) + 1e-6, side="right")  # the longest that holds no more
    return longer[np.minimum(window, len(rows) - 1)]


def _plain_count_gaps(rows, last, gaps):
    order = np.argsort(rows, kind="stable")
    again = rows[order[1:]] == rows[order[:-1]]
    gaps += np.bincount(np.diff(order)[again], minlength=len(gaps))
    last[rows[order]] = order


@compiled(plain=_plain_count_gaps)
def _count_gaps(rows, last, gaps):
    """Adds to ``gaps``, by their lengths, those between accesses to the same row; ``last`` starts at -1."""
    for k in range(len(rows)):
        if last[rows[k]] >= 0:
            gaps[k - last[rows[k]]] += 1
        last[rows[k]] = k

"""Which chunks run together and in which order (HongTu, Algorithm 4), and the rows that a schedule moves.

Phase 1 (between devices): partition 0's chunks are the batches; each further partition gives every batch, in turn,
its unused chunk that shares most sources with the batch so far. Phase 2 (inside a device): a greedy tour over the
batches that always goes to the unvisited one sharing most transition vertices with the current one.

Overlaps are counted block of vertices by block of vertices: which batches need a vertex is a row of bits.

Legend: V vertices, m partitions, n chunks per partition, T_j the union of the neighbour sets of batch j, W words of 64
batches.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from hongtu.compiled import compiled
from hongtu.graph.neighbour_sets import lowest
from hongtu.threads import num_threads

BITS = 16  # 2 ** 16 vertices a block; neighbour sets ascend, so that the part of each that lies in one is a slice


def reorganize(source_start: np.ndarray, sources: np.ndarray, partitions: int, num_vertices: int) -> np.ndarray:
    """The schedule of Algorithm 4: ``schedule[i, k]`` is the chunk of partition i that runs in batch k.

    Args:
        source_start: int64 [m * n + 1].
        sources: int32 [sum |N_ij|].
        partitions: m.
        num_vertices: V.

    Returns:
        int32 [m, n]; each row is a permutation of 0..n-1. Time is O(sum over v of (batches that need v)^2).

    >>> # m = 2, n = 2: N_00 = {0}, N_01 = {1, 2}, N_10 = {1, 2}, N_11 = {0}
    >>> reorganize(np.array([0, 1, 3, 5, 6]), np.int32([0, 1, 2, 1, 2, 0]), 2, 3).tolist()
    [[0, 1], [1, 0]]
    """
    chunks = (len(source_start) - 1) // partitions
    cuts = block_cuts(source_start, sources, num_vertices)
    overlap = np.empty((min(num_threads(), cuts.shape[1] - 1), chunks, chunks), dtype=np.int64)
    own = np.arange(partitions * chunks).reshape(partitions, chunks)
    batches = own.copy()  # row i: the chunk of partition i in each
    for i in range(1, partitions):
        _overlap.each(len(overlap), cuts, sources, own[i : i + 1], batches[:i], False, overlap)
        batches[i] = own[i, _assign(overlap.sum(axis=0))]
    _overlap.each(len(overlap), cuts, sources, batches, batches, True, overlap)
    total = overlap.sum(axis=0)
    tour = _tour(total + total.T)
    return np.ascontiguousarray((batches - own[:, :1])[:, tour], dtype=np.int32)


def block_cuts(source_start: np.ndarray, sources: np.ndarray, num_vertices: int) -> np.ndarray:
    """int64 [C, B + 1]: the sources of chunk c in block b are ``sources[cuts[c, b] : cuts[c, b + 1]]``.

    >>> block_cuts(np.array([0, 2, 3]), np.int32([5, 70000, 9]), 70001).tolist()
    [[0, 1, 2], [2, 3, 3]]
    """
    cuts = np.empty((len(source_start) - 1, ((num_vertices - 1) >> BITS) + 2), dtype=np.int64)
    first = (np.arange(cuts.shape[1] - 1) << BITS).astype(sources.dtype)  # of another, all sources would be converted
    for c, (lo, hi) in enumerate(pairwise(source_start)):
        cuts[c, :-1] = lo + np.searchsorted(sources[lo:hi], first)
        cuts[c, -1] = hi
    return cuts


@compiled(inline="always")
def _needed_by(cuts, sources, chunks, block):
    """uint64 [vertices of the block, W]: bit j of a vertex is set where a chunk of column j of ``chunks`` has it."""
    needed = np.empty((1 << BITS, (chunks.shape[1] + 63) // 64), dtype=np.uint64)
    for v in range(1 << BITS):
        for w in range(needed.shape[1]):
            needed[v, w] = 0
    for i in range(chunks.shape[0]):
        for j in range(chunks.shape[1]):
            for s in range(cuts[chunks[i, j], block], cuts[chunks[i, j], block + 1]):
                needed[sources[s] & ((1 << BITS) - 1), j >> 6] |= np.uint64(1) << np.uint64(j & 63)
    return needed


def _plain_needed(cuts, sources, chunks):
    """float32 [n, V]: 1 where a chunk of column j of ``chunks`` has a vertex; products of two count exactly."""
    needed = np.zeros((chunks.shape[1], int(sources.max(initial=0)) + 1), dtype=np.float32)
    for j, column in enumerate(chunks.T):
        for c in column:
            needed[j, sources[cuts[c, 0] : cuts[c, -1]]] = 1
    return needed


def _plain_overlap(cuts, sources, rows, columns, above, overlap):
    needed = _plain_needed(cuts, sources, columns)
    overlap[:] = 0
    overlap[0] = np.triu(needed @ needed.T, 1) if above else _plain_needed(cuts, sources, rows) @ needed.T


@compiled(plain=_plain_overlap)
def _overlap(t, cuts, sources, rows, columns, above, overlap):
    """How many vertices are in chunks of both, for every column of ``rows`` and every column of ``columns``, int64
    [partitions, n] each, as far as a thread's blocks go, to ``overlap`` int64 [T, n, n]. With ``above`` the two are
    the same, and only pairs of a column and a later one are counted."""
    threads, n, _ = overlap.shape
    own, in_row, in_column = overlap[t], np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    for a in range(n):
        for b in range(n):
            own[a, b] = 0
    for block in range(t, cuts.shape[1] - 1, threads):
        needed = _needed_by(cuts, sources, columns, block)
        others = needed if above else _needed_by(cuts, sources, rows, block)
        for v in range(1 << BITS):
            count = _list_bits(needed[v], in_column)
            if above:
                for a in range(count):
                    for b in range(a + 1, count):
                        own[in_column[a], in_column[b]] += 1
            elif count > 0:
                for a in range(_list_bits(others[v], in_row)):
                    for b in range(count):
                        own[in_row[a], in_column[b]] += 1


@compiled(inline="always")
def _list_bits(words, found):
    """Sets ``found`` to the positions of the bits of a row of words that are set; returns how many they are."""
    count = 0
    for w in range(len(words)):
        left = words[w]
        while left != 0:
            found[count] = (w << 6) + lowest(left)
            count += 1
            left &= left - np.uint64(1)
    return count


def _assign(overlap: np.ndarray) -> np.ndarray:
    """The chunk for every batch, in turn; ties go to the lowest index."""
    left = overlap.copy()
    chosen = np.empty(len(overlap), dtype=np.int32)
    for j in range(len(overlap)):
        chosen[j] = left[:, j].argmax()
        left[chosen[j]] = -1
    return chosen


def _tour(overlap: np.ndarray) -> np.ndarray:
    """Phase 2: the visiting order of the batches, from batch 0; ties go to the lowest index."""
    left = overlap.copy()
    tour = np.zeros(len(overlap), dtype=np.int64)
    for k in range(1, len(overlap)):
        left[:, tour[k - 1]] = -1
        tour[k] = left[tour[k - 1]].argmax()
    return tour


class Volume(NamedTuple):
    """Rows moved in one pass.

    Attributes:
        v_ori: every chunk brings its whole neighbour set: sum |N_ij|.
        v_p2p: a batch brings each row once and peers share it: sum |T_k|.
        v_ru: and rows of the batch before stay: sum |T_k minus T_k-1|.
        pulled: rows our merged buffer takes from peers: sum |(N_ij minus partition i) minus N_i,j-1|.
    """

    v_ori: int
    v_p2p: int
    v_ru: int
    pulled: int


def count_volume(
    source_start: np.ndarray, sources: np.ndarray, partition_start: np.ndarray, schedule: np.ndarray
) -> Volume:
    """Volumes of ``schedule`` (int32 [m, n], chunk of partition i that runs in batch k).

    >>> # m = 2, n = 2, partitions {0, 1} and {2}; N_00 = {0}, N_01 = {1, 2}, N_10 = {1, 2}, N_11 = {0}
    >>> start, sources = np.array([0, 1, 3, 5, 6]), np.int32([0, 1, 2, 1, 2, 0])
    >>> count_volume(start, sources, np.array([0, 2, 3]), np.int32([[0, 1], [0, 1]]))
    Volume(v_ori=6, v_p2p=6, v_ru=3, pulled=3)
    >>> count_volume(start, sources, np.array([0, 2, 3]), np.int32([[0, 1], [1, 0]]))
    Volume(v_ori=6, v_p2p=3, v_ru=3, pulled=3)
    """
    partitions, chunks = schedule.shape
    latest = np.full(partition_start[-1], -2, dtype=np.int32)  # the latest batch whose T has the vertex
    v_p2p = v_ru = pulled = 0
    for k in range(chunks):
        for i in range(partitions):
            rows = _neighbour_set(source_start, sources, i * chunks + schedule[i, k])
            before = latest[rows]
            v_p2p += np.count_nonzero(before != k)
            v_ru += np.count_nonzero(before < k - 1)
            latest[rows] = k
    for i in range(partitions):
        latest[:] = -2  # the latest batch that reads it on device i
        for k in range(chunks):
            rows = _neighbour_set(source_start, sources, i * chunks + schedule[i, k])
            rows = rows[(rows < partition_start[i]) | (rows >= partition_start[i + 1])]
            pulled += np.count_nonzero(latest[rows] != k - 1)
            latest[rows] = k
    return Volume(v_ori=len(sources), v_p2p=int(v_p2p), v_ru=int(v_ru), pulled=int(pulled))


def _neighbour_set(source_start: np.ndarray, sources: np.ndarray, chunk: int) -> np.ndarray:
    return sources[source_start[chunk] : source_start[chunk + 1]]

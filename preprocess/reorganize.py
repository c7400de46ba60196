"""Which chunks run together and in which order (HongTu, Algorithm 4).

Phase 1 (between devices): partition 0's chunks are the batches; each further partition gives every batch, in turn,
its unused chunk that shares most sources with the batch so far. Phase 2 (inside a device): a greedy tour over the
batches that always goes to the unvisited one sharing most transition vertices with the current one.

Overlaps are counted block of vertices by block of vertices: which batches need a vertex is a row of bits.

Legend: V vertices, m partitions, n chunks per partition, T_j the union of the neighbour sets of batch j, W words of 64
batches.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from hongtu.compiled import compiled
from hongtu.graph.bitmap import lowest
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
    assigned = np.tile(np.arange(chunks, dtype=np.int32), (partitions, 1))
    for i in range(1, partitions):
        _chunk_overlap.each(len(overlap), cuts, sources, assigned[:i], overlap)
        assigned[i] = _assign(overlap.sum(axis=0))
    _batch_overlap.each(len(overlap), cuts, sources, assigned, overlap)
    total = overlap.sum(axis=0)
    tour = _tour(total + total.T)
    return np.ascontiguousarray(assigned[:, tour])


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
def _needed_by(cuts, sources, assigned, chunks, block):
    """uint64 [vertices of the block, W]: bit j of a vertex is set where T_j, of the partitions so far, has it."""
    needed = np.empty((1 << BITS, (chunks + 63) // 64), dtype=np.uint64)
    for v in range(1 << BITS):
        for w in range(needed.shape[1]):
            needed[v, w] = 0
    for i in range(len(assigned)):
        for j in range(chunks):
            c = i * chunks + assigned[i, j]
            for s in range(cuts[c, block], cuts[c, block + 1]):
                needed[sources[s] & ((1 << BITS) - 1), j >> 6] |= np.uint64(1) << np.uint64(j & 63)
    return needed


def _plain_needed(cuts, sources, first, batches, chunks):
    """float32 [n, V]: 1 where a batch needs a vertex, by way of these chunks; products of two count exactly."""
    needed = np.zeros((chunks, int(sources.max(initial=0)) + 1), dtype=np.float32)
    for j in range(chunks):
        for i, of in enumerate(batches):
            c = first + i * chunks + of[j]
            needed[j, sources[cuts[c, 0] : cuts[c, -1]]] = 1
    return needed


def _plain_chunk_overlap(cuts, sources, assigned, overlap):
    chunks = overlap.shape[1]
    chunk = _plain_needed(cuts, sources, len(assigned) * chunks, np.arange(chunks)[None], chunks)
    overlap[:] = 0
    overlap[0] = chunk @ _plain_needed(cuts, sources, 0, assigned, chunks).T


@compiled(plain=_plain_chunk_overlap)
def _chunk_overlap(t, cuts, sources, assigned, overlap):
    """|N_c n T_j| for every chunk c of the next partition and every batch j so far, as far as a thread's blocks go, to
    ``overlap`` int64 [T, n, n]."""
    threads, chunks, _ = overlap.shape
    own, first = overlap[t], len(assigned) * chunks
    _clear(own)
    for block in range(t, cuts.shape[1] - 1, threads):
        needed = _needed_by(cuts, sources, assigned, chunks, block)
        for c in range(chunks):
            for s in range(cuts[first + c, block], cuts[first + c, block + 1]):
                v = sources[s] & ((1 << BITS) - 1)
                for w in range(needed.shape[1]):
                    left = needed[v, w]
                    while left != 0:
                        own[c, (w << 6) + lowest(left)] += 1
                        left &= left - np.uint64(1)


@compiled(inline="always")
def _clear(rows):
    for a in range(rows.shape[0]):
        for b in range(rows.shape[1]):
            rows[a, b] = 0


def _assign(overlap: np.ndarray) -> np.ndarray:
    """The chunk for every batch, in turn; ties go to the lowest index."""
    left = overlap.copy()
    chosen = np.empty(len(overlap), dtype=np.int32)
    for j in range(len(overlap)):
        chosen[j] = left[:, j].argmax()
        left[chosen[j]] = -1
    return chosen


def _plain_batch_overlap(cuts, sources, assigned, overlap):
    needed = _plain_needed(cuts, sources, 0, assigned, overlap.shape[1])
    overlap[:] = 0
    overlap[0] = np.triu(needed @ needed.T, 1)


@compiled(plain=_plain_batch_overlap)
def _batch_overlap(t, cuts, sources, assigned, overlap):
    """|T_j n T_k| for every pair of batches j < k, as far as a thread's blocks go, to ``overlap`` int64 [T, n, n]."""
    threads, chunks, _ = overlap.shape
    own, batches = overlap[t], np.empty(chunks, dtype=np.int64)
    _clear(own)
    for block in range(t, cuts.shape[1] - 1, threads):
        needed = _needed_by(cuts, sources, assigned, chunks, block)
        for v in range(1 << BITS):
            count = 0
            for w in range(needed.shape[1]):
                left = needed[v, w]
                while left != 0:
                    batches[count] = (w << 6) + lowest(left)
                    count += 1
                    left &= left - np.uint64(1)
            for a in range(count):
                for b in range(a + 1, count):
                    own[batches[a], batches[b]] += 1


def _tour(overlap: np.ndarray) -> np.ndarray:
    """Phase 2: the visiting order of the batches, from batch 0; ties go to the lowest index."""
    left = overlap.copy()
    tour = np.zeros(len(overlap), dtype=np.int64)
    for k in range(1, len(overlap)):
        left[:, tour[k - 1]] = -1
        tour[k] = left[tour[k - 1]].argmax()
    return tour

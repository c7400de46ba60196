"""Stage 7: which chunks run together and in which order (HongTu, Algorithm 4).

Phase 1 (between devices): partition 0's chunks are the batches; each further partition gives every batch, in turn,
its unused chunk that shares most sources with the batch so far. Phase 2 (inside a device): a greedy tour over the
batches that always goes to the unvisited one sharing most transition vertices with the current one.

Legend: V vertices, m partitions, n chunks per partition, T_j the union of the neighbour sets of batch j.
"""

from __future__ import annotations

import numba
import numpy as np


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
    assigned, list_start, list_length, batches = _assign(source_start, sources, partitions, chunks, num_vertices)
    tour = _tour(_batch_overlap(list_start, list_length, batches, chunks))
    return np.ascontiguousarray(assigned[:, tour])


@numba.njit(cache=True)
def _assign(source_start, sources, partitions, chunks, num_vertices):
    """Phase 1; also, for every vertex, the list of batches whose T contains it."""
    list_start = np.zeros(num_vertices + 1, dtype=np.int64)  # room for one entry per neighbour set that has v
    for s in range(len(sources)):
        list_start[sources[s] + 1] += 1
    for v in range(num_vertices):
        list_start[v + 1] += list_start[v]
    list_length = np.zeros(num_vertices, dtype=np.int32)
    batches = np.empty(len(sources), dtype=np.int32)
    seen_by = np.full(num_vertices, -1, dtype=np.int32)
    assigned = np.empty((partitions, chunks), dtype=np.int32)
    for i in range(partitions):
        own_start = source_start[i * chunks : (i + 1) * chunks + 1]
        overlap = _chunk_overlap(own_start, sources, list_start, list_length, batches)
        used = np.zeros(chunks, dtype=np.bool_)
        for j in range(chunks):
            assigned[i, j] = j if i == 0 else _best_unused(overlap, used, j)
            used[assigned[i, j]] = True
            stamp = i * chunks + j
            for earlier in range(i):
                c = earlier * chunks + assigned[earlier, j]
                for s in range(source_start[c], source_start[c + 1]):
                    seen_by[sources[s]] = stamp
            for s in range(own_start[assigned[i, j]], own_start[assigned[i, j] + 1]):
                v = sources[s]
                if seen_by[v] != stamp:  # new in this batch
                    batches[list_start[v] + list_length[v]] = j
                    list_length[v] += 1
    return assigned, list_start, list_length, batches


@numba.njit(cache=True)
def _chunk_overlap(own_start, sources, list_start, list_length, batches):
    """|N_c n T_j| for every chunk c of one partition and every batch j so far, int64 [n, n]."""
    chunks = len(own_start) - 1
    overlap = np.zeros((chunks, chunks), dtype=np.int64)
    for c in range(chunks):
        for s in range(own_start[c], own_start[c + 1]):
            first = list_start[sources[s]]
            for k in range(first, first + list_length[sources[s]]):
                overlap[c, batches[k]] += 1
    return overlap


@numba.njit(cache=True)
def _best_unused(overlap, used, batch):
    best = -1
    for c in range(len(used)):
        if not used[c] and (best < 0 or overlap[c, batch] > overlap[best, batch]):
            best = c
    return best


@numba.njit(cache=True)
def _batch_overlap(list_start, list_length, batches, chunks):
    """|T_j n T_k| for every pair of batches, int64 [n, n]."""
    overlap = np.zeros((chunks, chunks), dtype=np.int64)
    for v in range(len(list_length)):
        end = list_start[v] + list_length[v]
        for a in range(list_start[v], end):
            for b in range(a + 1, end):
                overlap[batches[a], batches[b]] += 1
    return overlap + overlap.T


@numba.njit(cache=True)
def _tour(overlap):
    """Phase 2: the visiting order of the batches, from batch 0; ties go to the lowest index."""
    chunks = len(overlap)
    tour = np.zeros(chunks, dtype=np.int64)
    visited = np.zeros(chunks, dtype=np.bool_)
    visited[0] = True
    for k in range(1, chunks):
        best = -1
        for j in range(chunks):
            if not visited[j] and (best < 0 or overlap[tour[k - 1], j] > overlap[tour[k - 1], best]):
                best = j
        visited[best] = True
        tour[k] = best
    return tour

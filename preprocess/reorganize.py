"""Which chunks run together and in which order (HongTu, Algorithm 4), and the rows that a schedule moves.

Phase 1 (between devices): partition 0's chunks are the batches; each further partition gives every batch, in turn,
its unused chunk that shares most sources with the batch so far. Phase 2 (inside a device): a greedy tour over the
batches that always goes to the unvisited one sharing most transition vertices with the current one.

Overlaps are products of sparse matrices, counted block of vertices by block of vertices.

Legend: V vertices, m partitions, n chunks per partition, T_j the union of the neighbour sets of batch j.
"""

from __future__ import annotations

from itertools import pairwise
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from hongtu.parallel import parallel_for

BITS = 16  # 2 ** 16 vertices a block; neighbour sets ascend, so that the part of each that lies in one is a slice


def reorganize(source_start: np.ndarray, sources: np.ndarray, partitions: int, num_vertices: int) -> np.ndarray:
    """The schedule of Algorithm 4: ``schedule[i, k]`` is the chunk of partition i that runs in batch k.

    Args:
        source_start: int64 [m * n + 1].
        sources: int32 [sum |N_ij|].

    Returns:
        int32 [m, n]; each row is a permutation of 0..n-1. Time is O(sum over v of (batches that need v)^2).

    >>> # m = 2, n = 2: N_00 = {0}, N_01 = {1, 2}, N_10 = {1, 2}, N_11 = {0}
    >>> reorganize(np.array([0, 1, 3, 5, 6]), np.int32([0, 1, 2, 1, 2, 0]), 2, 3).tolist()
    [[0, 1], [1, 0]]
    """
    chunks = (len(source_start) - 1) // partitions
    cuts = block_cuts(source_start, sources, num_vertices)
    own = np.arange(partitions * chunks).reshape(partitions, chunks)
    batches = own.copy()  # row i: the chunk of partition i in each
    for i in range(1, partitions):
        batches[i] = own[i, _assign(count_overlap(cuts, sources, own[i : i + 1], batches[:i]))]
    tour = _tour(count_overlap(cuts, sources, batches, batches))
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


def count_overlap(cuts: np.ndarray, sources: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """How many vertices are in chunks of both, int64 [n, n], for every column of ``rows`` and every column of
    ``columns``, int64 [partitions, n] each.

    >>> cuts, sources = np.array([[0, 2], [2, 3]]), np.int32([4, 6, 6])
    >>> count_overlap(cuts, sources, np.array([[0, 1]]), np.array([[0, 1]])).tolist()
    [[2, 1], [1, 1]]
    """
    total, lock = np.zeros((rows.shape[1], columns.shape[1]), dtype=np.int64), Lock()

    def count(block: int) -> None:
        needed = _needed(cuts, sources, columns, block)
        others = needed if rows is columns else _needed(cuts, sources, rows, block)
        found = (others @ needed.T).toarray()
        with lock:
            np.add(total, found, out=total)

    parallel_for(count, cuts.shape[1] - 1)
    return total


def _needed(cuts: np.ndarray, sources: np.ndarray, chunks: np.ndarray, block: int) -> Any:
    """scipy CSR [n, vertices of the block]: 1 where a chunk of column j of ``chunks`` has a vertex."""
    import scipy.sparse

    sets = [sources[cuts[c, block] : cuts[c, block + 1]] for c in chunks.T.ravel()]
    start = np.cumsum([0, *map(len, sets)])[:: len(chunks)]
    index = np.concatenate(sets) & ((1 << BITS) - 1)
    found = scipy.sparse.csr_matrix((np.ones(len(index), np.int32), index, start), (chunks.shape[1], 1 << BITS))
    found.sum_duplicates()
    found.data[:] = 1
    return found


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

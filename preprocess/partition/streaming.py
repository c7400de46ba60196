"""A streaming partitioner: restreamed linear deterministic greedy, in O(partitions * V) memory.

Every vertex in turn, in id order, goes to the partition that holds most of its neighbours, weighed by the room that is
left there (Stanton and Kliot 2012); the stream is repeated from what the last pass gave (Nishimura and Ugander 2013),
the first from contiguous ranges, so that locality in the ids is kept. Room counts vertices, in-edges and train
vertices: the fullest of the three decides.

Legend: V vertices, m partitions.
"""

from __future__ import annotations

import numba
import numpy as np

from hongtu.preprocess.partition.range import range_partition

PASSES = 10  # of the stream; fewer when nearly nothing moves any more
SETTLED = 0.002  # share of the vertices
ALONE = 1e-3  # neighbours that any vertex has anywhere, so that one without any goes where there is room
SLACK = 1.2  # how full a partition may be, over the mean: less room costs a multiple of the cut, METIS takes more


def streaming_partition(
    in_edge_start: np.ndarray, source: np.ndarray, partitions: int, *, train_mask: np.ndarray, seed: int
) -> np.ndarray:
    """The partition of every vertex, int32 [V]; deterministic, the seed is not used.

    >>> # 1->0, 2->0, 0->2 and 4->3, 9->4, 3->5
    >>> start, source = np.array([0, 2, 2, 3, 4, 5, 6, 6, 6, 6, 6]), np.int32([1, 2, 0, 4, 9, 3])
    >>> streaming_partition(start, source, 2, train_mask=np.zeros(10, dtype=bool), seed=0).tolist()
    [0, 0, 0, 0, 1, 1, 1, 1, 1, 1]
    """
    num_vertices = len(in_edge_start) - 1
    part = range_partition(in_edge_start, source, partitions, train_mask=train_mask, seed=seed)
    readers = np.zeros((num_vertices, partitions), dtype=np.int32)
    load = np.zeros((partitions, 3), dtype=np.int64)
    _place(in_edge_start, source, train_mask, part, readers, load)
    share = np.maximum(load.sum(axis=0), 1) / partitions
    for _ in range(PASSES):
        moved = _stream(in_edge_start, source, train_mask, part, readers, load, share)
        if moved <= SETTLED * num_vertices:
            break
    return part


@numba.njit(cache=True)
def _place(in_edge_start, source, train_mask, part, readers, load):
    for v in range(len(part)):
        load[part[v], 0] += 1
        load[part[v], 1] += in_edge_start[v + 1] - in_edge_start[v] + 1
        load[part[v], 2] += train_mask[v]
        for e in range(in_edge_start[v], in_edge_start[v + 1]):
            if source[e] != v:
                readers[source[e], part[v]] += 1


@numba.njit(cache=True)
def _stream(in_edge_start, source, train_mask, part, readers, load, share):
    """One pass; ``readers[u, p]`` counts the out-edges of u into partition p. Returns how many vertices moved."""
    m = len(load)
    near = np.empty(m, dtype=np.int64)
    moved = 0
    for v in range(len(part)):
        first, end = in_edge_start[v], in_edge_start[v + 1]
        own = part[v]
        weight = (1, end - first + 1, np.int64(train_mask[v]))
        for k in range(3):
            load[own, k] -= weight[k]
        near[:] = readers[v]
        for e in range(first, end):
            if source[e] != v:
                near[part[source[e]]] += 1
        best, most, emptiest = -1, -1.0, 0
        for p in range(m):
            full, after = 0.0, 0.0
            for k in range(3):
                full = max(full, load[p, k] / share[k])
                after = max(after, (load[p, k] + weight[k]) / share[k])
            score = (near[p] + ALONE) * (SLACK - full)
            if after <= SLACK and (score > most or (score == most and p == own)):
                best, most = p, score
            if load[p, 1] < load[emptiest, 1]:
                emptiest = p
        if best < 0:  # too large for any: it goes where there is most room
            best = emptiest
        for k in range(3):
            load[best, k] += weight[k]
        if best != own:
            moved += 1
            part[v] = best
            for e in range(first, end):
                if source[e] != v:
                    readers[source[e], best] += 1
                    readers[source[e], own] -= 1
    return moved

"""Partitions by contiguous ranges of ids, at random, and by a stream.

The last is restreamed linear deterministic greedy, in O(V) memory: edges are only ever read in turn. Every vertex in
turn, in id order, goes to the partition that holds most of its neighbours, weighed by the room that is left there
(Stanton and Kliot 2012); the stream is repeated from what the last pass gave (Nishimura and Ugander 2013), the first
from contiguous ranges, so that locality in the ids is kept. Room counts vertices, in-edges and train vertices: the
fullest of the three decides.

Legend: V vertices, m partitions.
"""

from __future__ import annotations

import numpy as np

from hongtu.compiled import compiled
from hongtu.preprocess.bucket_sort import transpose

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
    graph = (in_edge_start, source, *transpose(in_edge_start, source))
    ranges = range_partition(in_edge_start, source, partitions, train_mask=train_mask, seed=seed)
    part: np.ndarray = ranges.astype(_number(partitions))
    weights = (np.ones(num_vertices), np.diff(in_edge_start) + 1, train_mask)
    load = np.stack([np.bincount(part, weights=weight, minlength=partitions) for weight in weights], axis=1)
    share = np.maximum(load.sum(axis=0), 1) / partitions
    for _ in range(PASSES):
        moved = _stream(*graph, train_mask, part, load, share)
        if moved <= SETTLED * num_vertices:
            break
    return part.astype(np.int32)


def _number(partitions: int) -> type:
    """The smallest type that names a partition: the array of parts, which is read at random, stays in the cache."""
    return np.uint8 if partitions <= 256 else np.int32


@compiled(plain=True)
def _stream(in_edge_start, source, out_start, reader, train_mask, part, load, share):
    """One pass; returns how many vertices moved."""
    m = len(load)
    near = np.empty(m, dtype=np.int64)
    moved = 0
    for v in range(len(part)):
        own = np.int64(part[v])
        weight = (1.0, in_edge_start[v + 1] - in_edge_start[v] + 1.0, np.float64(train_mask[v]))
        for k in range(3):
            load[own, k] -= weight[k]
        near[:] = 0
        for e in range(in_edge_start[v], in_edge_start[v + 1]):
            near[part[source[e]]] += source[e] != v
        for e in range(out_start[v], out_start[v + 1]):
            near[part[reader[e]]] += reader[e] != v
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
        moved += best != own
        part[v] = best
    return moved


def range_partition(
    in_edge_start: np.ndarray, source: np.ndarray, partitions: int, *, train_mask: np.ndarray, seed: int
) -> np.ndarray:
    """The range of each vertex; deterministic, needs nothing but the degrees.

    >>> range_partition(np.array([0, 3, 3, 3, 3]), np.int32([1, 2, 3]), 2, train_mask=None, seed=0).tolist()
    [0, 1, 1, 1]
    """
    work_before = in_edge_start[:-1] + np.arange(len(in_edge_start) - 1)
    total = in_edge_start[-1] + len(in_edge_start) - 1
    return (work_before * partitions // total).astype(np.int32)


def random_partition(
    in_edge_start: np.ndarray, source: np.ndarray, partitions: int, *, train_mask: np.ndarray, seed: int
) -> np.ndarray:
    """A random partition of every vertex; sizes differ by at most one."""
    part = np.arange(len(in_edge_start) - 1, dtype=np.int32) % np.int32(partitions)
    return np.random.default_rng(seed).permutation(part)

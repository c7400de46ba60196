"""Clusters by label propagation, level upon level: a locality order without a partitioner.

Every level joins each vertex to the cluster of its neighbours that most edges lead to, as long as the cluster stays
under a size cap; clusters then become the vertices of the next level, with a larger cap (size-constrained label
propagation, Meyerhenke, Sanders and Schulz 2014). Sorting by cluster from the coarsest level down puts vertices that
share neighbours next to one another.

Legend: V vertices, A adjacency entries (undirected, both directions).
"""

from __future__ import annotations

import numpy as np

from hongtu.compiled import compiled

ROUNDS = 2  # of label propagation per level; more gain nothing
GROWTH = 8  # of the size cap from level to level
FIRST_CAP = 32


def cluster_order(start: np.ndarray, neighbour: np.ndarray, part: np.ndarray, seed: int = 0) -> np.ndarray:
    """int32 [V], vertices sorted by (partition, clusters from coarse to fine, id).

    Args:
        start: int64 [V + 1], undirected neighbour lists.
        neighbour: int32 [A].
        part: int32 [V]; clusters never cross partitions.
        seed: unused; propagation visits the vertices in order.

    >>> # 0-3, 1-2: two clusters
    >>> starts, neighbour = np.array([0, 1, 2, 3, 4]), np.int32([3, 2, 1, 0])
    >>> cluster_order(starts, neighbour, np.zeros(4, dtype=np.int32)).tolist()
    [1, 2, 0, 3]
    """
    size = np.ones(len(part), dtype=np.int64)
    weight = np.empty(0, dtype=np.int32)  # of the first level: all 1
    levels, total = [], len(neighbour)
    cap = max(2, min(FIRST_CAP, len(part) // GROWTH))
    while len(part) > 1 and cap < 2 * size.sum():
        # read at random, so as small as it may be: no tally exceeds the number of entries
        tally = np.zeros(len(part), dtype=np.int32 if total < 2**31 else np.int64)
        label: np.ndarray = np.arange(len(part), dtype=np.int32)
        filled = size.copy()
        for _ in range(ROUNDS):
            _propagate(start, neighbour, weight, part, size, cap, label, filled, tally)
        kept, label = np.unique(label, return_inverse=True)
        label = label.astype(np.int32)
        levels.append(label)
        start, neighbour, weight = _contracted(start, neighbour, weight, label, len(kept))
        size = np.bincount(label, weights=size, minlength=len(kept)).astype(np.int64)
        part = part[kept]
        cap *= GROWTH
    order = np.argsort(part, kind="stable")
    for label in reversed(levels):
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        order = np.argsort(rank[label], kind="stable")
    return order.astype(np.int32)


@compiled(plain=True)
def _propagate(start, neighbour, weight, part, size, cap, label, filled, tally):
    """A round of label propagation: each vertex goes to the cluster, named by one of its members, that most of its
    neighbours are in; an empty ``weight`` is 1 throughout. ``tally`` is 0 before and after."""
    weighted = len(weight) > 0
    for v in range(len(part)):
        own = label[v]
        for e in range(start[v], start[v + 1]):
            tally[label[neighbour[e]]] += weight[e] if weighted else 1
        best, most = own, tally[own]
        for e in range(start[v], start[v + 1]):
            other = label[neighbour[e]]
            if tally[other] > most and part[other] == part[v] and filled[other] + size[v] <= cap:
                best, most = other, tally[other]
        for e in range(start[v], start[v + 1]):
            tally[label[neighbour[e]]] = 0
        if best != own:
            filled[own] -= size[v]
            filled[best] += size[v]
            label[v] = best


def _contracted(start, neighbour, weight, label, clusters):
    """The graph of clusters: edge weights add up, edges inside a cluster vanish.

    The lists returned are the front of longer arrays, of which the system gives memory only where it is written.
    """
    members, member = np.bincount(label, minlength=clusters), np.argsort(label, kind="stable").astype(np.int32)
    out_start = np.zeros(clusters + 1, dtype=np.int64)
    out = np.empty(len(neighbour), dtype=np.int32), np.empty(len(neighbour), dtype=np.int32)
    place = np.full(clusters, -1, dtype=np.int64)
    _contract(start, neighbour, weight, label, np.append(0, np.cumsum(members)), member, place, out_start, *out)
    return out_start, *(array[: out_start[-1]] for array in out)


@compiled(plain=True)
def _contract(start, neighbour, weight, label, members, member, place, out_start, out_neighbour, out_weight):
    weighted, count = len(weight) > 0, 0
    for c in range(len(out_start) - 1):
        begin = count
        for k in range(members[c], members[c + 1]):
            v = member[k]
            for e in range(start[v], start[v + 1]):
                other = label[neighbour[e]]
                if other == c:
                    continue
                if place[other] < begin:
                    place[other] = count
                    out_neighbour[count] = other
                    out_weight[count] = 0
                    count += 1
                out_weight[place[other]] += weight[e] if weighted else 1
        out_start[c + 1] = count

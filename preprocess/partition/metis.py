"""METIS through pymetis, on the graph made undirected, without duplicates and self-loops.

pymetis balances one weight per vertex, so in-edges (work of the aggregate) and train membership (work of the loss
and of what ``prune`` leaves) are combined into one integer; ``partition_statistics`` reports the balance of each.
"""

from __future__ import annotations

import numba
import numpy as np

from hongtu.errors import InputError

EDGE_SHARE, TRAIN_SHARE = 0.8, 0.2  # of the combined weight
RESOLUTION = 100  # mean combined weight, so that the rounding to integers does not matter
MAX_TOTAL_WEIGHT = 1 << 30  # METIS may be built with 32-bit integers


def metis_partition(
    in_edge_start: np.ndarray, source: np.ndarray, partitions: int, *, train_mask: np.ndarray, seed: int
) -> np.ndarray:
    """The METIS partition of every vertex, int32 [V]; the same seed gives the same partition.

    Raises:
        InputError: when pymetis is absent or its integers are too small for the graph.
    """
    num_vertices = len(in_edge_start) - 1
    if partitions >= num_vertices:
        return np.arange(num_vertices, dtype=np.int32)
    try:
        import pymetis
    except ImportError:
        raise InputError(
            "partitioner 'metis' needs pymetis; run `pip install pymetis`, or pass --partitioner range"
        ) from None
    integer = pymetis.zero_copy_dtype()
    start, neighbour = symmetric_neighbours(in_edge_start, source)
    if len(neighbour) > np.iinfo(integer).max:
        raise InputError(
            f"partitioner 'metis': {len(neighbour)} adjacency entries, but this pymetis counts in {integer}; "
            "pass --partitioner range"
        )
    if len(neighbour) == 0:  # METIS has nothing to cut: any balanced split will do
        return (np.arange(num_vertices) * partitions // num_vertices).astype(np.int32)
    found = pymetis.part_graph(
        partitions,
        pymetis.CSRAdjacency(start.astype(integer, copy=False), neighbour.astype(integer, copy=False)),
        vweights=vertex_weights(np.diff(in_edge_start), train_mask).astype(integer),
        recursive=False,
        options=pymetis.Options(seed=seed % (2**31 - 1) + 1),  # the C library takes the seeds 0 and 1 for the same
    )
    return np.asarray(found.vertex_part, dtype=np.int32)


def vertex_weights(in_degree: np.ndarray, train_mask: np.ndarray) -> np.ndarray:
    """``resolution * (0.8 * (1 + in-degree) / mean + 0.2 * is_train / mean is_train)``, rounded, at least 1.

    >>> vertex_weights(np.array([0, 2]), np.array([True, False])).tolist()
    [80, 120]
    """
    resolution = min(RESOLUTION, MAX_TOTAL_WEIGHT / len(in_degree))
    edges = (1 + in_degree) / (1 + in_degree).mean()
    train = train_mask / max(train_mask.mean(), 1e-12)
    weight = np.rint(resolution * (EDGE_SHARE * edges + TRAIN_SHARE * train))
    return np.maximum(weight, 1).astype(np.int64)


def symmetric_neighbours(in_edge_start: np.ndarray, source: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Undirected neighbour lists without duplicates and self-loops: starts int64 [V + 1] and neighbours int32.

    >>> start, neighbour = symmetric_neighbours(np.array([0, 2, 3, 4]), np.int32([0, 1, 0, 0]))
    >>> start.tolist(), neighbour.tolist()  # 0->0, 1->0, 0->1, 0->2
    ([0, 2, 3, 4], [1, 2, 0, 0])
    """
    return _symmetric(in_edge_start, source)


@numba.njit(cache=True)
def _symmetric(in_edge_start, source):
    num_vertices = len(in_edge_start) - 1
    room = np.zeros(num_vertices + 1, dtype=np.int64)  # start of each list before duplicates are dropped
    for v in range(num_vertices):
        for e in range(in_edge_start[v], in_edge_start[v + 1]):
            if source[e] != v:
                room[v + 1] += 1
                room[source[e] + 1] += 1
    for v in range(num_vertices):
        room[v + 1] += room[v]
    at = room[:-1].copy()
    neighbour = np.empty(room[num_vertices], dtype=np.int32)
    for v in range(num_vertices):
        for e in range(in_edge_start[v], in_edge_start[v + 1]):
            u = source[e]
            if u != v:
                neighbour[at[v]] = u
                at[v] += 1
                neighbour[at[u]] = v
                at[u] += 1
    start = np.zeros(num_vertices + 1, dtype=np.int64)
    seen_by = np.full(num_vertices, -1, dtype=np.int32)
    kept = 0
    for v in range(num_vertices):
        for e in range(room[v], room[v + 1]):
            u = neighbour[e]
            if seen_by[u] != v:
                seen_by[u] = v
                neighbour[kept] = u
                kept += 1
        start[v + 1] = kept
    return start, neighbour[:kept].copy()

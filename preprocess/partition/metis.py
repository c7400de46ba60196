"""METIS through pymetis, on the graph made undirected, without duplicates and self-loops.

pymetis balances one weight per vertex, so in-edges (work of the aggregate) and train membership (work of the loss
and of what ``prune`` leaves) are combined into one integer; ``partition_statistics`` reports the balance of each.
"""

from __future__ import annotations

import numpy as np

from hongtu.errors import InputError
from hongtu.preprocess.undirected import symmetric_neighbours

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

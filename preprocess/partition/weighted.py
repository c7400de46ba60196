"""METIS or KaMinPar on the graph made undirected, without duplicates and self-loops.

They balance one weight per vertex, so in-edges (work of the aggregate) and train membership (work of the loss and of
what ``prune`` leaves) are combined into one integer; ``partition_statistics`` reports the balance of each. METIS also
balances vertices, in-edges and train vertices each by itself, which cuts about a third more edges.
"""

from __future__ import annotations

import numpy as np

from hongtu.preprocess.parts import cut_graph
from hongtu.preprocess.undirected import symmetric_neighbours

EDGE_SHARE, TRAIN_SHARE = 0.8, 0.2  # of the combined weight
RESOLUTION = 100  # mean combined weight, so that the rounding to integers does not matter
MAX_TOTAL_WEIGHT = 1 << 30  # METIS may be built with 32-bit integers


def weighted_partition(
    library: str, in_edge_start: np.ndarray, source: np.ndarray, partitions: int, *, train_mask: np.ndarray, seed: int
) -> np.ndarray:
    """The library's partition of every vertex, int32 [V]; the same seed gives the same partition.

    Raises:
        InputError: when the library is not installed or its integers are too small for the graph.
    """
    weights = vertex_weights(np.diff(in_edge_start), train_mask)
    return cut_graph(library, *symmetric_neighbours(in_edge_start, source), partitions, seed, weights)


def balanced_partition(
    in_edge_start: np.ndarray, source: np.ndarray, partitions: int, *, train_mask: np.ndarray, seed: int
) -> np.ndarray:
    """As :func:`weighted_partition` by METIS, with three weights of every vertex."""
    weights = np.stack([np.ones(len(train_mask), dtype=np.int64), np.diff(in_edge_start), train_mask], axis=1)
    weights = weights[:, weights.any(axis=0)]
    return cut_graph("metis", *symmetric_neighbours(in_edge_start, source), partitions, seed, weights)


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

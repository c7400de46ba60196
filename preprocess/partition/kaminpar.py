"""KaMinPar as a partitioner, with the vertex weights that METIS gets."""

from __future__ import annotations

import numpy as np

from hongtu.preprocess.kaminpar import kaminpar_parts
from hongtu.preprocess.partition.metis import vertex_weights
from hongtu.preprocess.undirected import symmetric_neighbours


def kaminpar_partition(
    in_edge_start: np.ndarray, source: np.ndarray, partitions: int, *, train_mask: np.ndarray, seed: int
) -> np.ndarray:
    """The KaMinPar partition of every vertex, int32 [V]; the same seed gives the same partition.

    Raises:
        InputError: when kaminpar is not installed.
    """
    weights = vertex_weights(np.diff(in_edge_start), train_mask)
    return kaminpar_parts(*symmetric_neighbours(in_edge_start, source), partitions, seed, weights)

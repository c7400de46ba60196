"""Stage 4: which device owns which vertex. A registry of pure functions, one file each.

Each has the signature ``(in_edge_start, source, partitions, *, train_mask, seed) -> int32 [V]``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hongtu.preprocess.partition.balance import partition_statistics
from hongtu.preprocess.partition.kaminpar import kaminpar_partition
from hongtu.preprocess.partition.metis import metis_partition
from hongtu.preprocess.partition.random import random_partition
from hongtu.preprocess.partition.range import range_partition

# the submodules `range` and `random` shadow those names in this file: no loops here
__all__ = ["PARTITIONERS", "partition_statistics", "partition_vertices"]

PARTITIONERS: dict[str, Callable[..., np.ndarray]] = {
    "metis": metis_partition,
    "kaminpar": kaminpar_partition,
    "range": range_partition,
    "random": random_partition,
}


def partition_vertices(
    name: str, in_edge_start: np.ndarray, source: np.ndarray, partitions: int, *, train_mask: np.ndarray, seed: int
) -> np.ndarray:
    """The partition of every vertex, int32 [V]; a partition may be empty."""
    if partitions == 1:
        return np.zeros(len(in_edge_start) - 1, dtype=np.int32)
    return PARTITIONERS[name](in_edge_start, source, partitions, train_mask=train_mask, seed=seed)

"""Random partitions of equal size: the worst locality, for comparison."""

from __future__ import annotations

import numpy as np


def random_partition(
    in_edge_start: np.ndarray, source: np.ndarray, partitions: int, *, train_mask: np.ndarray, seed: int
) -> np.ndarray:
    """A random partition of every vertex; sizes differ by at most one."""
    part = np.arange(len(in_edge_start) - 1, dtype=np.int32) % np.int32(partitions)
    return np.random.default_rng(seed).permutation(part)

"""Contiguous ranges of ids, balanced by in-edges + 1 per vertex."""

from __future__ import annotations

import numpy as np


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

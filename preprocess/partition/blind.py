"""Partitions that look at no edge: contiguous ranges of ids, and random ones of equal size, the worst locality."""

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


def random_partition(
    in_edge_start: np.ndarray, source: np.ndarray, partitions: int, *, train_mask: np.ndarray, seed: int
) -> np.ndarray:
    """A random partition of every vertex; sizes differ by at most one."""
    part = np.arange(len(in_edge_start) - 1, dtype=np.int32) % np.int32(partitions)
    return np.random.default_rng(seed).permutation(part)

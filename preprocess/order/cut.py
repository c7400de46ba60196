"""Where chunks are cut: contiguous ranges of about equal work.

Legend: V vertices, m partitions, n chunks per partition.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np


def cut_chunks(in_edge_start: np.ndarray, partition_start: np.ndarray, chunks: int) -> np.ndarray:
    """First vertex of every chunk: contiguous ranges of about equal work, a vertex costing its in-edges and those of
    its partition's average vertex: layers take memory and time for rows and for edges, and no chunk gets more than
    twice the average of either, but for what one vertex adds.

    No chunk is empty while its partition has at least n vertices; a smaller partition gives its first chunks one
    vertex each.

    Args:
        in_edge_start: int64 [V + 1], over new ids.
        partition_start: int64 [m + 1].
        chunks: n.

    Returns:
        int64 [m * n + 1].

    >>> cut_chunks(np.array([0, 4, 4, 4, 5, 5]), np.array([0, 5]), 2).tolist()  # vertex 0 has 4 of the 5 in-edges
    [0, 1, 5]
    """
    cuts = [_cut(in_edge_start, int(first), int(end), chunks) for first, end in pairwise(partition_start)]
    return np.concatenate([*cuts, partition_start[-1:]]).astype(np.int64)


def _cut(in_edge_start: np.ndarray, first: int, end: int, chunks: int) -> np.ndarray:
    """First vertex of each of the n chunks of one partition, int64 [n]."""
    step = np.arange(chunks)
    if end - first < chunks:
        return np.minimum(first + step, end)
    own = in_edge_start[first : end + 1] - in_edge_start[first]
    average = max(int(own[-1]), 1) / (end - first)
    work = own / average + np.arange(len(own))  # in vertices, ascending strictly
    target = work[-1] * (step / chunks)
    above = np.searchsorted(work, target)
    below = np.maximum(above - 1, 0)
    cut = np.where(target - work[below] < work[above] - target, below, above) + first
    cut = np.maximum.accumulate(cut - step) + step  # at least one vertex in every chunk before
    return np.minimum(cut, end - chunks + step)  # and in every chunk after

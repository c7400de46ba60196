"""How well a partition is balanced and how many edges it cuts, for the manifest."""

from __future__ import annotations

from typing import Any

import numpy as np

from hongtu.compiled import compiled
from hongtu.preprocess.vertex_blocks import vertex_ranges


def partition_statistics(
    part: np.ndarray, in_edge_start: np.ndarray, source: np.ndarray, partitions: int, train_mask: np.ndarray
) -> dict[str, Any]:
    """Stored edges between partitions and, for vertices, in-edges and train vertices, largest share / mean share."""
    counts = {
        "vertices": np.bincount(part, minlength=partitions),
        "in_edges": np.bincount(part, weights=np.diff(in_edge_start), minlength=partitions),
        "train": np.bincount(part[train_mask], minlength=partitions),
    }
    balance = {name: round(float(c.max() / max(c.mean(), 1e-12)), 4) for name, c in counts.items()}
    bounds = vertex_ranges(in_edge_start)
    cut = np.zeros(len(bounds) - 1, dtype=np.int64)
    _edge_cut.each(len(cut), bounds, in_edge_start, source, part, cut)
    return {"edge_cut": int(cut.sum()), "balance": balance}


def _plain_edge_cut(bounds, in_edge_start, source, part, cut):
    cut[0] = (part[source] != np.repeat(part, np.diff(in_edge_start))).sum()


@compiled(plain=_plain_edge_cut)
def _edge_cut(k, bounds, in_edge_start, source, part, cut):
    count = 0
    for v in range(bounds[k], bounds[k + 1]):
        for e in range(in_edge_start[v], in_edge_start[v + 1]):
            count += part[source[e]] != part[v]
    cut[k] = count

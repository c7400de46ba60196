"""How well a partition is balanced and how many edges it cuts, for the manifest."""

from __future__ import annotations

from typing import Any

import numpy as np

from hongtu.parallel import parallel_for
from hongtu.preprocess.vertex_blocks import even_blocks


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
    return {"edge_cut": _edge_cut(in_edge_start, source, part), "balance": balance}


def _edge_cut(in_edge_start: np.ndarray, source: np.ndarray, part: np.ndarray) -> int:
    bounds = even_blocks(in_edge_start, max(1, len(source) >> 20))
    cut = np.zeros(len(bounds) - 1, dtype=np.int64)

    def count(k: int) -> None:
        own = part[bounds[k] : bounds[k + 1]].repeat(np.diff(in_edge_start[bounds[k] : bounds[k + 1] + 1]))
        cut[k] = np.count_nonzero(part[source[in_edge_start[bounds[k]] : in_edge_start[bounds[k + 1]]]] != own)

    parallel_for(count, len(cut))
    return int(cut.sum())

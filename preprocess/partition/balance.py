"""How well a partition is balanced and how many edges it cuts, for the manifest."""

from __future__ import annotations

from typing import Any

import numpy as np

from hongtu.compiled import compiled, prange


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
    return {"edge_cut": int(_edge_cut(in_edge_start, source, part)), "balance": balance}


def _plain_edge_cut(in_edge_start, source, part):
    return (part[source] != np.repeat(part, np.diff(in_edge_start))).sum()


@compiled(plain=_plain_edge_cut, parallel=True)
def _edge_cut(in_edge_start, source, part):
    cut = 0
    for v in prange(len(part)):
        for e in range(in_edge_start[v], in_edge_start[v + 1]):
            cut += part[source[e]] != part[v]
    return cut

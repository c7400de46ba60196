"""Per-vertex facts of a graph that layers may ask for: degree statistics and edge ids."""

from __future__ import annotations

import numba
import numpy as np

from hongtu.graph.topology import Topology


def degree_statistics(topology: Topology) -> np.ndarray:
    """float64 [V, 3]: sum of in-edge weights (1 each if unweighted), sum of self-loop weights, weight of the last
    stored self-loop (NaN where there is none).

    >>> from hongtu.graph.topology import build_topology
    >>> t = build_topology(1, np.array([0, 2]), np.array([0, 2, 3]), np.array([0, 1, 0]))  # 0->0, 1->0, 0->1
    >>> degree_statistics(t).tolist()
    [[2.0, 1.0, 1.0], [1.0, 0.0, nan]]
    """
    weight = np.empty(0, np.float32) if topology.edge_weight is None else topology.edge_weight
    t = topology
    return _degree_statistics(t.chunk_start, t.in_edge_start, t.source_start, t.sources, t.local_source, weight)


@numba.njit(cache=True, nogil=True)
def _degree_statistics(chunk_start, in_edge_start, source_start, sources, local_source, weight):
    out = np.zeros((len(in_edge_start) - 1, 3))
    out[:, 2] = np.nan
    for c in range(len(chunk_start) - 1):
        for v in range(chunk_start[c], chunk_start[c + 1]):
            for e in range(in_edge_start[v], in_edge_start[v + 1]):
                w = 1.0 if len(weight) == 0 else np.float64(weight[e])
                out[v, 0] += w
                if sources[source_start[c] + local_source[e]] == v:
                    out[v, 1] += w
                    out[v, 2] = w
    return out


def edge_id_starts(in_edge_start: np.ndarray, original_id: np.ndarray) -> np.ndarray:
    """int64 [V]: the id of each vertex's first in-edge, counted over the vertices in original order.

    An edge's identity is this start plus its position among its destination's in-edges: the same for every
    partitioning of a graph.

    >>> edge_id_starts(np.array([0, 2, 3]), np.array([1, 0])).tolist()  # original vertex 0 has one in-edge
    [1, 0]
    """
    degree = np.empty(len(original_id), dtype=np.int64)
    degree[original_id] = np.diff(in_edge_start)
    start = np.zeros(len(original_id) + 1, dtype=np.int64)
    np.cumsum(degree, out=start[1:])
    return start[original_id]

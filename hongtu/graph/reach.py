"""Who reads whom: the in-edges of some vertices, chunk by chunk, so that nothing as long as all edges is made.

Legend: V vertices, K of them in one chunk, E their in-edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from hongtu.graph.topology import Topology


def in_edges(topology: Topology, rows: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Of every chunk that has some of these vertices: int64 [K], which; int64 [K], their degrees; int32 [E], the
    sources of their in-edges.

    Args:
        rows: bool [V].

    >>> from hongtu.graph.topology import build_topology
    >>> path = build_topology(2, np.array([0, 2, 4]), np.array([0, 0, 1, 2, 3]), np.arange(3))  # 0 -> 1 -> 2 -> 3
    >>> [[x.tolist() for x in found] for found in in_edges(path, np.array([False, True, False, True]))]
    [[[1], [1], [0]], [[3], [1], [2]]]
    """
    start, local_source = np.asarray(topology.in_edge_start), np.asarray(topology.local_source)
    for chunk, (first, end) in enumerate(pairwise(topology.chunk_start.tolist())):
        picked = rows[first:end]
        if picked.any():
            degree = np.diff(start[first : end + 1])
            local = local_source[start[first] : start[end]][np.repeat(picked, degree)]
            yield first + np.flatnonzero(picked), degree[picked], topology.neighbour_set(chunk)[local]


def sources_of(topology: Topology, rows: np.ndarray) -> np.ndarray:
    """bool [V], the sources of some vertices' in-edges.

    Args:
        rows: bool [V].
    """
    found = np.zeros(topology.num_vertices, dtype=np.bool_)
    for _, _, sources in in_edges(topology, rows):
        found[sources] = True
    return found


def receptive_field(topology: Topology, loss_vertices: np.ndarray, hops: int) -> list[np.ndarray]:
    """bool [V] each: the vertices within 0, 1, ... ``hops`` in-edges of a loss vertex.

    Args:
        loss_vertices: bool [V], new ids.

    >>> from hongtu.graph.topology import build_topology
    >>> path = build_topology(1, np.array([0, 4]), np.array([0, 0, 1, 2, 3]), np.array([0, 1, 2]))  # 0 -> 1 -> 2 -> 3
    >>> [np.flatnonzero(mask).tolist() for mask in receptive_field(path, np.arange(4) == 2, 2)]
    [[2], [1, 2], [0, 1, 2]]
    """
    masks = [np.asarray(loss_vertices, dtype=np.bool_).copy()]
    for _ in range(hops):
        masks.append(masks[-1] | sources_of(topology, masks[-1]))
    return masks

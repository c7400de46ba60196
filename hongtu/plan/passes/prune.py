"""Which vertices each layer must compute for the loss: the receptive field of the loss vertices, hop by hop."""

from __future__ import annotations

import numpy as np

from hongtu.compiled import compiled
from hongtu.graph.topology import Topology

WORTH_IT = 0.6  # pruning is off where more than this part of all layers' edges remains: it costs planning


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
    t = topology
    for _ in range(hops):
        masks.append(_sources_of(t.chunk_start, t.in_edge_start, t.source_start, t.sources, t.local_source, masks[-1]))
    return masks


def pays(topology: Topology, masks: list[np.ndarray]) -> bool:
    """Whether the layers' receptive fields (all masks but the last) have clearly fewer vertices and edges."""
    degree = np.diff(np.asarray(topology.in_edge_start)) + 1
    left = sum(int(degree[mask].sum()) for mask in masks[:-1])
    return left < WORTH_IT * (len(masks) - 1) * int(degree.sum())


def _sources_by_chunk(chunk_start, in_edge_start, source_start, sources, local_source, mask):
    """As ``_sources_of``."""
    out = mask.copy()
    for c in range(len(chunk_start) - 1):
        begin, end = chunk_start[c], chunk_start[c + 1]
        needed = np.repeat(mask[begin:end], np.diff(in_edge_start[begin : end + 1]))
        local = local_source[in_edge_start[begin] : in_edge_start[end]][needed]
        out[sources[source_start[c] : source_start[c + 1]][local]] = True
    return out


@compiled(plain=_sources_by_chunk)
def _sources_of(chunk_start, in_edge_start, source_start, sources, local_source, mask):
    out = mask.copy()
    for c in range(len(chunk_start) - 1):
        own = sources[source_start[c] : source_start[c + 1]]
        for v in range(chunk_start[c], chunk_start[c + 1]):
            if mask[v]:
                for e in range(in_edge_start[v], in_edge_start[v + 1]):
                    out[own[local_source[e]]] = True
    return out

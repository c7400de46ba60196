"""The edges that layers aggregate over as the paper has them: with stored self-loops, and weights that normalise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hongtu.graph.topology import Topology, build_topology


@dataclass(frozen=True, kw_only=True)
class PaperEdges:
    """What is done to a graph's edges before the first epoch.

    Attributes:
        loops: every vertex gets one self-loop, the last of its in-edges, in place of those that are stored.
        added: its weight where there were none.
        stored: and where there were some: the last of theirs ("replace"), ``added`` and theirs ("add"), or ``added``
            ("drop").
        normalized: weights are those of D^-1/2 A D^-1/2, with D the weighted in-degree, such loops included.
        weighted: A has the graph's weights; else they are 1.
    """

    loops: bool = False
    added: float = 1.0
    stored: str = "replace"
    normalized: bool = False
    weighted: bool = True


def with_paper_edges(topology: Topology, edges: PaperEdges, statistics: np.ndarray, dtype: str) -> Topology:
    """The same chunks with these edges; the order of the chunks' batches stays what it was found to be without.

    Args:
        statistics: float64 [V, 6], as :func:`hongtu.graph.degrees.degree_statistics`, or [V, 3] of weighted edges.
        dtype: of the weights.

    >>> t = build_topology(1, np.array([0, 2]), np.array([0, 2, 3]), np.array([0, 1, 0]))  # 0->0, 1->0, 0->1
    >>> statistics = np.array([[2, 1, 1], [1, 0, np.nan]])
    >>> found = with_paper_edges(t, PaperEdges(loops=True, normalized=True), statistics, "float64")
    >>> found.in_edge_start.tolist(), found.global_sources().tolist(), found.edge_weight.round(3).tolist()
    ([0, 2, 4], [1, 0, 0, 1], [0.5, 0.5, 0.5, 0.5])
    """
    assert topology.edge_features is None and topology.edge_type is None
    start, source = np.asarray(topology.in_edge_start), topology.global_sources()
    own = topology.edge_weight if edges.weighted else None
    weighted = own is not None or edges.normalized
    weight = np.ones(len(source) if weighted else 0, dtype)
    if own is not None:
        weight[:] = own
    degree, looped, last = np.asarray(statistics, dtype=np.float64).T[:3] if edges.weighted else statistics.T[3:]
    loop = np.full_like(last, edges.added)
    if edges.stored == "replace":
        loop = np.where(np.isnan(last), edges.added, last)
    elif edges.stored == "add":
        loop += looped
    if edges.loops:
        degree = degree - looped + loop
        start, source, weight = _looped(start, source, weight, loop.astype(dtype), weighted=weighted)
    if edges.normalized:
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = degree**-0.5
        scale[np.isposinf(scale)] = 0.0
        weight = (scale[source] * weight * np.repeat(scale, np.diff(start))).astype(dtype)
    return build_topology(topology.partitions, topology.chunk_start, start, source, weight if weighted else None)


def _looped(
    start: np.ndarray, source: np.ndarray, weight: np.ndarray, loop: np.ndarray, *, weighted: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The edges less self-loops, and one behind those of each vertex."""
    vertices = np.arange(len(start) - 1, dtype=source.dtype)
    destination = np.repeat(vertices, np.diff(start))
    kept = source != destination
    end = np.cumsum(np.bincount(destination[kept], minlength=len(vertices)))  # behind those of each vertex
    count = np.concatenate([[0], end + vertices + 1])
    return count, np.insert(source[kept], end, vertices), np.insert(weight[kept], end, loop) if weighted else weight

"""Per-vertex facts of a graph that layers may ask for: degree statistics and edge ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hongtu.graph.topology import Topology
from hongtu.parallel import parallel_for


def degree_statistics(
    topology: Topology, rows: np.ndarray | None = None, dtype: str = "float64", columns: int = 3
) -> np.ndarray:
    """[V, 3]: sum of in-edge weights (1 each if unweighted), sum of self-loop weights, weight of the last stored
    self-loop (NaN where there is none).

    Args:
        rows: int64 [R], the vertices to look at; None: all.
        dtype: in which they are kept; sums are in float64.
        columns: 4: behind these, out-degrees; 6 or 8: behind 3 or 4 the same of edges without weights.

    >>> from hongtu.graph.topology import build_topology
    >>> t = build_topology(1, np.array([0, 2]), np.array([0, 2, 3]), np.array([0, 1, 0]))  # 0->0, 1->0, 0->1
    >>> degree_statistics(t).tolist(), degree_statistics(t, np.array([1])).tolist()
    ([[2.0, 1.0, 1.0], [1.0, 0.0, nan]], [[1.0, 0.0, nan]])
    """
    if columns > 4:
        both = topology, replace(topology, edge_weight=None)
        return np.concatenate([degree_statistics(t, rows, dtype, columns // 2) for t in both], axis=1)
    if columns == 4:
        own = degree_statistics(topology, rows, dtype)
        others = out_degrees(topology)[:, None].astype(dtype)
        return np.concatenate([own, others if rows is None else others[rows]], axis=1)
    chunks = topology.partitions * topology.chunks
    out = np.empty((topology.num_vertices if rows is None else len(rows), 3), dtype)
    chunk = np.empty(0) if rows is None else np.searchsorted(topology.chunk_start, rows, side="right") - 1
    order = np.argsort(chunk, kind="stable")
    ends = np.searchsorted(chunk[order], np.arange(chunks + 1))

    def look(c: int) -> None:
        first, end = topology.chunk_start[c : c + 2].tolist()
        mine = slice(first, end) if rows is None else order[ends[c] : ends[c + 1]]
        if rows is not None and ends[c] == ends[c + 1]:
            return
        sources, local_source, destination, weight = _edges_of(topology, c)
        loop, found = sources[local_source] == destination, np.full((end - first, 3), np.nan)
        at, looped = destination[loop] - first, weight[loop]
        found[:, 0] = np.bincount(destination - first, weight, minlength=end - first)
        found[:, 1] = np.bincount(at, looped, minlength=end - first)
        found[at, 2] = looped  # the last of each stays
        out[mine] = found if rows is None else found[rows[mine] - first]

    parallel_for(look, chunks)
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


def out_degrees(topology: Topology) -> np.ndarray:
    """float64 [V]: the sum of the weights of each vertex's out-edges (1 each if unweighted), self-loops left out.

    >>> from hongtu.graph.topology import build_topology
    >>> t = build_topology(1, np.array([0, 2]), np.array([0, 2, 3]), np.array([0, 1, 0]))  # 0->0, 1->0, 0->1
    >>> out_degrees(t).tolist()
    [1.0, 1.0]
    """
    found = np.zeros(topology.num_vertices)
    for sources, local_source, destination, weight in _edges_by_chunk(topology):
        weight[sources[local_source] == destination] = 0
        found[sources] += np.bincount(local_source, weight, minlength=len(sources))
    return found


def largest_in_laplacian(topology: Topology, normalization: str | None) -> float:
    """The largest number in D - A (None), I - D^-1/2 A D^-1/2 ("sym") or I - D^-1 A ("rw"), self-loops left out, with D
    of out-degrees; NaN where one is none.

    >>> from hongtu.graph.topology import build_topology
    >>> t = build_topology(1, np.array([0, 2]), np.array([0, 2, 3]), np.array([0, 1, 0]))  # 0->0, 1->0, 0->1
    >>> largest_in_laplacian(t, None), largest_in_laplacian(t, "sym")
    (1.0, 1.0)
    """
    negative = topology.edge_weight is not None and bool((np.asarray(topology.edge_weight) < 0).any())
    if normalization is not None and not negative:
        return 1.0  # on the diagonal; the others are at most 0
    degree = out_degrees(topology)
    largest = float(degree.max(initial=-np.inf)) if normalization is None else 1.0
    if not negative:
        return largest
    scale = np.ones_like(degree)
    if normalization is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = degree ** (-0.5 if normalization == "sym" else -1.0)
        scale[np.isposinf(scale)] = 0
    for sources, local_source, destination, weight in _edges_by_chunk(topology):
        source = sources[local_source]
        other = scale[destination] if normalization == "sym" else 1.0
        found = -(scale[source] * weight * other)[source != destination]
        largest = float(np.maximum(largest, found.max(initial=-np.inf)))  # NaN stays
    return largest


def _edges_by_chunk(topology: Topology) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    return (_edges_of(topology, c) for c in range(topology.partitions * topology.chunks))


def _edges_of(topology: Topology, c: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The sources of a chunk, and of its edges the position among these, the destination and float64 weight."""
    chunk = topology.chunk(c)
    destination = np.repeat(np.arange(chunk.num_dst) + chunk.first, np.diff(chunk.indptr))
    weight = np.ones(chunk.num_edges) if chunk.edge_weight is None else chunk.edge_weight.astype(np.float64)
    return chunk.sources, chunk.local_source, destination, weight

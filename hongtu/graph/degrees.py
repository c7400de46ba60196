"""Per-vertex facts of a graph that layers may ask for: degree statistics and edge ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hongtu.compiled import compiled
from hongtu.graph.topology import Topology

PIECES = 64  # of the vertices, for threads


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
    t = topology
    weight = np.empty(0, np.float32) if t.edge_weight is None else t.edge_weight
    out = np.empty((t.num_vertices if rows is None else len(rows), 3), dtype)
    rows, every = np.empty(0, np.int64) if rows is None else rows, rows is None
    graph = t.chunk_start, t.in_edge_start, t.source_start, t.sources, t.local_source, weight
    bounds = np.arange(PIECES + 1) * len(out) // PIECES
    _degree_statistics.each(PIECES, bounds, rows, every, *graph, out)
    return out


def _plain_statistics(
    bounds, rows, every, chunk_start, in_edge_start, source_start, sources, local_source, weight, out
):  # fmt: skip
    degree = np.diff(in_edge_start)
    destination = np.repeat(np.arange(len(degree)), degree)
    first = np.repeat(source_start[:-1], np.diff(np.asarray(in_edge_start)[chunk_start]))
    weight = np.ones(len(destination)) if len(weight) == 0 else weight.astype(np.float64)
    loop = np.flatnonzero(sources[first + local_source] == destination)
    found = np.full((len(degree), 3), np.nan)
    found[:, 0] = np.bincount(destination, weight, minlength=len(degree))
    found[:, 1] = np.bincount(destination[loop], weight[loop], minlength=len(degree))
    found[destination[loop], 2] = weight[loop]  # the last of each stays
    out[:] = found if every else found[rows]


@compiled(plain=_plain_statistics)
def _degree_statistics(
    part, bounds, rows, every, chunk_start, in_edge_start, source_start, sources, local_source, weight, out
):
    for r in range(bounds[part], bounds[part + 1]):
        v = np.int64(r) if every else np.int64(rows[r])
        chunk, end = 0, len(chunk_start) - 1
        while end - chunk > 1:
            middle = (chunk + end) // 2
            if chunk_start[middle] <= v:
                chunk = middle
            else:
                end = middle
        first = source_start[chunk]
        total, loops, last = 0.0, 0.0, np.nan
        for e in range(in_edge_start[v], in_edge_start[v + 1]):
            w = 1.0 if len(weight) == 0 else np.float64(weight[e])
            total += w
            if sources[first + local_source[e]] == v:
                loops += w
                last = w
        out[r, 0], out[r, 1], out[r, 2] = total, loops, last


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
    """Of every chunk its sources, and of its edges the position among these, the destination and float64 weight."""
    for c in range(topology.partitions * topology.chunks):
        chunk = topology.chunk(c)
        destination = np.repeat(np.arange(chunk.num_dst) + chunk.first, np.diff(chunk.indptr))
        weight = np.ones(chunk.num_edges) if chunk.edge_weight is None else chunk.edge_weight.astype(np.float64)
        yield chunk.sources, chunk.local_source, destination, weight

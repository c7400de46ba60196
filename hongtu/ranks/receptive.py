"""Which vertices a rank reads beside its own, who of its partitions adopts each, and the edges between them.

All of it walks the artifact's chunks, so that nothing as long as the whole graph's edges is made.
Legend: V vertices, E edges of the whole graph; R rows of the rank, m partitions of the rank.
"""

from __future__ import annotations

import numpy as np

from hongtu.compiled import compiled
from hongtu.graph.topology import Topology

FAR = np.iinfo(np.int16).max  # hops of a vertex that is not read


def hops_from(topology: Topology, first: int, end: int, hops: int) -> np.ndarray:
    """int16 [V]: over how many in-edges each vertex is read by the vertices first .. end - 1, at most ``hops``; FAR for
    those that are not.

    >>> from hongtu.graph.topology import build_topology
    >>> path = build_topology(2, np.array([0, 2, 4]), np.array([0, 0, 1, 2, 3]), np.arange(3))  # 0 -> 1 -> 2 -> 3
    >>> hops_from(path, 3, 4, 2).tolist()
    [32767, 2, 1, 0]
    """
    depth = np.full(topology.num_vertices, FAR, dtype=np.int16)
    depth[first:end] = 0
    for hop in range(hops):
        depth[sources_of(topology, depth == hop) & (depth == FAR)] = hop + 1
    return depth


def read_over(topology: Topology, stages: np.ndarray, first: int, end: int) -> np.ndarray:
    """int16 [V]: over how many in-edges of rows with any the vertices first .. end - 1 read each vertex; FAR for those
    that they do not.

    Args:
        stages: int16 [V], how many are computed of each; from two on in-edges are needed.
    """
    depth = np.full(topology.num_vertices, FAR, dtype=np.int16)
    depth[first:end] = 0
    hop = 0
    while (rows := (depth == hop) & (stages >= 2)).any():
        depth[sources_of(topology, rows) & (depth == FAR)] = hop + 1
        hop += 1
    return depth


def sources_of(topology: Topology, rows: np.ndarray) -> np.ndarray:
    """bool [V], the sources of some vertices' in-edges.

    Args:
        rows: bool [V].

    >>> from hongtu.graph.topology import build_topology
    >>> path = build_topology(2, np.array([0, 2, 4]), np.array([0, 0, 1, 2, 3]), np.arange(3))  # 0 -> 1 -> 2 -> 3
    >>> sources_of(path, np.array([False, True, False, True])).tolist()
    [True, False, True, False]
    """
    found = np.zeros(topology.num_vertices, dtype=np.bool_)
    _mark(*_arrays(topology), rows, found)
    return found


def add_over_edges(topology: Topology, values: np.ndarray) -> np.ndarray:
    """float64 [V], the sum of the sources' values for each vertex."""
    found = np.zeros(topology.num_vertices)
    _add(*_arrays(topology), values, found)
    return found


def adopters(topology: Topology, depth: np.ndarray, partition: np.ndarray, partitions: int) -> np.ndarray:
    """int32 [V], the rank's partition in which each vertex that it reads is a row: its own, or for others the one that
    reads them most; -1 for all others.

    Args:
        depth: of ``read_over``.
        partition: int32 [V], of the rank's own vertices; elsewhere anything.
    """
    found = np.where(depth == 0, partition, np.int32(-1)).astype(np.int32)
    for hop in range(1, 1 + int(depth[depth < FAR].max(initial=0))):
        rows = np.flatnonzero(depth == hop)
        at = np.empty(len(depth), dtype=np.int32)
        at[rows] = np.arange(len(rows))
        uses = np.zeros((len(rows), partitions), dtype=np.int32)
        _count_uses(*_arrays(topology), depth, hop, found, at, uses)
        found[rows] = uses.argmax(axis=1)
    return found


def edges_of(topology: Topology, rows: np.ndarray, degree: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The in-edges of the rank's rows, one row after the other: int32, the row of each source; int64, the position of
    each edge in the artifact.

    Args:
        rows: int64 [R], the vertex of every row.
        degree: int64 [R], in-edges of every row: all of its vertex or 0.
    """
    row_of = np.full(topology.num_vertices, -1, dtype=np.int32)
    row_of[rows] = np.arange(len(rows), dtype=np.int32)
    chunk = np.searchsorted(topology.chunk_start, rows, side="right") - 1
    return _edges_of(*_arrays(topology)[1:], rows, chunk, degree, row_of)


def _arrays(topology: Topology) -> tuple[np.ndarray, ...]:
    return (
        topology.chunk_start, np.asarray(topology.in_edge_start), topology.source_start,
        np.asarray(topology.sources), np.asarray(topology.local_source),
    )  # fmt: skip


@compiled(plain=True)
def _mark(chunk_start, in_edge_start, source_start, sources, local_source, rows, found):
    for c in range(len(chunk_start) - 1):
        for v in range(chunk_start[c], chunk_start[c + 1]):
            if rows[v]:
                for e in range(in_edge_start[v], in_edge_start[v + 1]):
                    found[sources[source_start[c] + local_source[e]]] = True


@compiled(plain=True)
def _add(chunk_start, in_edge_start, source_start, sources, local_source, values, found):
    for c in range(len(chunk_start) - 1):
        for v in range(chunk_start[c], chunk_start[c + 1]):
            for e in range(in_edge_start[v], in_edge_start[v + 1]):
                found[v] += values[sources[source_start[c] + local_source[e]]]


@compiled(plain=True)
def _count_uses(chunk_start, in_edge_start, source_start, sources, local_source, depth, hop, partition, at, uses):
    for c in range(len(chunk_start) - 1):
        for v in range(chunk_start[c], chunk_start[c + 1]):
            if depth[v] == hop - 1:
                for e in range(in_edge_start[v], in_edge_start[v + 1]):
                    u = sources[source_start[c] + local_source[e]]
                    if depth[u] == hop:
                        uses[at[u], partition[v]] += 1


@compiled(plain=True)
def _edges_of(in_edge_start, source_start, sources, local_source, rows, chunk, degree, row_of):
    count = degree.sum()
    source, position = np.empty(count, dtype=np.int32), np.empty(count, dtype=np.int64)
    k = 0
    for r in range(len(rows)):
        first = in_edge_start[rows[r]]
        for e in range(first, first + degree[r]):
            source[k] = row_of[sources[source_start[chunk[r]] + local_source[e]]]
            position[k] = e
            k += 1
    return source, position

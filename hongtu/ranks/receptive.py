"""Which vertices a rank reads beside its own, who of its partitions adopts each, and the edges between them.

All of it walks the artifact's chunks, so that nothing as long as the whole graph's edges is made.
Legend: V vertices, E edges of the whole graph; R rows of the rank, m partitions of the rank.
"""

from __future__ import annotations

import numpy as np

from hongtu.graph.reach import in_edges, sources_of
from hongtu.graph.sparse_rows import positions
from hongtu.graph.topology import Topology

FAR = np.iinfo(np.int16).max  # hops of a vertex that is not read


def hops_from(
    topology: Topology, first: int, end: int, most: int | None = None, through: np.ndarray | bool = True
) -> np.ndarray:
    """int16 [V]: over how many in-edges each vertex is read by the vertices first .. end - 1; FAR for those that are
    not.

    Args:
        most: that many at most.
        through: bool [V], the vertices whose in-edges these may be.

    >>> from hongtu.graph.topology import build_topology
    >>> path = build_topology(2, np.array([0, 2, 4]), np.array([0, 0, 1, 2, 3]), np.arange(3))  # 0 -> 1 -> 2 -> 3
    >>> hops_from(path, 3, 4, 2).tolist(), hops_from(path, 3, 4, through=np.arange(4) == 3).tolist()
    ([32767, 2, 1, 0], [32767, 32767, 1, 0])
    """
    depth = np.full(topology.num_vertices, FAR, dtype=np.int16)
    depth[first:end] = 0
    hop = 0
    while hop != most and (rows := (depth == hop) & through).any():
        depth[sources_of(topology, rows) & (depth == FAR)] = hop + 1
        hop += 1
    return depth


def add_over_edges(topology: Topology, values: np.ndarray) -> np.ndarray:
    """float64 [V], the sum of the sources' values for each vertex."""
    found = np.zeros(topology.num_vertices)
    for rows, degree, sources in in_edges(topology, np.ones(topology.num_vertices, dtype=np.bool_)):
        found[rows] = np.bincount(np.repeat(np.arange(len(rows)), degree), values[sources], len(rows))
    return found


def adopters(topology: Topology, depth: np.ndarray, partition: np.ndarray, partitions: int) -> np.ndarray:
    """int32 [V], the rank's partition in which each vertex that it reads is a row: its own, or for others the one that
    reads them most; -1 for all others.

    Args:
        depth: of ``hops_from``.
        partition: int32 [V], of the rank's own vertices; elsewhere anything.
    """
    found = np.where(depth == 0, partition, np.int32(-1)).astype(np.int32)
    for hop in range(1, 1 + int(depth[depth < FAR].max(initial=0))):
        rows = np.flatnonzero(depth == hop)
        at = np.empty(len(depth), dtype=np.int64)
        at[rows] = np.arange(len(rows))
        uses = np.zeros((len(rows), partitions), dtype=np.int32)
        for readers, degree, sources in in_edges(topology, depth == hop - 1):
            new = depth[sources] == hop
            np.add.at(uses.reshape(-1), at[sources[new]] * partitions + np.repeat(found[readers], degree)[new], 1)
        found[rows] = uses.argmax(axis=1)
    return found


def edges_of(topology: Topology, rows: np.ndarray, degree: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The in-edges of the rank's rows, one row after the other: int32, the row of each source; int64, the position of
    each edge in the artifact.

    Args:
        rows: int64 [R], the vertex of every row.
        degree: int64 [R], in-edges of every row: all of its vertex or 0.
    """
    start, begins = np.asarray(topology.in_edge_start), np.concatenate([[0], np.cumsum(degree)])
    source, position = np.empty(begins[-1], dtype=np.int32), np.empty(begins[-1], dtype=np.int64)
    row_of = np.full(topology.num_vertices, -1, dtype=np.int32)
    row_of[rows] = np.arange(len(rows), dtype=np.int32)
    here = np.zeros(topology.num_vertices, dtype=np.bool_)
    here[rows[degree > 0]] = True
    for vertices, _, sources in in_edges(topology, here):
        at = positions(begins, row_of[vertices])
        source[at], position[at] = row_of[sources], positions(start, vertices)
    return source, position

"""Which vertices a rank reads beside its own, and how many stages it computes of each: computing again or fetching.

Stage 0 gives what layer 0 exchanges, of a vertex's features; stage k + 1, behind layer k, gives what layer k + 1
exchanges. A rank computes all stages of its own vertices. Of another it computes the first few, or none, and fetches
what later ones give wherever one of its rows reads it. So a stage is computed only where all before it are.

What walks edges walks the artifact's chunks, so that nothing as long as the whole graph's edges is made.
Legend: V vertices, E edges of the whole graph, L layers that exchange rows; R rows and m partitions of the rank.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from hongtu.graph.halo import in_edges, sources_of
from hongtu.graph.sparse_rows import positions
from hongtu.graph.topology import Topology

FAR = np.iinfo(np.int16).max  # hops of a vertex that is not read
UNREAD = -1


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


@dataclass(frozen=True)
class Stages(ABC):
    """A choice, the same on all ranks.

    Attributes:
        layers: L.
    """

    layers: int

    @property
    def fetches(self) -> bool:
        """Whether some rank may fetch a row."""
        return True

    @abstractmethod
    def of(self, topology: Topology, first: int, end: int) -> np.ndarray:
        """int16 [V], how many the rank of vertices ``first .. end - 1`` computes; UNREAD for what it does not read."""


@dataclass(frozen=True)
class ByLayer(Stages):
    """Whatever a layer exchanges is fetched from ``first`` on, and computed again before it.

    Attributes:
        first: ``layers``: nothing is fetched; 0: features are those of own vertices.

    >>> from hongtu.graph.topology import build_topology
    >>> path = build_topology(2, np.array([0, 2, 4]), np.array([0, 0, 1, 2, 3]), np.arange(3))  # 0 -> 1 -> 2 -> 3
    >>> [ByLayer(2, first).of(path, 3, 4).tolist() for first in (2, 1, 0)]
    [[-1, 1, 2, 3], [-1, -1, 1, 3], [-1, -1, 0, 3]]
    """

    first: int

    @property
    def fetches(self) -> bool:
        return self.first < self.layers

    def of(self, topology: Topology, first: int, end: int) -> np.ndarray:
        depth = hops_from(topology, first, end, max(self.first, 1))
        found = np.where(depth == FAR, UNREAD, self.first + 1 - depth).astype(np.int16)
        found[first:end] = self.layers + 1
        return found


@dataclass(frozen=True)
class ByVertex(Stages):
    """Of each vertex as many as cost the least seconds, as NeutronStar does (Wang et al., SIGMOD 2022).

    Attributes:
        row, edge: [L + 1] float, seconds of a stage for a vertex, with the aggregate before it, and for each of its
            in-edges.
        fetch: [L] float, seconds to fetch a row of what a layer exchanges, and to send its gradient back.

    What a vertex reads is counted for it alone, unless own vertices read that, too. Vertex 4 below has no in-edges and
    is computed again, vertex 3 would have three rows brought:

    >>> from hongtu.graph.topology import build_topology
    >>> start, sources = np.array([0, 0, 0, 0, 3, 3, 5]), np.array([0, 1, 2, 3, 4])
    >>> graph = build_topology(2, np.array([0, 5, 6]), start, sources)
    >>> ByVertex(2, row=(1.0, 1.0, 0.0), edge=(0.0, 0.0, 0.0), fetch=(0.0, 2.0)).of(graph, 5, 6).tolist()
    [-1, -1, -1, 1, 2, 3]
    """

    row: tuple[float, ...]
    edge: tuple[float, ...]
    fetch: tuple[float, ...]

    def of(self, topology: Topology, first: int, end: int) -> np.ndarray:
        v, degree = topology.num_vertices, np.diff(topology.in_edge_start)
        found = np.full(v, UNREAD, dtype=np.int16)
        found[first:end] = self.layers + 1
        near = sources_of(topology, found == self.layers + 1)  # their rows are here, whatever is computed again
        near[first:end] = True
        costs = [np.full(v, self.row[0])]
        for k in range(self.layers - 1):
            missing = costs[k] if k == 0 else np.minimum(costs[k], self.fetch[k])
            missing = np.where(near, 0.0, missing)
            costs.append(costs[k] + self.row[k + 1] + self.edge[k + 1] * degree + add_over_edges(topology, missing))
        reads = np.where(found == self.layers + 1, self.layers - 1, UNREAD)  # the last layer that a row reads others in
        while True:
            need = np.full(v, UNREAD)
            for layer in range(self.layers):
                need[sources_of(topology, reads >= layer)] = layer
            rows = np.flatnonzero((need >= 0) & (found == UNREAD))
            if not len(rows):
                return found
            found[rows] = 1 + self._cheapest([cost[rows] for cost in costs], need[rows])
            reads = np.full(v, UNREAD)
            reads[rows] = found[rows] - 2

    def _cheapest(self, costs: list[np.ndarray], need: np.ndarray) -> np.ndarray:
        """How many stages behind stage 0 cost the least where layers up to ``need`` read the row.

        Args:
            costs: of each stage, float [R], seconds up to it.
            need: int [R].
        """
        total = np.full((self.layers, len(need)), np.inf)
        for k, cost in enumerate(costs):
            later = np.zeros(len(need))
            for layer in range(k + 1, self.layers):
                later += np.where(need >= layer, self.fetch[layer], 0.0)
            total[k] = np.where(need >= k, cost + later, np.inf)
        return total.argmin(axis=0)

"""How many stages a rank computes of every vertex that it reads: the choice between computing again and fetching.

Stage 0 gives what layer 0 exchanges, of a vertex's features; stage k + 1, behind layer k, gives what layer k + 1
exchanges. A rank computes all stages of its own vertices. Of another it computes the first few, or none, and fetches
what later ones give wherever one of its rows reads it. So a stage is computed only where all before it are.
Legend: V vertices of the whole graph, L layers that exchange rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from hongtu.graph.reach import sources_of
from hongtu.graph.topology import Topology
from hongtu.ranks.receptive import FAR, add_over_edges, hops_from

UNREAD = -1


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

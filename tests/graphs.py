"""Small awkward graphs, and blocks made from them; used by many tests.

Legend: V vertices, E edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hongtu.graph.topology import build_topology
from hongtu.nn.block import Block, Rows


@dataclass(frozen=True)
class Graph:
    """A directed graph: ``edges`` int64 [2, E] (source, destination), ``weights`` float64 [E] or None."""

    name: str
    edges: np.ndarray
    weights: np.ndarray | None
    num_vertices: int

    @property
    def edge_index(self) -> torch.Tensor:
        return torch.from_numpy(self.edges)

    def edge_weight(self, dtype: torch.dtype = torch.float64) -> torch.Tensor | None:
        return None if self.weights is None else torch.from_numpy(self.weights).to(dtype)

    def __repr__(self) -> str:
        return self.name


def _random_edges(rng: np.random.Generator, num_vertices: int, num_edges: int) -> np.ndarray:
    return rng.integers(0, num_vertices, (2, num_edges))


def _without_loops(edges: np.ndarray) -> np.ndarray:
    return edges[:, edges[0] != edges[1]]


def directed() -> Graph:
    """No self-loops, no weights."""
    return Graph("directed", _without_loops(_random_edges(np.random.default_rng(0), 60, 300)), None, 60)


def weighted() -> Graph:
    """Directed, positive weights, some self-loops."""
    rng = np.random.default_rng(1)
    return Graph("weighted", _random_edges(rng, 50, 250), rng.uniform(0.1, 2, 250), 50)


def isolated() -> Graph:
    """Vertices without in-edges, without out-edges and without either."""
    rng = np.random.default_rng(2)
    edges = np.stack([rng.integers(0, 20, 80), rng.integers(10, 30, 80)])
    return Graph("isolated", edges, rng.uniform(0.1, 2, 80), 40)


def hub() -> Graph:
    """Vertex 3 is read by everyone and reads everyone."""
    rng = np.random.default_rng(3)
    everyone = np.arange(70)
    star = np.stack([np.r_[np.full(70, 3), everyone], np.r_[everyone, np.full(70, 3)]])
    return Graph("hub", np.concatenate([star, _random_edges(rng, 70, 60)], 1), None, 70)


def duplicates() -> Graph:
    """Every edge several times, with different weights."""
    rng = np.random.default_rng(4)
    edges = np.tile(_random_edges(rng, 12, 30), 3)[:, rng.permutation(90)]
    return Graph("duplicates", edges, rng.uniform(0.1, 2, 90), 12)


def loops() -> Graph:
    """Stored self-loops: one, several with different weights, none; in between other edges."""
    rng = np.random.default_rng(5)
    repeated = np.array([0, 0, 0, 1, 1, 2, 5])
    edges = np.concatenate([np.stack([repeated, repeated]), _random_edges(rng, 10, 40)], 1)
    edges = edges[:, rng.permutation(edges.shape[1])]
    return Graph("loops", edges, rng.uniform(0.1, 2, edges.shape[1]), 10)


def unweighted_loops() -> Graph:
    """As ``loops``, without weights."""
    graph = loops()
    return Graph("unweighted_loops", graph.edges, None, graph.num_vertices)


def one_vertex() -> Graph:
    """One vertex, no edges."""
    return Graph("one_vertex", np.empty((2, 0), np.int64), None, 1)


def one_loop() -> Graph:
    """One vertex with a weighted self-loop."""
    return Graph("one_loop", np.zeros((2, 1), np.int64), np.array([0.5]), 1)


def no_edges() -> Graph:
    """Several vertices, no edges."""
    return Graph("no_edges", np.empty((2, 0), np.int64), None, 7)


def awkward_graphs() -> list[Graph]:
    """All of the above."""
    makers = (
        directed,
        weighted,
        isolated,
        hub,
        duplicates,
        loops,
        unweighted_loops,
        one_vertex,
        one_loop,
        no_edges,
    )
    return [make() for make in makers]


def by_destination(graph: Graph) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """``in_edge_start`` int64 [V + 1], source int64 [E] and weight float64 [E] | None, stable by destination."""
    order = np.argsort(graph.edges[1], kind="stable")
    count = np.bincount(graph.edges[1], minlength=graph.num_vertices)
    in_edge_start = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
    return in_edge_start, graph.edges[0][order], None if graph.weights is None else graph.weights[order]


def statistics(graph: Graph) -> np.ndarray:
    """float64 [V, 3], as ``Rows.statistics``."""
    weights = np.ones(graph.edges.shape[1]) if graph.weights is None else graph.weights
    out = np.zeros((graph.num_vertices, 3))
    out[:, 2] = np.nan
    for (source, destination), weight in zip(graph.edges.T, weights, strict=True):
        out[destination, 0] += weight
        if source == destination:
            out[destination, 1] += weight
            out[destination, 2] = weight
    return out


def make_blocks(graph: Graph, starts: list[int] | None = None, dtype: torch.dtype = torch.float64) -> list[Block]:
    """The graph as blocks of the destinations ``starts[k] : starts[k + 1]`` (default: one), original vertex order."""
    starts = [0, graph.num_vertices] if starts is None else starts
    in_edge_start, source, weight = by_destination(graph)
    topology = build_topology(1, np.array(starts), in_edge_start, source, weight)
    all_statistics = torch.from_numpy(statistics(graph)).to(dtype)
    blocks = []
    for k in range(len(starts) - 1):
        chunk = topology.chunk(k)
        own = slice(starts[k], starts[k + 1])
        edge_weight = None if chunk.edge_weight is None else torch.from_numpy(chunk.edge_weight).to(dtype)
        blocks.append(
            Block(
                indptr=torch.from_numpy(chunk.indptr),
                local_source=torch.from_numpy(chunk.local_source),
                sources=torch.from_numpy(chunk.sources),
                first=chunk.first,
                edge_weight=edge_weight,
                rows=Rows(torch.arange(starts[k], starts[k + 1]), all_statistics[own]),
                edge_id_start=torch.from_numpy(in_edge_start[own]),
                num_graph_edges=topology.num_edges,
            )
        )
    return blocks


def cut(num_vertices: int, parts: int) -> list[int]:
    """Starts of up to ``parts`` ranges of uneven length."""
    inner = {int(num_vertices * (k / parts) ** 1.5) for k in range(1, parts)} - {0, num_vertices}
    return [0, *sorted(inner), num_vertices]

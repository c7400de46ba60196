"""What is drawn: in-edges of the graph, as many as the fan-outs say, every set of them as likely as any other."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import chisquare

from hongtu.graph.topology import Topology
from hongtu.pyg.draw import SampledGraph, draw, sampled_graph
from tests import graphs, problems

FANOUTS = [4, 1, 3]


def drawn_of(problem, m, n, seeds, fanouts, key=5, replace=False):
    """A batch of original vertices, and its vertices, sources, destinations and edge ids as they are called there."""
    graph = sampled_graph(problems.prepare(problem, m, n))
    found = draw(graph, graph.new_id[seeds], fanouts, key, replace)
    vertices = graph.original_id[found.vertices]
    edge_ids = found.edge + graph.edge_shift[found.vertices[found.destination]]
    return found, vertices, vertices[found.source], vertices[found.destination], edge_ids


def by_destination(problem):
    """Source and destination of every edge in the sequence of their ids, and in-degrees."""
    order = np.argsort(problem.edges[1], kind="stable")
    return problem.edges[:, order], np.bincount(problem.edges[1], minlength=problem.num_vertices)


PROBLEMS = {graph.name: problems.problem_of(graph) for graph in graphs.awkward_graphs()} | {"all": problems.awkward()}


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_drawn_edge_is_one_and_fanouts_hold(name, replace):
    problem = PROBLEMS[name]
    edges, degree = by_destination(problem)
    seeds = np.random.default_rng(1).permutation(problem.num_vertices)[:9]
    found, vertices, source, destination, edge_ids = drawn_of(problem, 1, 1, seeds, FANOUTS, replace=replace)
    assert np.array_equal(edges[:, edge_ids], np.stack([source, destination]))
    assert np.array_equal(vertices[: len(seeds)], seeds) and len(np.unique(vertices)) == len(vertices)
    first = edge = 0
    assert len(found.vertices_per_hop) == 1 + len(FANOUTS) and sum(found.vertices_per_hop) == len(vertices)
    for fanout, met, drew in zip(FANOUTS, found.vertices_per_hop, found.edges_per_hop, strict=False):
        expanded = vertices[first : first + met]
        taken = np.bincount(found.destination[edge : edge + drew], minlength=first + met)
        assert not taken[:first].any()
        wanted = (degree[expanded] > 0) * fanout if replace else np.minimum(degree[expanded], fanout)
        assert np.array_equal(taken[first:], wanted)
        first, edge = first + met, edge + drew
    assert edge == len(edge_ids)
    assert replace or len(np.unique(edge_ids)) == len(edge_ids)


def test_minus_one_is_the_whole_neighbourhood():
    problem = problems.awkward()
    edges, _ = by_destination(problem)
    *_, edge_ids = drawn_of(problem, 2, 3, np.array([5]), [-1, -1])
    first = set(edges[0, edges[1] == 5]) | {5}
    assert sorted(edge_ids) == sorted(np.flatnonzero(np.isin(edges[1], list(first))))
    *_, none = drawn_of(problem, 2, 3, np.array([5]), [0])
    assert len(none) == 0


def test_draws_are_the_vertexs_own():
    """The same whatever the partitioning, the chunks and the other seeds; others under another key."""
    problem = problems.awkward()
    seeds = np.arange(20)
    _, vertices, *whole = drawn_of(problem, 1, 1, seeds, [3, 3])
    for m, n in ((2, 3), (4, 2)):
        _, others, *again = drawn_of(problem, m, n, seeds, [3, 3])
        assert np.array_equal(vertices, others) and all(map(np.array_equal, whole, again))
    of_first = sorted(whole[2][np.isin(whole[1], seeds)])
    apart = [drawn_of(problem, 2, 3, seeds[k::2][::-1], [3])[-1] for k in range(2)]
    assert sorted(np.concatenate(apart)) == of_first
    assert not np.array_equal(drawn_of(problem, 1, 1, seeds, [3, 3], key=6)[-1], whole[2])


def star(degree):
    """Vertex 0 with so many in-edges."""
    edges = np.stack([np.arange(1, degree + 1), np.zeros(degree, dtype=np.int64)])
    return problems.problem_of(graphs.Graph("star", edges, None, degree + 1))


@pytest.mark.parametrize("replace", [False, True])
def test_every_set_of_in_edges_is_as_likely(replace):
    degree, fanout, times = 7, 3, 14_000
    graph = sampled_graph(problems.prepare(star(degree)))
    sets = list(itertools.product(range(degree), repeat=fanout) if replace else itertools.combinations(range(7), 3))
    count = dict.fromkeys(sets, 0)
    for key in range(times):
        picked = draw(graph, graph.new_id[:1], [fanout], key, replace).edge - graph.arrays[1][graph.new_id[0]]
        count[tuple(picked if replace else sorted(picked))] += 1
    assert chisquare(list(count.values())).pvalue > 0.01


def plain(graph, seeds, picks):
    """The batch of draws that are known, by a dictionary: vertices, sources and destinations."""
    position = {v: k for k, v in enumerate(seeds)}
    edges, begin = [], 0
    for hop in picks:
        frontier = list(position)[begin:]
        begin = len(position)
        for v in frontier:
            edges += [(position.setdefault(u, len(position)), position[v]) for u in hop[v]]
    return list(position), edges


def test_positions_are_a_dictionarys():
    """Many vertices: the table grows several times."""
    rng = np.random.default_rng(3)
    problem = problems.problem_of(graphs.Graph("large", rng.integers(0, 30_000, (2, 90_000)), None, 30_000))
    seeds = rng.permutation(30_000)[:300]
    found, vertices, source, destination, _ = drawn_of(problem, 3, 4, seeds, [5, 4, 3])
    ends = np.cumsum([0, *found.edges_per_hop])
    picks = []
    for low, high in itertools.pairwise(ends):
        of = {v: [] for v in vertices.tolist()}
        for u, v in zip(source[low:high].tolist(), destination[low:high].tolist(), strict=True):
            of[v].append(u)
        picks.append(of)
    known, edges = plain(None, seeds.tolist(), picks)
    assert known == vertices.tolist() and len(known) > 3000
    assert edges == list(zip(found.source.tolist(), found.destination.tolist(), strict=True))


def test_more_edges_than_31_bits_count():
    """Vertex 0 has 2^31 + 10 in-edges, all of vertex 1; vertex 1 has five after them."""
    many = 2**31 + 10
    start = np.array([0, many, many + 5, many + 5], dtype=np.int64)
    topology = Topology(
        1, 1, np.array([0, 3]), start, np.array([0, 2]), np.array([1, 2], dtype=np.int32),
        np.broadcast_to(np.int32(0), (many + 5,)), None,
    )  # fmt: skip
    original_id = np.arange(3, dtype=np.int32)
    graph = SampledGraph(
        SimpleNamespace(topology=topology, original_id=original_id, edge_id_starts=lambda: start[:-1], types=None)
    )
    for replace in (False, True):
        found = draw(graph, np.array([0]), [40, -1], 1, replace)
        ends = [found.edge[:40].min(), found.edge[:40].max()]
        assert 0 <= ends[0] < many / 4 and 3 * many / 4 < ends[1] < many
        assert found.edge[40:].tolist() == list(range(many, many + 5))
        assert found.vertices.tolist() == [0, 1] and found.vertices_per_hop == [1, 1, 0]
        assert found.source.tolist() == [1] * 45 and found.destination.tolist() == [0] * 40 + [1] * 5

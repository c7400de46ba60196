from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hongtu.preprocess.csc import build_csc
from hongtu.preprocess.partition import (
    METIS_EDGES,
    PARTITIONERS,
    SLACK,
    choose_partitioner,
    partition_statistics,
    partition_vertices,
    symmetric_neighbours,
    vertex_weights,
)
from hongtu.preprocess.parts import kaminpar_installed


def graph(num_vertices, num_edges, seed=0):
    rng = np.random.default_rng(seed)
    source, destination = rng.integers(0, num_vertices, (2, num_edges)).astype(np.int32)
    csc = build_csc(source, destination, num_vertices)
    return csc.in_edge_start, csc.source


def cliques(count, size):
    """``count`` cliques, their vertices interleaved."""
    clique = np.arange(count * size) % count
    source, destination = np.nonzero(clique[:, None] == clique[None, :])
    csc = build_csc(source.astype(np.int32), destination.astype(np.int32), count * size)
    return clique, csc.in_edge_start, csc.source


def skip_what_is_missing(name):
    if name == "kaminpar" and not kaminpar_installed():
        pytest.skip("kaminpar is not installed")


@pytest.mark.parametrize("name", PARTITIONERS)
@pytest.mark.parametrize("num_vertices, num_edges, m", [
    (1, 0, 1), (1, 3, 2), (2, 1, 2), (3, 0, 4), (3, 5, 8), (10, 0, 3), (50, 300, 4), (50, 4, 4), (9, 60, 9),
    (200, 900, 16),
])  # fmt: skip
def test_any_graph_gets_valid_partitions(name, num_vertices, num_edges, m):
    skip_what_is_missing(name)
    edges = graph(num_vertices, num_edges)
    train = np.arange(num_vertices) % 2 == 0
    part = partition_vertices(name, *edges, m, train_mask=train, seed=3)
    assert part.dtype == np.int32 and part.shape == (num_vertices,) and 0 <= part.min() <= part.max() < m
    assert np.array_equal(part, partition_vertices(name, *edges, m, train_mask=train, seed=3))
    if m == 1:
        assert not part.any()


@pytest.mark.parametrize("name", ["metis", "metis-balanced", "kaminpar"])
def test_cliques_are_found(name):
    skip_what_is_missing(name)
    clique, *edges = cliques(4, 8)
    part = partition_vertices(name, *edges, 4, train_mask=np.ones(32, dtype=bool), seed=0)
    assert len(set(zip(clique.tolist(), part.tolist(), strict=True))) == 4
    assert partition_statistics(part, *edges, 4, np.ones(32, dtype=bool)) == {
        "edge_cut": 0,
        "balance": {"vertices": 1.0, "in_edges": 1.0, "train": 1.0},
    }


@pytest.mark.parametrize("name", ["metis", "kaminpar"])
def test_in_edges_are_balanced(name):
    skip_what_is_missing(name)
    edges = graph(2000, 16000)
    train = np.arange(2000) < 500
    part = partition_vertices(name, *edges, 4, train_mask=train, seed=0)
    balance = partition_statistics(part, *edges, 4, train)["balance"]
    assert balance["in_edges"] < 1.1 and balance["train"] < 1.2


def test_seed_matters():
    edges = graph(500, 3000)
    train = np.ones(500, dtype=bool)
    for name in ("metis", "metis-balanced", "random"):
        first, second = (partition_vertices(name, *edges, 4, train_mask=train, seed=seed) for seed in (0, 1))
        assert not np.array_equal(first, second), name


def test_range_is_contiguous_and_balanced():
    start, source = graph(1000, 9000)
    part = partition_vertices("range", start, source, 5, train_mask=np.ones(1000, dtype=bool), seed=0)
    assert (np.diff(part) >= 0).all()
    assert partition_statistics(part, start, source, 5, np.ones(1000, bool))["balance"]["in_edges"] < 1.05


def test_statistics_count_stored_edges():
    start, source = np.array([0, 2, 3, 3]), np.array([1, 1, 2], dtype=np.int32)  # 1->0 twice, 2->1
    found = partition_statistics(np.int32([0, 1, 1]), start, source, 2, np.array([True, False, False]))
    assert found == {"edge_cut": 2, "balance": {"vertices": 1.3333, "in_edges": 1.3333, "train": 2.0}}


@given(st.integers(1, 8), st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=30))
def test_symmetric_neighbours(num_vertices, pairs):
    pairs = [(s % num_vertices, d % num_vertices) for s, d in pairs]
    source, destination = (np.array([pair[k] for pair in pairs], dtype=np.int32) for k in (0, 1))
    csc = build_csc(source, destination, num_vertices)
    start, neighbour = symmetric_neighbours(csc.in_edge_start, csc.source)
    for v in range(num_vertices):
        found = neighbour[start[v] : start[v + 1]].tolist()
        expected = {s for s, d in pairs if d == v} | {d for s, d in pairs if s == v}
        assert sorted(found) == sorted(expected - {v})


def test_vertex_weights_are_positive_and_fit_32_bits():
    assert vertex_weights(np.zeros(3, dtype=int), np.zeros(3, dtype=bool)).min() >= 1
    huge = vertex_weights(np.array([2**40, 0, 0]), np.zeros(3, dtype=bool))
    assert huge.min() >= 1 and huge.sum() < 2**31


def communities(count, size, seed=0):
    """Communities whose members have ids anywhere; nine edges in ten stay inside."""
    rng = np.random.default_rng(seed)
    num_vertices = count * size
    community = rng.permutation(np.repeat(np.arange(count), size))
    members = np.argsort(community, kind="stable")
    source = rng.integers(0, num_vertices, 12 * num_vertices)
    inside = members[community[source] * size + rng.integers(0, size, len(source))]
    destination = np.where(rng.random(len(source)) < 0.9, inside, rng.integers(0, num_vertices, len(source)))
    csc = build_csc(source.astype(np.int32), destination.astype(np.int32), num_vertices)
    return csc.in_edge_start, csc.source


def test_streaming_finds_communities_and_stays_balanced():
    edges = communities(40, 100)
    train = np.arange(4000) % 7 == 0
    part = partition_vertices("streaming", *edges, 4, train_mask=train, seed=0)
    found = partition_statistics(part, *edges, 4, train)
    random = partition_statistics(partition_vertices("random", *edges, 4, train_mask=train, seed=0), *edges, 4, train)
    assert found["edge_cut"] < 0.5 * random["edge_cut"]
    assert max(found["balance"].values()) <= SLACK


def test_vertices_in_edges_and_train_vertices_are_balanced_at_once():
    """Where whole communities train, one weight cannot."""
    edges = communities(40, 100)
    train = np.random.default_rng(0).permutation(np.repeat(np.arange(40), 100)) < 15
    worst = {}
    for name in ("metis", "metis-balanced"):
        part = partition_vertices(name, *edges, 4, train_mask=train, seed=0)
        worst[name] = max(partition_statistics(part, *edges, 4, train)["balance"].values())
    assert worst["metis-balanced"] < 1.06 < 1.2 < worst["metis"], worst
    none = partition_vertices("metis-balanced", *edges, 4, train_mask=np.zeros(4000, dtype=bool), seed=0)
    assert partition_statistics(none, *edges, 4, train)["balance"]["in_edges"] < 1.06


def test_streaming_keeps_the_locality_of_ids():
    """A ring of vertices in order: the ranges are nearly all there is to find."""
    ring = np.arange(5000, dtype=np.int32)
    csc = build_csc(np.roll(ring, 1), ring, 5000)
    part = partition_vertices("streaming", csc.in_edge_start, csc.source, 8, train_mask=ring < 5000, seed=0)
    assert partition_statistics(part, csc.in_edge_start, csc.source, 8, ring < 5000)["edge_cut"] <= 8


@pytest.mark.parametrize("name, edges, installed, expected, told", [
    ("auto", METIS_EDGES, False, "metis", ""),
    ("auto", METIS_EDGES + 1, True, "kaminpar", ""),
    ("auto", METIS_EDGES + 1, False, "streaming", "pip install 'hongtu[kaminpar]'"),
    ("metis", METIS_EDGES, True, "metis", ""),
    ("metis", 10**9, True, "metis", "METIS takes 400 to 5,400 s and 158 GiB for 1,000,000,000 edges; "),
    ("metis", 10**9, False, "metis", "--partitioner streaming (or kaminpar"),
    ("range", 10**9, False, "range", ""),
])  # fmt: skip
def test_the_default_depends_on_the_size(name, edges, installed, expected, told, monkeypatch):
    monkeypatch.setattr("hongtu.preprocess.partition.kaminpar_installed", lambda: installed)
    chosen, note = choose_partitioner(name, edges)
    assert chosen == expected and told in note and bool(note) == bool(told)

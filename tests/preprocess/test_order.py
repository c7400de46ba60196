from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hongtu.errors import InputError
from hongtu.graph.topology import build_topology
from hongtu.plan.cache.transfer import batch_limits, plan_transfers
from hongtu.preprocess import parts
from hongtu.preprocess.csc import Csc, renumber
from hongtu.preprocess.order import MOST_EDGES, ORDERS, candidates, count_loads, cut_chunks, order_vertices


def random_graph(seed, num_vertices=40, num_edges=150):
    rng = np.random.default_rng(seed)
    destination = np.sort(rng.integers(0, num_vertices, num_edges))
    start = np.searchsorted(destination, np.arange(num_vertices + 1))
    return start, rng.integers(0, num_vertices, num_edges).astype(np.int32)


def skip_what_is_missing(name):
    if name == "kaminpar" and not parts.kaminpar_installed():
        pytest.skip("kaminpar is not installed")


@pytest.mark.parametrize("name", ["auto", *ORDERS])
@given(st.integers(1, 4), st.integers(0, 1000), st.integers(1, 60))
def test_every_order_keeps_partitions_together(name, m, seed, num_vertices):
    skip_what_is_missing(name)
    start, source = random_graph(seed, num_vertices)
    part = np.random.default_rng(seed).integers(0, m, num_vertices).astype(np.int32)
    original_id, chunk_start, counted = order_vertices(name, start, source, part, m, 3, seed=1)
    assert original_id.dtype == np.int32 and sorted(original_id.tolist()) == list(range(num_vertices))
    assert part[original_id].tolist() == sorted(part.tolist())
    assert np.diff(chunk_start[::3]).tolist() == np.bincount(part, minlength=m).tolist()
    assert set(counted) == (set(candidates(150)) if name == "auto" else set())
    again, _, _ = order_vertices(name, start, source, part, m, 3, seed=1)
    assert np.array_equal(original_id, again)


def test_auto_takes_the_fewest_loads():
    start, source = random_graph(5)
    part = np.zeros(40, dtype=np.int32)
    best, _, counted = order_vertices("auto", start, source, part, 1, 8, seed=0)
    chosen = next(iter(counted))
    assert counted[chosen] == min(counted.values())
    assert np.array_equal(best, order_vertices(chosen, start, source, part, 1, 8, seed=0)[0])


def test_without_kaminpar_metis_stands_in(monkeypatch):
    monkeypatch.setattr(parts, "kaminpar_installed", lambda: False)
    monkeypatch.setattr("hongtu.preprocess.order.kaminpar_installed", lambda: False)
    graph = (*random_graph(5), np.zeros(40, dtype=np.int32), 1, 8, 0)
    with pytest.raises(InputError, match=r"pip install 'hongtu\[kaminpar\]'"):
        order_vertices("kaminpar", *graph)
    assert set(order_vertices("auto", *graph)[2]) == {"input", "clusters", "recursive"}


@pytest.mark.parametrize("name", ["clusters", "recursive", "kaminpar"])
def test_orders_undo_a_shuffle(name):
    """Cliques whose ids are shuffled come out together: one after the other, or a few in one part."""
    skip_what_is_missing(name)
    rng = np.random.default_rng(0)
    clique = rng.permutation(np.repeat(np.arange(25), 8))
    source, destination = np.nonzero(clique[:, None] == clique[None, :])
    start = np.searchsorted(np.sort(destination), np.arange(201))
    source = source[np.argsort(destination, kind="stable")].astype(np.int32)
    original_id, _, _ = order_vertices(name, start, source, np.zeros(200, dtype=np.int32), 1, 4, seed=0)
    spans = [np.ptp(np.flatnonzero(clique[original_id] == c)) for c in range(25)]
    assert max(spans) == 7 if name == "clusters" else np.median(spans) < 24


@given(st.integers(1, 3), st.integers(1, 9), st.integers(0, 1000), st.integers(0, 20))
def test_counted_loads_are_those_of_the_plan(m, n, seed, slack):
    """The histogram count equals the lookahead plan's loads, for the paper's capacity and for others."""
    start, source = random_graph(seed)
    part = np.random.default_rng(seed).integers(0, m, 40).astype(np.int32)
    original_id, chunk_start, _ = order_vertices("input", start, source, part, m, n, seed=0)
    graph = renumber(Csc(start, source), original_id)
    topology = build_topology(m, chunk_start, graph.in_edge_start, graph.source)
    schedule = np.tile(np.arange(n, dtype=np.int32), (m, 1))
    rows, capacity = count_loads(original_id, chunk_start, part, m, start, source, None)
    assert capacity.tolist() == [limits.slots for limits in batch_limits(topology, schedule, "paper")]
    assert rows == plan_transfers(topology, schedule, "lookahead", capacity).rows_loaded
    rows, _ = count_loads(original_id, chunk_start, part, m, start, source, capacity + slack)
    assert rows == plan_transfers(topology, schedule, "lookahead", capacity + slack).rows_loaded


@given(st.lists(st.integers(0, 20), min_size=1, max_size=40), st.integers(1, 4), st.integers(1, 6), st.data())
def test_cuts(in_degree, m, n, data):
    in_edge_start = np.concatenate([[0], np.cumsum(in_degree)])
    inner = data.draw(st.lists(st.integers(0, len(in_degree)), min_size=m - 1, max_size=m - 1))
    partition_start = np.array([0, *sorted(inner), len(in_degree)])
    start = cut_chunks(in_edge_start, partition_start, n)
    assert start.dtype == np.int64 and len(start) == m * n + 1
    assert start[::n].tolist() == partition_start.tolist()
    sizes = np.diff(start).reshape(m, n)
    for i, size in enumerate(np.diff(partition_start)):
        assert sizes[i].sum() == size
        assert (sizes[i] > 0).all() if size >= n else sizes[i].max(initial=0) <= 1
        if size >= n:  # no chunk costs more than its share, the largest vertex, and what non-emptiness pushed on
            members = np.array(in_degree[partition_start[i] : partition_start[i + 1]])
            work = members / max(members.mean(), 1 / size) + 1
            of_chunk = np.add.reduceat(work, start[i * n : (i + 1) * n] - partition_start[i])
            assert of_chunk.max() <= work.sum() / n + n * work.max() + 1e-9


def test_balance_on_a_large_partition():
    in_degree = np.random.default_rng(0).integers(0, 30, 10_000)
    in_edge_start = np.concatenate([[0], np.cumsum(in_degree)])
    start = cut_chunks(in_edge_start, np.array([0, 10_000]), 32)
    work = np.diff(in_edge_start[start] + in_degree.mean() * start)
    assert work.max() - work.min() <= 2 * (29 + 15)


def test_no_chunk_has_far_more_rows_or_edges_than_the_average_of_its_partition():
    """Where in-degrees lie in order, as in clusters: half of a partition's vertices have nearly all of its edges."""
    in_degree = np.repeat([1, 99, 0, 2], 5000)
    in_edge_start = np.concatenate([[0], np.cumsum(in_degree)])
    start = cut_chunks(in_edge_start, np.array([0, 10_000, 20_000]), 32)
    for size in (np.diff(start), np.diff(in_edge_start[start])):
        for own in size.reshape(2, 32):
            assert own.max() <= 2 * own.mean() + 99


@pytest.mark.parametrize("degree, n, expected", [
    ([5], 1, [0, 1]), ([5], 3, [0, 1, 1, 1]), ([0, 0, 0], 3, [0, 1, 2, 3]), ([9, 0, 0], 3, [0, 1, 2, 3]),
    ([0, 0, 9], 3, [0, 1, 2, 3]), ([0, 0, 0, 0], 2, [0, 2, 4]),
])  # fmt: skip
def test_awkward_sizes(degree, n, expected):
    assert cut_chunks(np.concatenate([[0], np.cumsum(degree)]), np.array([0, len(degree)]), n).tolist() == expected


def test_large_graphs_are_not_ordered_by_partitioners():
    assert candidates(MOST_EDGES + 1) == ["input", "clusters"] and len(candidates(MOST_EDGES)) == 3

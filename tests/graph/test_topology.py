"""Topologies at several grains: the same graph, whatever way its chunks are put together."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hongtu.graph.degrees import degree_statistics
from hongtu.graph.neighbour_sets import miss_ratio, put_distinct
from hongtu.graph.topology import Topology, build_topology
from tests.plain_forms import assert_same


def random_topology(rng: np.random.Generator, partitions: int, chunks: int) -> Topology:
    v, e = int(rng.integers(partitions * chunks, 200)), int(rng.integers(0, 600))
    cuts = np.sort(rng.choice(np.arange(1, v), partitions * chunks - 1, replace=False))
    degree = np.bincount(rng.integers(0, v, e), minlength=v)
    weight = rng.random(e, dtype=np.float32)
    in_edge_start = np.concatenate([[0], np.cumsum(degree)])
    source = rng.integers(0, v, e).astype(np.int32)
    return build_topology(partitions, np.concatenate([[0], cuts, [v]]), in_edge_start, source, weight)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(("partitions", "chunks"), [(1, 1), (1, 7), (3, 5), (4, 8)])
def test_groups_are_what_the_graph_cut_coarser_gives(partitions: int, chunks: int, size: int) -> None:
    topology = random_topology(np.random.default_rng(size), partitions, chunks)
    larger = topology.grouped(size)
    kept = [i * chunks + j for i in range(partitions) for j in range(0, chunks, size)]
    chunk_start = np.append(topology.chunk_start[kept], topology.num_vertices)
    fresh = build_topology(
        partitions, chunk_start, topology.in_edge_start, topology.global_sources(), topology.edge_weight
    )
    assert larger.chunks == fresh.chunks
    for name in ("chunk_start", "source_start", "sources", "local_source", "edge_weight"):
        np.testing.assert_array_equal(getattr(larger, name), getattr(fresh, name), err_msg=name)
    sets = topology.grouped_sets(size)
    np.testing.assert_array_equal(sets.sources, fresh.sources)
    np.testing.assert_array_equal(sets.miss_ratio, topology.miss_ratio)


def held_by_lru(rows: np.ndarray, size: int) -> float:
    """The share of accesses that miss, counted one by one."""
    held: OrderedDict[int, None] = OrderedDict()
    missed = 0
    for row in rows.tolist():
        missed += row not in held
        held[row] = None
        held.move_to_end(row)
        if len(held) > size:
            held.popitem(last=False)
    return missed / len(rows)


@pytest.mark.parametrize("kind", ["skewed", "even", "near"])
def test_accesses_miss_caches_as_often_as_those_of_rows_used_least_recently(kind: str) -> None:
    rng, count = np.random.default_rng(3), 8000
    rows = {
        "skewed": rng.zipf(1.3, count) % 3000,
        "even": rng.integers(0, 400, count),
        "near": np.arange(count) // 20 + rng.integers(0, 60, count),
    }[kind]
    found = miss_ratio(rows)
    assert (np.diff(found) <= 0).all() and found[-1] == pytest.approx(len(np.unique(rows)) / count)
    for k in range(12):
        assert found[k] == pytest.approx(held_by_lru(rows, 2**k), abs=0.03)


def test_what_edges_miss_is_of_sources_over_chunks() -> None:
    topology = random_topology(np.random.default_rng(1), 1, 4)
    first = int(topology.chunk_edges.argmax())
    edges = np.concatenate([topology.neighbour_set(c)[topology.chunk(c).local_source] for c in range(first, 4)])
    np.testing.assert_array_equal(topology.miss_ratio, miss_ratio(edges))
    empty = build_topology(1, np.array([0, 4]), np.zeros(5, np.int64), np.empty(0, np.int32))
    assert (empty.miss_ratio == 1).all()


def test_the_longest_of_a_chunk_is_its_own() -> None:
    """Of chunks of one vertex, of none, and of three."""
    start, source = np.array([0, 2, 2, 7, 8]), np.zeros(8, np.int32)
    assert build_topology(1, np.array([0, 1, 1, 4]), start, source).longest.tolist() == [2, 0, 5]


@given(st.lists(st.integers(7, 400)))
def test_a_bitmap_sorts_and_drops_repeats(rows: list[int]) -> None:
    words, out = np.zeros(7, dtype=np.uint64), np.full(len(rows) + 1, -1, dtype=np.int32)
    end = assert_same(put_distinct, np.array(rows, dtype=np.int32), 7, words, out, 0)
    put_distinct.dispatcher(np.array(rows, dtype=np.int32), 7, words, out, 0)
    assert out[:end].tolist() == sorted(set(rows))
    assert (out[end:] == -1).all() and not words.any()


@pytest.mark.parametrize("weighted", [True, False])
def test_degrees_and_self_loops_are_counted_as_by_hand(weighted: bool) -> None:
    topology = random_topology(np.random.default_rng(7), 2, 6)
    if not weighted:
        topology = replace(topology, edge_weight=None)
    start, sources = topology.in_edge_start, topology.global_sources()
    weight = np.ones(len(sources)) if topology.edge_weight is None else topology.edge_weight.astype(np.float64)
    expected = []
    for v in range(topology.num_vertices):
        own = [(u, w) for u, w in zip(sources[start[v] : start[v + 1]], weight[start[v] : start[v + 1]], strict=True)]
        loops = [w for u, w in own if u == v]
        expected.append([sum(w for _, w in own), sum(loops), loops[-1] if loops else np.nan])
    np.testing.assert_array_equal(degree_statistics(topology), expected)
    rows = np.random.default_rng(8).permutation(topology.num_vertices)[::2]
    np.testing.assert_array_equal(degree_statistics(topology, rows, "float32"), np.float32(expected)[rows])

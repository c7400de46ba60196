"""Topologies at several grains: the same graph, whatever way its chunks are put together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hongtu.bitmap import insert, take_all
from hongtu.topology import Topology, build_topology


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
    np.testing.assert_array_equal(sets.later_accesses, topology.later_accesses)


def test_sources_that_are_needed_most_have_most_of_the_later_accesses() -> None:
    """Source 1 three times, 2 twice, 0 and 3 once: two of three later accesses are to the first quarter of the four."""
    start = np.array([0, 7, 7, 7, 7])
    shares = build_topology(1, np.array([0, 4]), start, np.array([1, 2, 1, 0, 3, 1, 2], np.int32)).later_accesses
    assert shares[0] == 0 and shares[-1] == 1 and (np.diff(shares) >= 0).all()
    assert shares[len(shares) // 4] == pytest.approx(2 / 3) and shares[len(shares) // 2] == pytest.approx(1)
    empty = build_topology(1, np.array([0, 4]), np.zeros(5, np.int64), np.empty(0, np.int32))
    assert np.isfinite(empty.later_accesses).all()


@given(st.lists(st.integers(7, 400)))
def test_a_bitmap_sorts_and_drops_repeats(rows: list[int]) -> None:
    words, out = np.zeros(7, dtype=np.uint64), np.full(len(rows) + 1, -1, dtype=np.int32)
    insert(words, np.array(rows, dtype=np.int32), 7)
    end = take_all(words, min(rows, default=7) - 7, max(rows, default=6) - 6, 7, out, 0)
    assert out[:end].tolist() == sorted(set(rows))
    assert (out[end:] == -1).all() and not words.any()

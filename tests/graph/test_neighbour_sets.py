from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hongtu.graph.neighbour_sets import count_ones, lowest
from hongtu.graph.topology import build_topology


@given(st.integers(1, 300), st.integers(0, 400), st.integers(1, 9), st.integers(0, 1000))
def test_neighbour_sets_are_the_ascending_sources_of_every_chunk(num_vertices, num_edges, chunks, seed):
    rng = np.random.default_rng(seed)
    destination = np.sort(rng.integers(0, num_vertices, num_edges))
    start = np.searchsorted(destination, np.arange(num_vertices + 1))
    source = rng.integers(0, num_vertices, num_edges).astype(np.int32)
    chunk_start = np.sort(np.r_[0, rng.integers(0, num_vertices + 1, chunks - 1), num_vertices])
    topology = build_topology(1, chunk_start, start, source)
    for c, (lo, hi) in enumerate(zip(start[chunk_start[:-1]], start[chunk_start[1:]], strict=True)):
        own = topology.neighbour_set(c)
        assert own.tolist() == np.unique(source[lo:hi]).tolist()
        assert np.array_equal(own[topology.local_source[lo:hi]], source[lo:hi])
    assert len(topology.sources) == topology.source_start[-1] and len(topology.local_source) == len(source)


@pytest.mark.parametrize("word", [1, 2, 3, 2**63, 2**64 - 1, 0x8000000100000000, 0xDEADBEEF12345678])
def test_bits(word):
    with np.errstate(over="ignore"):
        assert count_ones.py_func(np.uint64(word)) == bin(word).count("1")
        assert lowest.py_func(np.uint64(word)) == (word & -word).bit_length() - 1

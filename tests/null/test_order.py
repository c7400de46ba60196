from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hongtu.preprocess.order import cut_chunks, order_vertices


@given(st.integers(1, 5), st.lists(st.integers(0, 4), min_size=1, max_size=30))
def test_input_order(m, part):
    part = np.array(part, dtype=np.int32) % m
    original_id, start = order_vertices(part, m, "input")
    assert original_id.dtype == np.int32 and start.tolist()[0] == 0 and len(start) == m + 1
    for i in range(m):
        assert original_id[start[i] : start[i + 1]].tolist() == np.flatnonzero(part == i).tolist()


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
            work = np.diff((in_edge_start + np.arange(len(in_edge_start)))[start[i * n : (i + 1) * n + 1]])
            members = np.array(in_degree[partition_start[i] : partition_start[i + 1]] or [0]) + 1
            assert work.max() <= members.sum() / n + n * members.max()


def test_balance_on_a_large_partition():
    in_degree = np.random.default_rng(0).integers(0, 30, 10_000)
    in_edge_start = np.concatenate([[0], np.cumsum(in_degree)])
    start = cut_chunks(in_edge_start, np.array([0, 10_000]), 32)
    work = np.diff(in_edge_start[start] + start)
    assert work.max() - work.min() <= 62


@pytest.mark.parametrize("degree, n, expected", [
    ([5], 1, [0, 1]), ([5], 3, [0, 1, 1, 1]), ([0, 0, 0], 3, [0, 1, 2, 3]), ([9, 0, 0], 3, [0, 1, 2, 3]),
    ([0, 0, 9], 3, [0, 1, 2, 3]), ([0, 0, 0, 0], 2, [0, 2, 4]),
])  # fmt: skip
def test_awkward_sizes(degree, n, expected):
    assert cut_chunks(np.concatenate([[0], np.cumsum(degree)]), np.array([0, len(degree)]), n).tolist() == expected

"""Dealing a small graph to ranks compiles nothing: its loops give the same in Python."""

from __future__ import annotations

import numpy as np
import pytest

from hongtu.graph.topology import build_topology
from hongtu.ranks import receptive
from tests.plain_forms import assert_same


@pytest.mark.parametrize("vertices, chunks", [(1, 1), (12, 3), (90, 8)])
def test_what_ranks_read(vertices, chunks):
    rng = np.random.default_rng(vertices)
    start = np.concatenate([[0], np.cumsum(rng.integers(0, 5, vertices))])
    bounds = np.linspace(0, vertices, chunks + 1).astype(np.int64)
    topology = build_topology(1, bounds, start, rng.integers(0, vertices, start[-1]))
    arrays = receptive._arrays(topology)
    assert_same(receptive._mark, *arrays, rng.random(vertices) < 0.3, np.zeros(vertices, np.bool_))
    assert_same(receptive._add, *arrays, rng.standard_normal(vertices), np.zeros(vertices))
    depth, partition = rng.integers(0, 3, vertices).astype(np.int32), rng.integers(0, 2, vertices).astype(np.int32)
    at = np.arange(vertices, dtype=np.int32)
    assert_same(receptive._count_uses, *arrays, depth, 1, partition, at, np.zeros((vertices, 2), np.int32))
    rows = np.arange(vertices)
    chunk = np.searchsorted(bounds, rows, side="right") - 1
    assert_same(
        receptive._edges_of, *arrays[1:], rows, chunk, np.diff(start), rng.permutation(vertices).astype(np.int32)
    )

"""What ranks read, against loops over all edges."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from hongtu.graph.halo import sources_of
from hongtu.graph.topology import build_topology
from hongtu.ranks.stages import FAR, add_over_edges, adopters, edges_of


@pytest.mark.parametrize("vertices, chunks", [(1, 1), (12, 3), (90, 8)])
def test_what_ranks_read(vertices, chunks):
    rng = np.random.default_rng(vertices)
    start = np.concatenate([[0], np.cumsum(rng.integers(0, 5, vertices))])
    source, bounds = rng.integers(0, vertices, start[-1]), np.linspace(0, vertices, chunks + 1).astype(np.int64)
    topology = build_topology(1, bounds, start, source)
    edges = [(v, int(u)) for v, (first, end) in enumerate(pairwise(start)) for u in source[first:end]]

    some, values = rng.random(vertices) < 0.3, rng.standard_normal(vertices)
    assert set(np.flatnonzero(sources_of(topology, some)).tolist()) == {u for v, u in edges if some[v]}
    sums = np.zeros(vertices)
    for v, u in edges:
        sums[v] += values[u]
    assert add_over_edges(topology, values).tolist() == sums.tolist()

    depth, own = rng.integers(0, 3, vertices).astype(np.int16), rng.integers(0, 2, vertices).astype(np.int32)
    depth[rng.random(vertices) < 0.2] = FAR
    home = [int(own[v]) if depth[v] == 0 else -1 for v in range(vertices)]
    for hop in (1, 2):
        uses = {u: [0, 0] for u in range(vertices) if depth[u] == hop}
        for v, u in edges:
            if depth[v] == hop - 1 and u in uses:
                uses[u][home[v]] += 1
        for u, (first, second) in uses.items():
            home[u] = int(second > first)
    assert adopters(topology, depth, own, 2).tolist() == home

    rows = rng.permutation(vertices)
    degree = np.where(some, 0, np.diff(start))[rows]
    row_of = np.argsort(rows)
    at = [e for v, n in zip(rows, degree, strict=True) for e in range(start[v], start[v] + n)]
    found = edges_of(topology, rows, degree)
    assert [x.tolist() for x in found] == [row_of[source[at]].tolist(), at]

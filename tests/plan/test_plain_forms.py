"""Planning a small graph compiles nothing: the numpy forms of the planner's sweeps give the same bits."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from hongtu.graph.topology import build_topology
from hongtu.plan.cache import gaps, intervals, reuse
from tests.plain_forms import assert_same

SIZES = [(0, 1, 1), (1, 1, 1), (3, 9, 0), (5, 40, 7), (32, 300, 90)]  # batches, vertices, most rows of a batch


@pytest.fixture(params=SIZES, ids=str)
def requests(request):
    """Where each batch's rows begin, the rows, ascending in every batch, and how many vertices there are."""
    batches, vertices, most = request.param
    rng = np.random.default_rng(batches)
    rows = [np.sort(rng.choice(vertices, min(most, int(rng.integers(0, most + 1))), False)) for _ in range(batches)]
    start = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return start, np.concatenate([[], *rows]).astype(np.int32), vertices


def gaps_of(start, following, allowed, b):
    """The requests of a batch that begin a gap which may be kept, each with where that ends."""
    for k in range(start[b], start[b + 1]):
        if following[k] >= 0 and (len(allowed) == 0 or allowed[k]):
            yield k, int(following[k])


def counted(start, following, allowed):
    """``count_gaps`` one after the other."""
    begins, ends, numbers = [0], [], []
    for b in range(len(start) - 1):
        tally = Counter(sorted(end for _, end in gaps_of(start, following, allowed, b)))
        ends += tally.keys()
        numbers += tally.values()
        begins.append(len(ends))
    return [begins, ends, numbers]


def stay(start, following, allowed, found, kept):
    """``bridged`` one after the other."""
    stays = [False] * len(following)
    for b in range(len(start) - 1):
        own = slice(found.start[b], found.start[b + 1])
        left = dict(zip(found.end[own].tolist(), kept[own].tolist(), strict=True))
        for k, end in gaps_of(start, following, allowed, b):
            stays[k], left[end] = left[end] > 0, left[end] - 1
    return stays


def test_gaps(requests):
    start, row, vertices = requests
    following = intervals.next_uses(start, row, vertices)
    for allowed in (gaps.ALL, np.random.default_rng(1).random(len(row)) < 0.7):
        found = gaps.count_gaps(start, following, allowed)
        assert [x.tolist() for x in found] == counted(start, following, allowed)
        for room in (0, 3, 50):
            for prefetch in (0, 1, 4):
                kept = assert_same(gaps.choose_gaps, found, np.full(len(start) - 1, room), prefetch)
                stays = gaps.bridged(start, following, allowed, found, kept)
                assert stays.tolist() == stay(start, following, allowed, found, kept)


@pytest.mark.parametrize("vertices, devices, chunks", [(1, 1, 1), (12, 2, 3), (90, 3, 8)])
def test_what_chunks_read(vertices, devices, chunks):
    rng = np.random.default_rng(vertices)
    start = np.concatenate([[0], np.cumsum(rng.integers(0, 5, vertices))])
    bounds = np.linspace(0, vertices, devices * chunks + 1).astype(np.int64)
    topology = build_topology(devices, bounds, start, rng.integers(0, vertices, start[-1]))
    schedule = np.arange(devices * chunks).reshape(devices, chunks)[:, ::-1].copy()
    for lo, hi in ((0, vertices), (vertices // 3, vertices // 2), (0, 0)):
        begin, rows = reuse._transition_requests(topology.source_start, topology.sources, schedule, lo, hi)
        for b, (first, end) in enumerate(pairwise(begin)):
            wanted = np.concatenate([topology.neighbour_set(c) for c in schedule[:, b]])
            assert rows[first:end].tolist() == sorted(set(wanted[(wanted >= lo) & (wanted < hi)].tolist()))

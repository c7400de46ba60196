"""Buckets: the order of rows on a disk, as sorting by its definition gives it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hongtu.plan.cache.buckets import make_buckets
from hongtu.plan.cache.intervals import make_intervals


def random_intervals(rng, first_row, chunk_start, batches):
    """At most one interval of a row opens, and one retires, in a batch."""
    rows = np.repeat(np.arange(first_row, chunk_start[-1]), 2)
    first = rng.integers(0, batches // 2, len(rows)) + np.arange(len(rows)) % 2 * (batches // 2)
    last = np.minimum(first + rng.integers(0, batches // 2, len(rows)), first // (batches // 2) * (batches // 2) + 3)
    order = np.lexsort((rows, first))
    columns = (column[order].astype(np.int32) for column in (rows, np.zeros_like(rows), first, last))
    return make_intervals(*columns, batches)


@pytest.mark.parametrize("retiring", [False, True])
@pytest.mark.parametrize("by", ["batch", "chunk"])
@pytest.mark.parametrize("backward", [False, True])
def test_rows_lie_by_batch_chunk_and_vertex(retiring, by, backward):
    rng, batches = np.random.default_rng(0), 8
    chunk_start = np.array([10, 14, 14, 21, 30])  # the second chunk is empty
    loads = random_intervals(rng, 10, chunk_start, batches)
    order = range(batches)[:: -1 if backward else 1]
    every = make_buckets(loads, chunk_start, order, by, retiring=retiring)
    for begins in (0, 14, 21, 30):
        found = replace(every, begins=begins)
        there = np.flatnonzero(loads.row >= begins)
        batch = (loads.last if retiring else loads.first)[there]
        chunk = (loads.row[there][:, None] >= chunk_start).sum(1)
        step = batches - 1 - batch if backward else batch
        keys = (chunk, step) if by == "batch" else (step, chunk)
        expected = there[np.lexsort((loads.row[there], *keys))]
        assert found.interval.tolist() == expected.tolist() and len(found) == len(expected)
        assert found.rows(slice(3, 7)).tolist() == loads.row[expected[3:7]].tolist()
        for b in range(batches):
            for c in range(4):
                lies = slice(int(found.begin[b, c]), int(found.begin[b, c] + found.count[b, c]))
                assert set(found.interval[lies]) == set(there[(batch == b) & (chunk == c + 1)])

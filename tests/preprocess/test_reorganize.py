from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hongtu.preprocess.reorganize import reorganize


@st.composite
def neighbour_sets(draw, max_vertices=10):
    m, n, num_vertices = draw(st.integers(1, 4)), draw(st.integers(1, 5)), draw(st.integers(1, max_vertices))
    sets = [sorted(draw(st.sets(st.integers(0, num_vertices - 1)))) for _ in range(m * n)]
    return m, n, num_vertices, sets


def flat(sets):
    start = np.concatenate([[0], np.cumsum([len(s) for s in sets])]).astype(np.int64)
    return start, np.array([v for s in sets for v in s], dtype=np.int32)


def algorithm_4(sets, m, n):
    """HongTu's Algorithm 4 with Python sets."""
    batches = [set(sets[j]) for j in range(n)]
    assigned = [list(range(n))]
    for i in range(1, m):
        unused, row = list(range(n)), []
        for batch in batches:
            best = max(unused, key=lambda c: (len(batch & set(sets[i * n + c])), -c))
            unused.remove(best)
            row.append(best)
            batch |= set(sets[i * n + best])
        assigned.append(row)
    tour, left = [0], list(range(1, n))
    while left:
        tour.append(max(left, key=lambda j: (len(batches[tour[-1]] & batches[j]), -j)))
        left.remove(tour[-1])
    return [[row[j] for j in tour] for row in assigned]


@given(neighbour_sets())
def test_against_sets(case):
    m, n, num_vertices, sets = case
    schedule = reorganize(*flat(sets), m, num_vertices)
    assert schedule.dtype == np.int32 and schedule.flags.c_contiguous
    assert schedule.tolist() == algorithm_4(sets, m, n)


@pytest.mark.parametrize("m, n", [(1, 1), (1, 4), (3, 1), (2, 5)])
def test_empty_sets_give_input_order(m, n):
    assert reorganize(*flat([[]] * (m * n)), m, 3).tolist() == [list(range(n))] * m


def test_a_hub_read_by_everyone():
    sets = [[0, 1 + c % 3] for c in range(12)]
    assert reorganize(*flat(sets), 3, 4).tolist() == algorithm_4(sets, 3, 4)

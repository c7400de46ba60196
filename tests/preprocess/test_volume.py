from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hongtu.preprocess.reorganize import Volume, count_volume


def brute_force(sets, owner, schedule):
    """The definitions, with Python sets."""
    m, n = schedule.shape
    run = [[set(sets[i * n + schedule[i, k]]) for k in range(n)] for i in range(m)]
    union = [set().union(*(run[i][k] for i in range(m))) for k in range(n)]
    remote = [[{v for v in run[i][k] if owner[v] != i} for k in range(n)] for i in range(m)]
    return Volume(
        v_ori=sum(len(s) for s in sets),
        v_p2p=sum(len(t) for t in union),
        v_ru=len(union[0]) + sum(len(union[k] - union[k - 1]) for k in range(1, n)),
        pulled=sum(len(remote[i][k] - (run[i][k - 1] if k else set())) for i in range(m) for k in range(n)),
    )


@st.composite
def cases(draw):
    m, n, num_vertices = draw(st.integers(1, 4)), draw(st.integers(1, 5)), draw(st.integers(1, 10))
    sets = [sorted(draw(st.sets(st.integers(0, num_vertices - 1)))) for _ in range(m * n)]
    cuts = sorted(draw(st.lists(st.integers(0, num_vertices), min_size=m - 1, max_size=m - 1)))
    schedule = np.array([draw(st.permutations(range(n))) for _ in range(m)], dtype=np.int32)
    return sets, np.array([0, *cuts, num_vertices]), schedule


@given(cases())
def test_against_sets(case):
    sets, partition_start, schedule = case
    start = np.concatenate([[0], np.cumsum([len(s) for s in sets])]).astype(np.int64)
    sources = np.array([v for s in sets for v in s], dtype=np.int32)
    owner = np.repeat(np.arange(len(schedule)), np.diff(partition_start))
    volume = count_volume(start, sources, partition_start, schedule)
    assert volume == brute_force(sets, owner, schedule)
    assert volume.v_ru <= volume.v_p2p <= volume.v_ori
    assert all(type(rows) is int for rows in volume)

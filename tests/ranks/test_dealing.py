"""Partitions are dealt to ranks by what they are predicted to take."""

from __future__ import annotations

import dataclasses
from itertools import combinations, pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hongtu
from hongtu.errors import InputError
from hongtu.hardware import CPU
from hongtu.ranks.share import deal_partitions
from hongtu.train.network_plan import Job
from hongtu.train.ranked import deal
from hongtu.train.settings import RunSpec, adam, make_loss
from tests import graphs, problems
from tests.models import SIX
from tests.ranks.turns import run_ranks


def of(partitions):
    """An artifact with so many."""
    return SimpleNamespace(path="a", topology=SimpleNamespace(partitions=partitions))


def slowest(seconds, bounds):
    return max(sum(seconds[first:end]) for first, end in pairwise(bounds))


@given(st.lists(st.integers(0, 20), min_size=2, max_size=8), st.data())
def test_the_slowest_rank_is_as_fast_as_can_be(seconds, data):
    ranks = data.draw(st.integers(2, len(seconds)))
    bounds = deal_partitions(of(len(seconds)), ranks, np.array(seconds, dtype=float))
    assert bounds[0] == 0 and bounds[-1] == len(seconds) and len(bounds) == ranks + 1
    assert all(first < end for first, end in pairwise(bounds))
    every = ([0, *cut, len(seconds)] for cut in combinations(range(1, len(seconds)), ranks - 1))
    assert slowest(seconds, bounds) == min(slowest(seconds, other) for other in every)


def test_partitions_alike_are_dealt_evenly():
    assert deal_partitions(of(16), 4, np.ones(16)) == deal_partitions(of(16), 4) == [0, 4, 8, 12, 16]
    with pytest.raises(InputError, match="2 partitions for 3 ranks"):
        deal_partitions(of(2), 3)


def uneven():
    """The vertices of the first quarter have most in-edges, so that ranges with as many edges have few of them."""
    source, target = np.random.default_rng(0).integers(0, 400, (2, 30_000))
    ring = np.arange(400)
    edges = np.stack([np.concatenate([source, ring]), np.concatenate([target % 100, np.roll(ring, -1)])])
    return problems.problem_of(graphs.Graph("uneven", edges, None, 400))


def test_a_partition_with_most_of_the_work_has_a_rank_for_itself():
    problem = uneven()
    artifact = problems.prepare(problem, 4, 2, partitioner="range")
    network = hongtu.Trainer(artifact, SIX[0].build(problem))._network
    loss, optimizer = make_loss(artifact, "cross_entropy"), adam(network.modules.parameters())
    rows = dataclasses.replace(CPU, chunk_seconds=1e-18, call_seconds=1e-18, memory_bandwidth=1e18)  # products alone

    def dealt(hardware):
        spec = RunSpec(strategy=hongtu.Strategy())
        return deal(artifact, 2, lambda: Job(artifact, loss, optimizer, spec).sketch(network), hardware)

    start = artifact.topology.partition_start
    assert start[3] < 100 and dealt(rows) == [0, 3, 4] and dealt(CPU) == [0, 2, 4]

    def work(group):
        trainer = hongtu.Trainer(artifact, SIX[0].build(problem), ranks=group, hardware=rows)
        return trainer.train_epoch().loss, trainer._share.span

    (first, few), (second, rest) = run_ranks(2, work)
    assert few == slice(0, start[3]) and rest == slice(start[3], 400)
    assert first == second == pytest.approx(hongtu.Trainer(artifact, SIX[0].build(problem)).train_epoch().loss)

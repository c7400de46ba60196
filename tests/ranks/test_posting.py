"""Rows leave for other ranks in the batch behind which nothing changes them, in messages of some size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hongtu
from hongtu.engine import messages
from hongtu.engine.messages import LAST, way_by_step
from hongtu.graph.halo import Crossing
from hongtu.plan.cost.seconds import _beside
from hongtu.plan.passes.strategy import Choice, Strategy
from hongtu.plan.program.moves import Post
from hongtu.plan.search.build import make_plan
from hongtu.ranks.share import share_of
from hongtu.ranks.stages import ByLayer
from tests import graphs, problems, training
from tests.checker.check import check_program
from tests.checker.held import ProgramError
from tests.models import SIX
from tests.plan.test_interpreter import random_shape
from tests.plan.test_transfer_plan import random_case
from tests.ranks.test_dependencies import check_ranks
from tests.ranks.test_interpreted import artifact_of
from tests.ranks.turns import TurnRanks, run_ranks


@given(st.lists(st.integers(0, 6), max_size=40), st.integers(1, 9))
def test_every_row_leaves_once_and_not_before_its_step(steps, least):
    steps = np.array(steps, dtype=np.int32)
    rows = 100 + np.arange(len(steps))
    way = way_by_step(rows, steps, least)
    assert sorted(way.rows.tolist()) == rows.tolist()
    parts = way.parts(way.rows)
    assert [row for part in parts for row in part.tolist()] == way.rows.tolist()
    for step, part in zip(way.steps, parts, strict=True):
        assert steps[part.numpy() - 100].max() == step
    assert all(len(part) >= least for part in parts[:-1])
    assert way.steps == sorted(set(way.steps))


def test_rows_that_nobody_posts_leave_at_once():
    way = way_by_step(np.array([4, 2, 9]), np.full(3, LAST), 0)
    assert [part.tolist() for part in way.parts(way.rows)] == [[4, 2, 9]]


@pytest.mark.parametrize(
    ("steps", "work", "crossing", "hidden"),
    [
        (None, 2.0, 2.0, 1.0),  # half of the rows leave after a second, the rest after two; each takes one
        (([0, 0], [0]), 4.0, 2.0, 2.0),  # all behind the first of two batches
        (([1, 1, 1],), 4.0, 2.0, 0.0),  # all behind the last
        (([0, 1],), 0.0, 2.0, 0.0),
        (([],), 3.0, 0.0, 0.0),
    ],
)
def test_seconds_that_pass_beside_computation(steps, work, crossing, hidden):
    arrays = None if steps is None else tuple(np.array(part, dtype=np.int32) for part in steps)
    post = Post(tensor="z1", crossing=Crossing((), ()), link="fetch", steps=arrays)
    assert _beside(post, 2, work, crossing) == pytest.approx(hidden)


def posted(p):
    return [k for k, x in enumerate(p.body) if isinstance(x, Post)]


def faults_of(program, rng):
    """Programs in which one row leaves a batch too early."""
    for k, p in enumerate(program.train):
        for at in posted(p):
            late = [(rank, row) for rank, steps in enumerate(p.body[at].steps) for row in np.flatnonzero(steps)]
            if late:
                rank, row = late[rng.integers(len(late))]
                steps = [array.copy() for array in p.body[at].steps]
                steps[rank][row] -= 1
                body = (*p.body[:at], replace(p.body[at], steps=tuple(steps)), *p.body[at + 1 :])
                passes = (*program.train[:k], replace(p, body=body), *program.train[k + 1 :])
                yield replace(program, train=passes)


def test_a_row_that_leaves_too_early_is_found(monkeypatch):
    monkeypatch.setattr("hongtu.graph.artifact._file_identity", lambda file: (0, 0, 0))
    found = 0
    for seed in range(120):
        rng = np.random.default_rng(seed)
        topology, schedule, _ = random_case(rng)
        shape = random_shape(rng)
        if topology.partitions < 2 or shape.learned_input:
            continue
        mask = rng.random(topology.num_vertices) < 0.4
        share = share_of(
            artifact_of(topology, schedule, shape, mask, rng),
            0,
            [0, 1, topology.partitions],
            ByLayer(len(shape.layers), 1),
        )
        choice = Choice(fields=() if share.halo is None else share.halo.fields, halo=share.halo)
        strategy = Strategy(resident=False, prune=False)
        program = make_plan(share.topology, share.schedule_paper, shape, strategy, None, choice=choice).program
        check_program(program)
        for broken in faults_of(program, rng):
            with pytest.raises(ProgramError, match=r"changes after it has left|was never written"):
                check_program(broken)
            found += 1
    assert found >= 20


def test_messages_leave_while_the_pass_goes_on(monkeypatch):
    """And the numbers are one process's."""
    monkeypatch.setattr(messages, "LEAST", 1)
    left, begin = [], TurnRanks.begin

    def noted(self, out, into):
        out = list(out)
        left.append((self.rank, len(out), getattr(self, "where", "")))
        return begin(self, out, into)

    monkeypatch.setattr(TurnRanks, "begin", noted)
    check_ranks(2, SIX[0], problems.awkward(), (2, 6), dependencies="comm", strategy=Strategy(group=False))
    alone = [where for rank, number, where in left if rank == 0 and number == 1]
    assert {"in pass 'forward 0'"} < set(alone), "values, and gradients"
    assert max(map(alone.count, alone)) > 2 * 2, "several in every epoch"


def test_chunks_whose_rows_others_wait_for_come_first():
    """Of a ring those at both ends of each half; all rows have left before the others work."""
    ring = np.arange(160)
    edges = np.concatenate([[ring, np.roll(ring, 1)], [np.roll(ring, 1), ring]], axis=1)
    problem = problems.problem_of(graphs.Graph("ring", edges, None, len(ring)))
    artifact = problems.prepare(problem, 2, 8, partitioner="range")

    def work(group):
        options = {"dependencies": "comm", "strategy": Strategy(group=False)}
        trainer = hongtu.Trainer(artifact, SIX[0].build(problem), ranks=group, **options)
        return [(x.steps, len(p.order)) for p in trainer.plan.program.train for x in p.body if isinstance(x, Post)]

    for posts in run_ranks(2, work):
        assert len(posts) == 2
        for steps, batches in posts:
            assert batches > 8 and sorted(np.concatenate(steps)) == [0, 1]


def test_what_is_posted_is_counted_in_host_memory():
    def work(group):
        trainer = training.make_trainer(SIX[0], problems.awkward(), (4, 3), ranks=group, dependencies="comm")
        return trainer.train_epoch().peak_bytes["pageable host"], trainer.plan.host_bytes["pageable host"]

    for counted, planned in run_ranks(2, work):
        assert counted == planned

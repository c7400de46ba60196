"""Critical paths of tiny programs, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hongtu.hardware import H200
from hongtu.plan.cost.seconds import ROUNDS, pass_seconds, walk
from hongtu.plan.passes.strategy import Choice
from tests import tiny

BATCHES = 4


def backward(sets, batches=BATCHES):
    """A pass that loads, computes, flushes and has the host add, over so many batches."""
    p = tiny.named(tiny.plan(tiny.GAT, "paper", Choice(staging=sets)).program, "backward 1")
    return replace(p, order=range(batches - 1, -1, -1))


def seconds(sets, batches=BATCHES, **batch):
    return walk(backward(sets, batches), {stream: each * batches for stream, each in batch.items()})


def test_one_set_runs_a_batch_behind_the_other():
    """A batch's loads wait until the last one's rows have left; only the host's part is beside the next batch."""
    assert seconds(1, load=3, compute=5, flush=2, host=1) == pytest.approx(4 * (3 + 5 + 2) + 1)
    assert seconds(1, load=1, compute=1, flush=1, host=9) == pytest.approx(3 + 9 + 3 * (1 + 9))  # a flush waits for it


@pytest.mark.parametrize(
    "batch, expected",
    [
        ({"load": 3, "compute": 5, "flush": 2, "host": 1}, 3 + 4 * 5 + 2 + 1),  # compute is never idle once it began
        ({"load": 7, "compute": 5, "flush": 2, "host": 1}, 4 * 7 + 5 + 2 + 1),
        ({"load": 1, "compute": 1, "flush": 6, "host": 1}, 1 + 1 + 4 * 6 + 1),
        ({"load": 1, "compute": 1, "flush": 1, "host": 6}, 1 + 1 + 1 + 4 * 6),
    ],
)
def test_two_sets_take_as_long_as_the_longest_stream_and_its_ends(batch, expected):
    assert seconds(2, **batch) == pytest.approx(expected)


def test_two_sets_are_not_enough_for_three_stages_of_the_same_length():
    """Batch 2 loads when batch 0 has left: two batches every three seconds."""
    assert seconds(2, load=1, compute=1, flush=1, host=0) == pytest.approx(3 + 1 + 2 + 1)
    assert seconds(3, load=1, compute=1, flush=1, host=0) == pytest.approx(3 + 3)


@pytest.mark.parametrize("sets", [1, 2, 3])
def test_what_is_not_walked_goes_on_alike(sets, monkeypatch):
    batch = {"load": 2.0, "compute": 3.0, "flush": 2.5, "host": 1.0}
    found = seconds(sets, 100, **batch)
    assert ROUNDS * sets < 100
    monkeypatch.setattr("hongtu.plan.cost.seconds.ROUNDS", 100)
    assert found == pytest.approx(seconds(sets, 100, **batch))


def test_what_is_hidden_is_what_a_walk_saves():
    plan = tiny.plan(tiny.GAT, "paper", Choice(staging=2))
    for p in plan.passes.train:
        found, plain = pass_seconds(plan, p, H200), pass_seconds(replace(plan, choice=Choice(staging=1)), p, H200)
        assert plain.hidden == 0 and found.hidden <= 0
        assert replace(found, hidden=0.0) == plain
        longest = max(found.aggregate + found.rowwise + found.dispatch, found.load, found.flush, found.accumulate)
        assert longest <= found.total <= plain.total

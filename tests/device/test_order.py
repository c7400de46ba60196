"""Whatever several streams do to the same bytes is ordered by waits, of which none is one too many."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

from hongtu.device.streams import ThreadStream
from hongtu.plan.passes.strategy import Strategy, get_strategy
from tests import problems, training
from tests.models import SIX
from tests.staged import simulated
from tests.tape import Access, Tape, TapedOperations, Waited, conflicts, taped, taping

OVERLAPPING = replace(Strategy(), resident=False, group=False)


@pytest.mark.long
@pytest.mark.parametrize("strategy", [OVERLAPPING, get_strategy("paper")], ids=["overlapping", "in turn"])
def test_streams_are_ordered_and_no_wait_is_one_too_many(strategy, monkeypatch):
    simulated()
    device, overlaps = taped(), strategy is OVERLAPPING
    options = {"device": device, "strategy": strategy, "detect_anomaly": False}
    trainer = training.make_trainer(SIX[0], problems.awkward(), (4, 8), **options)
    assert trainer.plan.choice.staging == 1 + overlaps
    tape = device.scheduler
    with taping(tape, monkeypatch):
        trainer.train_epoch()
    assert not conflicts(tape)
    waits = {entry.why for entry in tape.entries if isinstance(entry, Waited)} - {""}
    assert len(waits) == 10  # that of the host is in a pass of set-up, which packs anew
    assert ("load: peers have pulled the last" in waits) is not overlaps
    assert not [why for why in waits if not conflicts(tape, frozenset({why}))], "not needed"


@pytest.mark.most(5)
@pytest.mark.long
@pytest.mark.parametrize("strategy", [OVERLAPPING, Strategy()], ids=["out of core", "in memory"])
@pytest.mark.parametrize("model", SIX, ids=repr)
def test_streams_of_two_epochs_are_ordered(model, strategy, monkeypatch):
    simulated()
    device = taped()
    options = {"device": device, "strategy": strategy, "detect_anomaly": False}
    trainer = training.make_trainer(model, problems.awkward(), (4, 4), **options)
    with taping(device.scheduler, monkeypatch):
        for _ in range(2):
            trainer.train_epoch()
    assert not conflicts(device.scheduler)


def test_what_moves_no_rows_touches_none():
    """An index of length 0 stands for all rows only where there are rows."""
    simulated()
    device = taped()
    tape, nothing, rows = device.scheduler, torch.empty(0, dtype=torch.int32), torch.zeros(4, 2)
    with TapedOperations(tape):
        made = rows.index_select(0, nothing)
        device.kernels.scatter_add_rows(rows, nothing, made)
        device.kernels.gather_rows(rows, nothing, made)
        rows.new_empty(3)
        assert not [entry for entry in tape.entries if isinstance(entry, Access)]
        device.kernels.copy_rows(rows, None, torch.ones(4, 2), None)
    assert [entry.kind for entry in tape.entries if isinstance(entry, Access)] == ["writes", "reads", "writes"]


def test_a_tape_tells_rows_and_events_apart():
    tape = Tape()
    first, second = tape.queue(), tape.queue()
    rows = torch.zeros(4, 2)

    def touch(kind, *numbers):
        return lambda: tape.touch(kind, rows, torch.tensor(numbers))

    first.run(touch("writes", 0, 1))
    second.run(touch("reads", 2))
    for queue in (first, second):
        queue.run(touch("adds", 3))
    second.wait(first.record(), "the sum is there")
    second.run(touch("reads", 0, 3))
    second.record().synchronize("end")
    assert not conflicts(tape)
    assert conflicts(tape, frozenset({"the sum is there"})) == {
        f"stream 2 reads () what stream 1 {kind}" for kind in ("writes", "adds")
    }


@pytest.mark.parametrize("full", [0, 1, 64])
def test_a_stream_goes_while_its_thread_is_behind(full):
    begun, may_go_on = threading.Event(), threading.Event()
    stream = ThreadStream()
    stream.run(lambda: (begun.set(), may_go_on.wait(60)))
    assert begun.wait(60)
    for _ in range(full):
        stream.run(lambda: None)
    held = [stream]
    del stream
    gone = threading.Thread(target=held.clear, daemon=True)
    gone.start()
    gone.join(20)
    assert not gone.is_alive()
    may_go_on.set()

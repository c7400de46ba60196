"""What repeats is captured and done again without the engine: to the last bit, with all that is counted."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

import hongtu
from hongtu.device.capture import CaptureError
from hongtu.device.simulated import SimulatedBackend
from hongtu.engine.repeats import FIRST, SECOND
from hongtu.nn import BatchNorm, Dropout, GCNConv
from hongtu.nn.dropout import epoch_key
from hongtu.plan.passes.strategy import Strategy
from hongtu.plan.program import moves
from tests import frozen, problems, training
from tests.frozen import CapturingBackend
from tests.models import SIX
from tests.staged import simulated

OUT_OF_CORE = replace(Strategy(), resident=False, group=False)
IN_MEMORY = Strategy()


def trainer_of(layers, grain, *, captures, strategy=OUT_OF_CORE, **options):
    """With parameters of seed 0."""
    simulated()
    artifact = training.prepare(problems.awkward(), *grain)
    torch.manual_seed(0)
    layers = layers(artifact.feature_width, artifact.num_classes)
    for parameter in torch.nn.ModuleList(layers).parameters():
        torch.nn.init.normal_(parameter)
    options = {
        "device": CapturingBackend() if captures else SimulatedBackend(),
        "strategy": strategy,
        "dtype": torch.float64,
        **options,
    }
    return hongtu.Trainer(artifact, layers, optimizer=lambda p: torch.optim.Adam(p, lr=0.1), **options)


def dropping(model):
    """A model's layers, with dropout before every one."""
    return lambda *widths: [x for layer in model.layers(*widths) for x in (Dropout(0.4), layer)]


def epoch(trainer, number):
    """Its loss, all gradients and parameters behind it, and what was counted; streams take turns by the number."""
    trainer._engine._devices[0]._scheduler._random.seed(number)
    trainer.optimizer.param_groups[0]["lr"] = 0.1 / number
    record = trainer.train_epoch()
    tensors = [x.detach().clone() for p in trainer.model.parameters() for x in (p, p.grad)]
    return record.loss, tensors, (record.bytes, record.rows, record.peak_bytes, record.arena_bytes)


def replays(trainer, monkeypatch):
    """Of how many passes work is done again from now on."""
    seen, replay = [], frozen.Frozen.replay
    monkeypatch.setattr(frozen.Frozen, "replay", lambda self: seen.append(self) or replay(self))
    return seen


def same(found, expected):
    assert found[0] == expected[0] and found[2] == expected[2]
    assert all(map(torch.equal, found[1], expected[1]))


@pytest.mark.every
@pytest.mark.long
@pytest.mark.parametrize("strategy", [OUT_OF_CORE, IN_MEMORY], ids=["out of core", "in memory"])
@pytest.mark.parametrize("grain", [(1, 7), (4, 4)], ids=lambda grain: f"m{grain[0]}")
@pytest.mark.parametrize("model", SIX, ids=repr)
def test_captured_epochs_are_the_next_three(model, grain, strategy, monkeypatch):
    """With dropout, and a rate of learning that changes; streams take other turns in every epoch, where waits allow it
    (with several devices, some add to one row, and the order of these decides on its last bits: it is the same)."""
    eager, captured = (trainer_of(dropping(model), grain, captures=c, strategy=strategy) for c in (False, True))
    seen = replays(captured, monkeypatch)
    for number in range(1, 6):
        assert not seen or number > 3
        same(epoch(captured, number), epoch(eager, number))
    assert len(seen) == 3 * len(captured.plan.program.train) > 0


def calls_of_hongtu(trainer, monkeypatch):
    """How many functions of hongtu one more epoch calls, with all work of streams left out where it is captured."""
    monkeypatch.setattr(frozen.Frozen, "replay", lambda self: None)
    calls = [0]

    def count(frame, event, _):
        calls[0] += event == "call" and "/hongtu/" in frame.f_code.co_filename

    sys.setprofile(count)
    try:
        trainer.train_epoch()
    finally:
        sys.setprofile(None)
    return calls[0]


@pytest.mark.long
def test_the_python_of_a_captured_epoch_does_not_depend_on_the_number_of_chunks(monkeypatch):
    found = {}
    for captures, chunks in ((True, 4), (True, 32), (False, 4)):
        trainer = trainer_of(dropping(SIX[0]), (1, chunks), captures=captures)
        for _ in range(3):
            trainer.train_epoch()
        assert {len(p.order) for p in trainer.plan.program.train} == {chunks}
        found[captures, chunks] = calls_of_hongtu(trainer, monkeypatch)
    assert found[True, 4] == found[True, 32] < found[False, 4] / 2, found


def test_the_parameter_block_is_all_that_captured_work_reads_of_an_epoch(monkeypatch):
    trainer = trainer_of(dropping(SIX[0]), (1, 7), captures=True)
    for number in (1, 2, 3):
        epoch(trainer, number)
    executor, [key] = trainer._engine._executor, [key for _, key in trainer._network.context.keys.values()]
    found = {}
    for number in (0, 1, 0):
        key.fill_(number)
        loss = executor.run(executor.program.train)
        assert found.setdefault(number, loss) == loss
    assert found[0] != found[1]
    assert epoch_key(trainer._network.context, key.device) is key


class Own(torch.nn.Module):
    def forward(self, x):
        return x * 2


def with_norm(features, classes):
    return [GCNConv(features, 5), BatchNorm(5), GCNConv(5, classes)]


def with_own(features, classes):
    return [GCNConv(features, 5), Own(), GCNConv(5, classes)]


@pytest.mark.parametrize(
    ("layers", "options", "reason", "said"),
    [
        (with_norm, {}, "begin_moments", "begin_moments"),
        (with_own, {}, "", "a module"),
        (dropping(SIX[0]), {"loss": lambda out, y: out.sum(1)}, "", "the loss"),
    ],
    ids=["batch norm", "a module", "a loss"],
)
def test_what_may_differ_by_epoch_or_needs_the_host_runs_eagerly(layers, options, reason, said, monkeypatch):
    trainer = trainer_of(layers, (1, 7), captures=True, **options)
    seen = replays(trainer, monkeypatch)
    for number in (1, 2, 3, 4):
        epoch(trainer, number)
    assert not seen and reason in trainer._engine._executor.repeats.reason
    assert said in trainer.record.eager
    assert trainer.plan.captured is False


def test_an_epoch_says_why_it_was_dispatched_by_python():
    trainer = trainer_of(dropping(SIX[0]), (1, 3), captures=True)
    found = [trainer.train_epoch().eager for _ in range(4)]
    assert found == [FIRST, SECOND, "", ""] and trainer.plan.captured
    trainer.evaluate()
    trainer.model[0].p = 0.5
    assert [trainer.train_epoch().eager for _ in range(3)] == [FIRST, SECOND, ""]
    with torch.autograd.set_detect_anomaly(True):
        assert "anomaly" in trainer.train_epoch().eager
    assert [trainer.train_epoch().eager for _ in range(3)] == [FIRST, SECOND, ""]
    assert trainer.record.to_dict()["eager"] == ""
    for strategy, device in ((OUT_OF_CORE, False), (replace(OUT_OF_CORE, capture=False), True)):
        eager = trainer_of(dropping(SIX[0]), (1, 3), captures=device, strategy=strategy)
        assert "captures" in eager.train_epoch().eager


def test_layers_that_ask_the_device_run_eagerly(monkeypatch):
    relu = torch.relu

    def asks(x):
        float(x.detach()[0, 0])
        return relu(x)

    monkeypatch.setattr("hongtu.model.checks.PLAIN_ACTIVATIONS", {asks})
    trainer = trainer_of(lambda f, c: [GCNConv(f, 5, activation=asks), GCNConv(5, c)], (1, 7), captures=True)
    seen = replays(trainer, monkeypatch)
    for number in (1, 2, 3, 4):
        epoch(trainer, number)
    assert not seen and "_local_scalar_dense" in trainer._engine._executor.repeats.reason


def take_host_rows(trainer):
    """Have somebody else use the memory of host rows that the second pass makes, for good."""
    x = next(x for x in trainer.plan.program.train[1].before if isinstance(x, moves.Place))
    trainer.held = trainer._engine.host._pool.take((trainer.artifact.num_vertices, *x.shape), torch.float64)


CHANGES = {
    "dropout": lambda trainer: setattr(trainer.model[0], "p", 0.6),
    "new gradients": lambda trainer: trainer.optimizer.zero_grad(set_to_none=True),
    "other gradients": lambda trainer: [setattr(p, "grad", torch.ones_like(p)) for p in trainer.model.parameters()],
    "evaluation": lambda trainer: trainer.evaluate(),
    "host rows": take_host_rows,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_people_change_between_epochs_is_seen(change, monkeypatch):
    """What is captured is captured anew where it has to be."""
    eager, captured = (trainer_of(dropping(SIX[1]), (1, 3), captures=c) for c in (False, True))
    seen, passes = replays(captured, monkeypatch), len(captured.plan.program.train)
    for number in range(1, 7):
        if number == 4:
            assert len(seen) == passes
            for trainer in (eager, captured):
                CHANGES[change](trainer)
        same(epoch(captured, number), epoch(eager, number))
        if number == 4:
            assert len(seen) - passes == {"evaluation": passes, "host rows": 1}.get(change, 0)
    assert len(seen) == passes + {"evaluation": 3 * passes, "host rows": 1 + passes}.get(change, passes)


def test_what_cannot_be_captured_is_run_again_eagerly(monkeypatch):
    """In the middle of an epoch: it is as if nothing had been tried."""
    eager, captured = (trainer_of(dropping(SIX[1]), (1, 3), captures=c) for c in (False, True))
    capture, tried = frozen.FrozenRecorder.capture, []

    def fails(self, work, drain):
        tried.append(self)
        if len(tried) == 3:
            work()
            raise CaptureError("something cannot be captured")
        return capture(self, work, drain)

    monkeypatch.setattr(frozen.FrozenRecorder, "capture", fails)
    for number in (1, 2, 3):
        with pytest.warns(UserWarning, match="not captured from now on: something") if number == 2 else nullcontext():
            found = epoch(captured, number)
        same(found, epoch(eager, number))
    assert len(tried) == 3

"""A frozen epoch, done again without the engine, is the next epoch: only the parameter block has changed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import hongtu
from hongtu.device.layer_memory import WorkspaceTracker
from hongtu.nn import Dropout
from hongtu.nn.dropout import epoch_key
from hongtu.plan.passes.strategy import Strategy
from tests import problems, training
from tests.models import SIX
from tests.replay import recording, replay
from tests.staged import simulated
from tests.tape import taped

OUT_OF_CORE = replace(Strategy(), resident=False, group=False)


def trainer_of(model, grain):
    """With dropout before every layer, on a tape of its own."""
    artifact = training.prepare(problems.awkward(), *grain)
    layers = [x for layer in model.layers(artifact.feature_width, artifact.num_classes) for x in (Dropout(0.4), layer)]
    torch.manual_seed(0)
    for parameter in torch.nn.ModuleList(layers).parameters():
        torch.nn.init.normal_(parameter)
    options = {"device": taped(), "strategy": OUT_OF_CORE, "dtype": torch.float64, "detect_anomaly": False}
    return hongtu.Trainer(artifact, layers, optimizer=lambda p: torch.optim.Adam(p, lr=0.1), **options)


def epoch(trainer, number):
    """Its loss, and all gradients and parameters behind it; streams take the same turns whatever they did before."""
    trainer._engine._devices[0]._scheduler._random.seed(7)
    trainer.optimizer.param_groups[0]["lr"] = 0.1 / number
    loss = trainer.train_epoch().loss
    return loss, [x.detach().clone() for p in trainer.model.parameters() for x in (p, p.grad)]


def frozen(trainer, monkeypatch):
    """The second epoch, as what streams did inside its passes."""
    executor, tape = trainer._engine._executor, trainer._engine._devices[0]._scheduler
    epoch(trainer, 1)
    run, begin = executor.run, tape.now.entries
    with monkeypatch.context() as patched:
        patched.setattr(WorkspaceTracker, "live", 0)  # a tape holds what layers let go

        def recorded(passes):
            with recording(tape, monkeypatch):
                return run(passes)

        patched.setattr(executor, "run", recorded)
        epoch(trainer, 2)
    return tape.entries[begin:]


def replayed(trainer, entries, seed=None):
    """From now on an epoch's passes are those entries."""
    executor = trainer._engine._executor

    def run(passes):
        replay(entries, seed)
        return sum(float(partition.loss_value) for partition in executor.partitions)

    executor.run = run


@pytest.mark.long
@pytest.mark.parametrize("grain", [(1, 7), (4, 4)], ids=lambda grain: f"m{grain[0]}")
@pytest.mark.parametrize("model", SIX, ids=repr)
def test_the_frozen_tape_is_the_next_three_epochs(model, grain, monkeypatch):
    """To the last bit, with dropout, and a rate of learning that changes; with one device in any order of its streams
    that the waits allow (where several add to one row, the order of these decides on its last bits)."""
    simulated()
    eager, trainer = (trainer_of(model, grain) for _ in range(2))
    expected = [epoch(eager, number) for number in range(1, 6)]
    entries = frozen(trainer, monkeypatch)
    for number in (3, 4, 5):
        replayed(trainer, entries, number if grain[0] == 1 else None)
        loss, tensors = epoch(trainer, number)
        assert loss == expected[number - 1][0] != expected[number - 2][0], number
        assert all(map(torch.equal, tensors, expected[number - 1][1])), number


def test_the_parameter_block_is_all_that_a_frozen_tape_reads_of_an_epoch(monkeypatch):
    simulated()
    trainer = trainer_of(SIX[0], (1, 7))
    entries = frozen(trainer, monkeypatch)
    replayed(trainer, entries)
    run, [key] = trainer._engine._executor.run, [key for _, key in trainer._network.context.keys.values()]
    replay(entries)
    found = {}
    for number in (0, 1, 0):
        key.fill_(number)
        loss = run(())
        assert found.setdefault(number, loss) == loss
    assert found[0] != found[1]
    assert epoch_key(trainer._network.context, key.device) is key

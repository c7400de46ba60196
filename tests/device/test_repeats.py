"""An epoch does what the last one did, at the same addresses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import hongtu
from hongtu.device import simulated as simulated_module
from hongtu.device.capture import Asking
from hongtu.device.layer_memory import WorkspaceTracker
from hongtu.device.staged import StagedDevice
from hongtu.engine.executor import Executor
from hongtu.nn import Dropout, GATConv
from hongtu.plan.passes.strategy import Strategy
from hongtu.plan.search import planner
from tests import problems, staged, training
from tests.models import SIX
from tests.staged import simulated
from tests.tape import DISPATCHER, taped, taping, work_between

IN_MEMORY = Strategy()
OUT_OF_CORE = replace(Strategy(), resident=False, group=False)


@pytest.mark.every
@pytest.mark.long
@pytest.mark.parametrize("grain", [(1, 7), (2, 6)], ids=lambda grain: f"m{grain[0]}")
@pytest.mark.parametrize("times", [None, 1.0, 1.5], ids=["memory", "smallest", "some"])
@pytest.mark.parametrize("model", SIX, ids=repr)
def test_the_tapes_of_two_epochs_are_equal(model, times, grain, monkeypatch):
    simulated()
    monkeypatch.setattr(planner, "SLABS", (True,))
    problem, device, strategy = problems.awkward(), taped(), IN_MEMORY if times is None else OUT_OF_CORE
    options = {"device": device, "strategy": strategy, "detect_anomaly": False}
    if times is not None:
        options["device_memory"] = int(times * least(model, problem, grain))
    written = check(training.make_trainer(model, problem, grain, **options), device.scheduler, monkeypatch)
    assert written == {"aten.fill_.Scalar"}  # the key of dropout, which may drop something later


@pytest.mark.long
@pytest.mark.parametrize("grain", [(1, 7), (4, 4)], ids=lambda grain: f"m{grain[0]}")
def test_what_changes_by_epoch_is_at_the_same_addresses(grain, monkeypatch):
    """The key of dropout is written before the passes, and Adam steps behind them; streams begin with no new number."""
    simulated()
    device, artifact = taped(), training.prepare(problems.awkward(), *grain)
    layers = [GATConv(artifact.feature_width, 8, dropout=0.5), Dropout(0.5), GATConv(8, artifact.num_classes)]
    options = {"device": device, "strategy": OUT_OF_CORE, "detect_anomaly": False}
    trainer = hongtu.Trainer(artifact, layers, optimizer=torch.optim.Adam, **options)
    written = check(trainer, device.scheduler, monkeypatch)
    assert written == {"aten.fill_.Scalar", "aten.addcdiv_.default", "aten.div.Tensor"}


def least(model, problem, grain):
    """The smallest budget out of core, with what the planner compares now."""
    options = {"loss": model.loss, "dtype": torch.float64, "optimizer": training.sgd, "strategy": OUT_OF_CORE}
    artifact = problems.prepare(problem, *grain)
    return training.smallest_budget(artifact, lambda: model.build(problem), device=simulated(), **options)


def check(trainer, tape, monkeypatch):
    """Epochs 2 and 3 do the same, and touch nothing new but what layers make.

    Returns:
        what the dispatching thread begins with other numbers beside its memory, outside of passes.
    """
    marks, changing = [], set()
    monkeypatch.setattr(WorkspaceTracker, "live", 0)  # a tape holds what layers let go
    with taping(tape, monkeypatch):
        trainer.train_epoch()
        for _ in range(3):
            marks.append(tape.now)
            trainer.train_epoch()
    second, third = (work_between(tape, *marks[k : k + 2]) for k in (0, 1))
    assert second.keys() == third.keys() and len(second) > 4
    devices = trainer._engine._devices
    layers_run_on = {DISPATCHER, *(device.streams.compute.number for device in devices)}
    for stream, work in second.items():
        assert len(work) == len(third[stream])
        for k, (a, b) in enumerate(zip(work, third[stream])):
            if a[0] == b[0] == "launched" and a != b:
                assert a[1] == b[1] and stream == DISPATCHER, (stream, k, a, b)
                changing.add(a[1])
            else:
                assert a == b, (stream, k, a, b)
    others = [entry for stream, work in third.items() if stream not in layers_run_on for entry in work]
    accesses = [entry for entry in others if entry[0] not in ("sent", "waited", "launched")]
    assert accesses and not [entry for entry in accesses if isinstance(entry[1], tuple)], "made in the epoch"
    trainer.evaluate()
    assert tuple(device.slab.most for device in devices) == trainer.plan.slabs
    return changing


@pytest.mark.every
@pytest.mark.long
@pytest.mark.parametrize("strategy", [OUT_OF_CORE, IN_MEMORY], ids=["out of core", "in memory"])
@pytest.mark.parametrize("grain", [(1, 7), (4, 8)], ids=lambda grain: f"m{grain[0]}")
@pytest.mark.parametrize("model", SIX, ids=repr)
def test_an_epoch_takes_no_memory_beside_the_slab_and_asks_the_device_nothing(model, grain, strategy, monkeypatch):
    """But at the ends of passes, and what layers take. That it waits for nothing inside is in test_script."""
    made, asking = [], Asking()
    empty, poisoned, run = StagedDevice.empty, simulated_module.poisoned, Executor._run_pass

    def run_pass(self, p):
        with asking:
            run(self, p)

    def noted(tensor):
        made.extend([tensor.shape] if tensor.nbytes else [])
        return tensor

    monkeypatch.setattr(planner, "SLABS", (True,))
    monkeypatch.setattr(StagedDevice, "empty", lambda *args: noted(empty(*args)))
    monkeypatch.setattr(simulated_module, "poisoned", lambda *args: noted(poisoned(*args)))
    monkeypatch.setattr(Executor, "_run_pass", run_pass)
    options = {"device": simulated(), "strategy": strategy, "detect_anomaly": False}
    trainer = training.make_trainer(model, problems.awkward(), grain, **options)
    trainer.train_epoch()
    assert made and trainer.plan.slabs
    made.clear()
    asking.found.clear()
    trainer.train_epoch()
    assert not made and not asking.found


def test_what_asks_the_device_is_recognised():
    x, asking = torch.arange(4.0), Asking()
    with asking:
        float(x[0])
        x[x > 1]
        torch.repeat_interleave(torch.tensor([1, 2]))
        assert asking.found == {"_local_scalar_dense", "index", "repeat_interleave"}
        asking.found.clear()
        x[torch.tensor([1])]
        x.index_select(0, torch.tensor([1]))
        torch.repeat_interleave(torch.tensor([1, 2]), output_size=3)
    assert not asking.found


@pytest.mark.long
def test_a_slab_is_left_out_where_the_budget_has_no_room_for_it(monkeypatch):
    """And what fits without one is exact."""
    problem, model = problems.awkward(), SIX[1]
    without = least(model, problem, (1, 7))
    options = {"device": simulated(), "strategy": OUT_OF_CORE, "device_memory": without, "detect_anomaly": False}
    trainer = staged.check(model, problem, (1, 7), **options)
    assert trainer.plan.slabs == () and all(device.slab is None for device in trainer._engine._devices)
    monkeypatch.setattr(planner, "SLABS", (True,))
    assert least(model, problem, (1, 7)) > without

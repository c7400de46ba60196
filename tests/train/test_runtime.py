"""Too little memory: on the device inside a layer, and on the host before anything is allocated."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from torch import nn

import hongtu
from hongtu import host
from hongtu import nn as hnn
from hongtu.cli.main import main
from hongtu.device.backends import Backend
from hongtu.device.layer_memory import Sample
from hongtu.engine.engine import Engine
from hongtu.errors import BudgetError, DeviceOutOfMemory, InputError
from tests import problems
from tests.faults.memory import Hungry
from tests.models import H
from tests.training import STRATEGIES

strategies = pytest.mark.parametrize("strategy", STRATEGIES)


@pytest.fixture(autouse=True)
def sated():
    yield
    Hungry.per_row = Hungry.per_call = 0


def artifact():
    return problems.prepare(problems.awkward(), 2, 8)


def make(strategy="full", budget="14KB", **options):
    torch.manual_seed(0)
    layers = [Hungry(6, H, activation="relu", input_dropout=0.3), hnn.SAGEConv(H, 3)]
    options = {"strategy": strategy, "dtype": torch.float64, "device_memory": budget} | options
    return hongtu.Trainer(artifact(), layers, **options)


def losses_of(records):
    return [record.loss for record in records]


def test_planning_again_loses_nothing():
    """The grain of the second plan changes the order of sums, nothing else: Adam's state is kept."""
    expected = losses_of(make().fit(6))
    trainer = make(on_oom="replan")
    losses = losses_of(trainer.fit(3))
    before = trainer.plan.topology.chunks
    Hungry.per_row = 300
    with pytest.warns(UserWarning, match=rf"layers\[0\] \(Hungry\).*planned again, with \d instead of {before} groups"):
        records = trainer.fit(3, eval_every=1)
    assert trainer.plan.topology.chunks > before
    assert losses + losses_of(records) == pytest.approx(expected, rel=1e-12)
    assert all(size <= 14_000 for name, size in trainer.peak_bytes.items() if name.startswith("device"))
    assert records[-1].rows == trainer.plan.rows and records[-1].arena_bytes == trainer.plan.arena_bytes


@pytest.mark.long
def test_statistics_of_the_whole_graph_are_observed_once_an_epoch():
    """The epoch that is planned again begins anew: its first part has observed nothing."""

    def normalised(**options):
        torch.manual_seed(0)
        layers = [
            (hnn.SAGEConv(6, H), "x -> x1"), hnn.BatchNorm(H), nn.ReLU(), (Hungry(H, H), "x1 -> x2"),
            nn.BatchNorm1d(H), (hnn.JumpingKnowledge("cat"), "x1, x2 -> x"), hnn.SAGEConv(2 * H, 3),
        ]  # fmt: skip
        return hongtu.Trainer(artifact(), layers, dtype=torch.float64, device_memory="30KB", **options)

    undisturbed = normalised()
    expected = losses_of(undisturbed.fit(2 + Sample.OFTEN))
    trainer = normalised(on_oom="replan")
    losses = losses_of(trainer.fit(2))
    Hungry.per_row = 500
    with pytest.warns(UserWarning, match="planned again"):
        losses += losses_of(trainer.fit(Sample.OFTEN))
    assert losses == pytest.approx(expected, rel=1e-12)
    for found, buffer in zip(trainer.model.buffers(), undisturbed.model.buffers(), strict=True):
        torch.testing.assert_close(found, buffer, rtol=1e-9, atol=1e-9)


@pytest.mark.long(sample=0)
@strategies
def test_the_budget_that_is_named_would_do(strategy):
    trainer = make(strategy)
    Hungry.per_row, Hungry.per_call = 300, 50_000
    with pytest.raises(DeviceOutOfMemory) as caught:
        trainer.train_epoch()
    message = str(caught.value)
    assert re.match(r"device \d: needs \d+ bytes \(\d+ planned, \d+ taken by layers\), the budget is 14000", message)
    assert re.search(r"in layers\[0\] \(Hungry\) on chunk \(\d, \d\) of pass '.*on_oom='replan'", message)
    enough = int(re.search(r"device-memory\) of (\d+) bytes", message)[1])
    Hungry.per_row = Hungry.per_call = 0
    expected = losses_of(make(strategy).fit(2))
    trainer = make(strategy, enough, on_oom="replan")
    Hungry.per_row, Hungry.per_call = 300, 50_000
    with warnings.catch_warnings(record=True):  # "paper" and "none" take no more than they need: nothing to plan again
        assert losses_of(trainer.fit(2)) == pytest.approx(expected, rel=1e-12)
    with pytest.raises((DeviceOutOfMemory, BudgetError)):
        make(strategy, Hungry.per_call, on_oom="replan").train_epoch()  # the layer alone takes as much


def test_where_no_grain_is_fine_enough():
    trainer = make(on_oom="replan")
    Hungry.per_call = 200_000
    refused = pytest.raises(DeviceOutOfMemory, match=r"no groups of chunks are small enough; pass .* of \d{6} bytes")
    with pytest.warns(UserWarning, match="planned again"), refused:
        trainer.train_epoch()
    Hungry.per_call = 0
    assert trainer.epoch == 0 and losses_of(trainer.fit(2)) == losses_of(make().fit(2))


def test_a_probe_looks_at_zeros_alone():
    """Not at memory that nobody has written to; torch fills that with NaN where it is to be deterministic."""
    torch.use_deterministic_algorithms(True)
    try:
        Hungry.per_call = 200_000
        assert max(make().plan.workspace.values()) < 200_000
    finally:
        torch.use_deterministic_algorithms(False)


def test_evaluation_plans_again_too():
    trainer = make(on_oom="replan")
    expected = trainer.predict()
    Hungry.per_row = 300
    with pytest.warns(UserWarning, match="planned again"):
        for _ in range(Sample.OFTEN):  # until the largest chunk is counted again
            torch.testing.assert_close(trainer.predict(), expected)


@pytest.mark.long
def test_a_layers_output_is_planned_again_too():
    expected = make().embed(0)
    trainer = make(on_oom="replan")
    Hungry.per_row = 300
    with pytest.warns(UserWarning, match="planned again"):
        torch.testing.assert_close(trainer.embed(0), expected)
    with pytest.raises(DeviceOutOfMemory, match="on_oom='replan'"):
        make().embed(0)


class Small(Backend):
    """Has little free, though nobody set a budget."""

    def memory(self, partitions):
        return 14_000


@pytest.mark.long
def test_what_devices_have_free_is_a_budget(monkeypatch):
    expected, rows = losses_of(make().fit(2)), make().embed(0)
    assert make(budget=None).plan.likely_bytes > 14_000
    trainer = make(budget=None, device=Small(), on_oom="replan")
    assert trainer.plan.likely_bytes <= 14_000
    torch.testing.assert_close(trainer.embed(0), rows)
    train, tries = Engine.train, []

    def refuse_once(self, epoch):
        tries.append(self.plan.topology.chunks)
        if len(tries) == 1:
            self._executor._current = self.program.train[0]
            raise DeviceOutOfMemory("device 0: no more", taken=100)
        return train(self, epoch)

    monkeypatch.setattr(Engine, "train", refuse_once)
    with pytest.warns(UserWarning, match="planned again"):
        assert losses_of(trainer.fit(2)) == pytest.approx(expected, rel=1e-12)
    assert len(tries) == 3 and tries[1] >= tries[0]


def test_a_refused_plan_leaves_the_model_where_it_runs(monkeypatch):
    trainer = make()
    trainer.train_epoch()
    moves = []
    monkeypatch.setattr(nn.Module, "cpu", lambda self: moves.append("cpu"))
    monkeypatch.setattr(nn.Module, "to", lambda self, where: moves.append(where))

    def refuse(_):
        raise InputError("no plan")

    monkeypatch.setattr("hongtu.train.network_plan._NetworkPlanner.plan", refuse)
    trainer._runtime._frozen = [next(trainer.model.parameters())]  # and now it is trained
    with pytest.raises(InputError, match="no plan"):
        trainer.train_epoch()
    assert moves == ["cpu", torch.device("cpu")]


@pytest.mark.long
def test_what_cannot_be_measured_is_guessed(monkeypatch):
    monkeypatch.setattr("hongtu.train.runtime.available_bytes", lambda: None)
    expected = losses_of(make().fit(2))
    trainer = make(on_oom="replan")
    Hungry.per_row = 300
    with pytest.warns(UserWarning, match="planned again"):
        assert losses_of(trainer.fit(2)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.long
def test_a_device_that_has_less_than_it_says_ends_in_a_message(monkeypatch):
    """Layers take what they should, and still there is too little: plans get leaner until none fits."""
    trainer = make(on_oom="replan")
    tries = []

    def refuse(self, epoch):
        tries.append(self.plan.topology.chunks)
        self._executor._current = self.program.train[0]
        raise DeviceOutOfMemory("device 0: no more", taken=100)

    monkeypatch.setattr("hongtu.engine.engine.Engine.train", refuse)
    with pytest.warns(UserWarning), pytest.raises(DeviceOutOfMemory, match="no groups of chunks are small enough"):
        trainer.train_epoch()
    assert 2 < len(tries) < 40 and tries[-1] > tries[0]


def test_on_oom_is_checked():
    with pytest.raises(InputError, match="on_oom 'retry': expected 'raise' or 'replan'"):
        make(on_oom="retry")


def test_the_command_reports_a_device_that_is_too_small(capsys):
    assert main(["train", str(artifact().path), "--device-memory", "2KB", "--hidden", "5"]) == 2
    err = capsys.readouterr().err
    assert re.search(r"device_memory is 2000 bytes \(2.0 KiB\), the smallest that works is \d+", err)
    assert err.count("\n") == 1


def test_a_host_that_is_too_small_is_refused_before_anything_is_allocated(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(host, "available_bytes", lambda: 5000)
    monkeypatch.setattr("hongtu.engine.engine.make_host", None)
    command = ["train", str(artifact().path), "--hidden", "5", "--run", str(tmp_path / "run")]
    assert main(command) == 2
    err = capsys.readouterr().err
    assert re.search(r"host memory: the run needs \d+ bytes, 5000 are available; use a machine with more", err)
    assert err.count("\n") == 1 and not (tmp_path / "run").exists()

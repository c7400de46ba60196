"""What the Trainer refuses: wrong layers and options, and budgets that are too small."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import hongtu
from hongtu import host
from hongtu import nn as hnn
from hongtu.errors import BudgetError, DeviceOutOfMemory, InputError
from tests import problems, training
from tests.models import DEEP, SIX, H
from tests.trainers import GAT, GCN, adam_and_step, artifact, gcn, losses_of
from tests.training import STRATEGIES

strategies = pytest.mark.parametrize("strategy", STRATEGIES)


# ------------------------------------------------------------------------------------------------------- refused input


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (lambda: [hnn.GCNConv(7, H), hnn.GCNConv(H, 3)], r"layers\[0\] \(GCNConv\)"),
        (lambda: [hnn.GCNConv(6, H), hnn.GCNConv(4, 3)], r"layers\[1\] \(GCNConv\)"),
        (lambda: [hnn.GCNConv(6, H), nn.Linear(4, 4), hnn.GCNConv(4, 3)], r"layers\[1\] \(Linear\)"),
        (lambda: [hnn.GATConv(6, H, heads=2), hnn.GATConv(H, 3)], r"layers\[1\] \(GATConv\)"),
        (lambda: [hnn.GCNConv(6, 2)], "2 columns.*3 classes"),
        (lambda: [nn.Linear(6, 3)], "no graph layer"),
        (lambda: [], "no graph layer"),
    ],
)
def test_wrong_widths_are_refused_by_name(layers, message):
    with pytest.raises(InputError, match=message):
        hongtu.Trainer(artifact(), layers())


class ReturnsNoPair(hnn.Layer):
    def transform(self, h):
        return h


class Flat(hnn.Layer):
    def forward(self, block, h):
        return h[: block.num_dst].sum(1)


class ThreeDimensional(hnn.Layer):
    def transform(self, h):
        return h, h.unsqueeze(1)


class ForgetsToCut(hnn.Layer):
    """Returns a row per source instead of one per destination."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(6, 3)

    def forward(self, block, h):
        return self.lin(torch.cat([h, h]))


class Nothing(hnn.Layer):
    pass


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (ReturnsNoPair, r"transform must return the pair \(z, s\)"),
        (Flat, "aggregate must return"),
        (ThreeDimensional, "rows"),
        (ForgetsToCut, "aggregate must return"),
        (Nothing, "forward"),
    ],
)
def test_layers_that_break_the_contract_are_refused_by_name(layer, message):
    with pytest.raises(InputError, match=rf"layers\[0\] \({layer.__name__}\).*{message}"):
        hongtu.Trainer(artifact(), [layer(), nn.Linear(6, 3)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "fast"}, "none, p2p, paper, full"),
        ({"device": "tpu"}, "cpu"),
        ({"dtype": torch.float16}, "float32"),
        ({"loss": "mse"}, "cross_entropy"),
        ({"loss": "bce_with_logits"}, "cross_entropy"),
        ({"device_memory": "a lot"}, "a lot"),
        ({"device_memory": 0}, "device_memory|size"),
        ({"device_memory": -1}, "device_memory|size"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        hongtu.Trainer(artifact(), gcn(), **options)


def test_a_loss_of_the_wrong_shape_is_refused():
    with pytest.raises(InputError, match="one loss per vertex"):
        hongtu.Trainer(artifact(), gcn(), loss=lambda out, target: nn.functional.cross_entropy(out, target))


# ------------------------------------------------------------------------------------------------------------- budgets


@pytest.mark.every
@pytest.mark.long
@strategies
@pytest.mark.parametrize("model", [GCN, SIX[2], GAT, DEEP], ids=repr)
def test_the_smallest_budget_works_and_one_byte_less_is_refused(model, strategy):
    options = {"strategy": strategy, "optimizer": adam_and_step}
    trainer = training.make_trainer(model, problems.awkward(), (2, 3), device_memory="smallest", **options)
    trainer.fit(1, eval_every=1)
    with pytest.raises(BudgetError) as caught:
        training.make_trainer(model, problems.awkward(), (2, 3), device_memory=trainer._budget - 1, **options)
    message = str(caught.value)
    assert f"device_memory is {trainer._budget - 1} bytes" in message
    assert f"the smallest that works is {trainer._budget}" in message
    assert re.search(r"chunk \(\d, \d\)", message) and "--chunks" in message


def test_budgets_have_units():
    budget = training.smallest_budget(artifact(), gcn)
    kilobytes = -(-budget // 1000)
    hongtu.Trainer(artifact(), gcn(), device_memory=f"{kilobytes}KB").train_epoch()
    with pytest.raises(BudgetError):
        hongtu.Trainer(artifact(), gcn(), device_memory=f"{budget // 1000}KB")


@pytest.mark.long
def test_a_larger_budget_never_moves_more():
    smallest = training.smallest_budget(artifact(2, 3), gcn)
    moved = []
    for budget in (*range(smallest, 4 * smallest, smallest // 3), None):
        plan = hongtu.Trainer(artifact(2, 3), gcn(), device_memory=budget).plan
        moved.append(plan.bytes["load"] + plan.bytes["flush"])
    assert moved == sorted(moved, reverse=True)


class Greedy(hnn.GCNConv):
    """Takes more memory in a run than it did when it was probed."""

    greedy = False

    def update(self, a, s):
        if Greedy.greedy:
            torch.zeros(1_000_000)
        return super().update(a, s)


@pytest.mark.long
@strategies
def test_a_layer_that_takes_more_than_when_probed_is_stopped(strategy, monkeypatch):
    """As a GPU would, with an error; and the trainer is as good as before."""

    def make(layer):
        torch.manual_seed(0)
        return hongtu.Trainer(
            artifact(), [layer(6, H), hnn.GCNConv(H, 3)], device_memory="200KB", strategy=strategy, dtype=torch.float64
        )

    expected = losses_of(make(Greedy).fit(2))
    trainer = make(Greedy)
    monkeypatch.setattr(Greedy, "greedy", True)
    for call in (trainer.train_epoch, trainer.predict, trainer.evaluate):
        with pytest.raises(DeviceOutOfMemory, match=r"device 0.*200000.*chunks"):
            call()
    monkeypatch.setattr(Greedy, "greedy", False)
    assert trainer.epoch == 0
    records = trainer.fit(2)
    assert losses_of(records) == expected
    assert records[1].rows == trainer.plan.rows
    assert records[1].arena_bytes == trainer.plan.arena_bytes
    assert max(size for name, size in records[1].peak_bytes.items() if name.startswith("device")) <= 200_000


class GreedyInEvaluation(hnn.GCNConv):
    """Takes more memory in evaluation than in training."""

    def update(self, a, s):
        out = super().update(a, s)
        return out if self.training else out + torch.zeros(50, *out.shape, dtype=out.dtype).sum(0)


@strategies
def test_a_budget_covers_evaluation_too(strategy):
    def layers():
        return [GreedyInEvaluation(6, H), hnn.GCNConv(H, 3)]

    budget = training.smallest_budget(artifact(), layers, strategy=strategy)
    assert budget > training.smallest_budget(artifact(), gcn, strategy=strategy)
    hongtu.Trainer(artifact(), layers(), strategy=strategy, device_memory=budget).fit(1, eval_every=1)


def test_any_failure_in_a_layer_leaves_the_trainer_usable():
    class Fails(hnn.GATConv):
        fails_at = None

        def aggregate(self, block, z, s):
            if Fails.fails_at == (torch.is_grad_enabled(), block.first > 0):
                raise KeyError("on purpose")
            return super().aggregate(block, z, s)

    def make(layer):
        torch.manual_seed(0)
        layers = [layer(6, H), hnn.GATConv(H, 3)]
        return hongtu.Trainer(artifact(), layers, strategy="paper", device_memory="1MiB")

    expected = losses_of(make(Fails).fit(2))
    trainer = make(Fails)
    for backward in (False, True):
        Fails.fails_at = (backward, True)
        with pytest.raises(KeyError, match="on purpose"):
            trainer.train_epoch()
    Fails.fails_at = None
    records = trainer.fit(2)
    assert losses_of(records) == expected
    assert trainer.plan.host_bytes.items() <= records[0].peak_bytes.items()


def test_what_the_host_has_can_be_said(monkeypatch):
    """Virtual machines that get their memory as they use it say that they have little."""
    monkeypatch.setattr(host, "proc_bytes", lambda file, field: 1 << 20)
    with pytest.raises(InputError, match="HONGTU_HOST_MEMORY=48GiB"):
        host.check_host(1 << 30)
    monkeypatch.setenv("HONGTU_HOST_MEMORY", "2GiB")
    host.check_host(1 << 30)
    assert host.available_bytes() == 2 << 30
    monkeypatch.setenv("HONGTU_HOST_MEMORY", "much")
    with pytest.raises(InputError, match="size 'much'"):
        host.available_bytes()

"""Frozen layers: the gradients of the others are exact, and nothing is computed or moved for what is not trained."""

from __future__ import annotations

import pytest
import torch

import hongtu
from hongtu import nn as hnn
from hongtu.errors import BudgetError
from hongtu.plan.passes.strategy import Strategy
from tests import additions, problems, training
from tests.models import DEEP
from tests.training import EXACT, check

GCN = additions.THREE_GCN


def whole_graph(model, problem, frozen, thawed_after=None, epochs=2):
    """As ``training.train_reference``, with layers frozen in the first epochs."""
    modules = model.build_reference(problem)
    optimizer = training.sgd(modules.parameters())
    outcome = training.Outcome()
    for epoch in range(epochs):
        for k in frozen:
            modules[k].requires_grad_(thawed_after is not None and epoch >= thawed_after)
        optimizer.zero_grad()
        loss = model.reference_loss(modules, problem)
        loss.backward()
        outcome.losses.append(float(loss.detach()))
        outcome.gradients.append({name: p.grad.clone() for name, p in modules.named_parameters() if p.grad is not None})
        optimizer.step()
    return outcome


def make(model, problem, frozen, grain=(2, 3), **options):
    options = {"optimizer": training.sgd, "dtype": torch.float64} | options

    def layers():
        built = model.build(problem)
        for k in frozen:
            built[k].requires_grad_(False)
        return built

    artifact = problems.prepare(problem, *grain)
    if options.get("device_memory") == "smallest":
        options["device_memory"] = training.smallest_budget(artifact, layers, **options)
    return hongtu.Trainer(artifact, layers(), **options)


@pytest.mark.parametrize("frozen", [(0,), (2,), (0, 1), (0, 2), (1, 2)], ids=str)
def test_frozen_layers(frozen):
    """Others are on the grid of ``test_additions``."""
    check(additions.frozen(GCN, *frozen), problems.awkward(), (2, 3), epochs=2, device_memory="64KiB")


def test_nothing_moves_for_frozen_first_layers():
    moved = []
    for frozen in ((), (0,), (0, 1)):
        strategy = Strategy(transform_first=False, resident=False)  # every weight stands behind its layer's aggregate
        plan = make(GCN, problems.awkward(), frozen, device_memory="64KiB", strategy=strategy).plan
        backward = {p.layer for p in plan.passes.train if p.direction != "forward"}
        assert backward == set(range(len(frozen), 3))
        assert not any(p.checkpoint for p in plan.passes.train if p.direction == "forward" and p.layer not in backward)
        moved.append(plan.bytes)
    for link in ("flush", "write", "read"):
        assert moved[0][link] > moved[1][link] > moved[2][link]
    assert moved[2]["flush"] == 0


@pytest.mark.parametrize("budget", [None, "64KiB"])
def test_thawing_in_a_run(budget):
    trainer = make(DEEP, problems.awkward(), (0, 1), device_memory=budget)
    frozen = trainer.plan
    outcome = training.train(trainer, 2)
    for k in (0, 1):
        trainer.model[k].requires_grad_(True)
    thawed = training.train(trainer, 2)
    outcome.losses.extend(thawed.losses)
    outcome.gradients.extend(thawed.gradients)
    expected = whole_graph(DEEP, problems.awkward(), (0, 1), thawed_after=2, epochs=4)
    training.assert_same(outcome, expected, EXACT)
    assert trainer.plan is not frozen and len(trainer.plan.passes.train) > len(frozen.passes.train)
    assert trainer.plan.shape.model_bytes > frozen.shape.model_bytes


@pytest.mark.long(sample=0)
@pytest.mark.parametrize("width", [4, 5, 6])
def test_a_refused_thaw_changes_nothing(width):
    """Planning tries either side of the exchange for the layers' linear maps; the plan that goes on has its own."""
    problem = problems.problem_of(problems.awkward_graph(), width=width)
    artifact = problems.prepare(problem, 2, 3)
    options = {"optimizer": training.sgd, "dtype": torch.float64}

    def layers():
        torch.manual_seed(0)
        found = [hnn.GCNConv(width, 5, activation="relu"), hnn.GCNConv(5, 5, activation="relu"), hnn.GCNConv(5, 3)]
        for layer in found[:2]:
            layer.requires_grad_(False)
        return found

    budget = training.smallest_budget(artifact, layers, **options)
    trainer, beside = (hongtu.Trainer(artifact, layers(), device_memory=budget, **options) for _ in range(2))
    losses = [trainer.train_epoch().loss]
    trainer.model[0].requires_grad_(True)
    with pytest.raises(BudgetError, match="smallest that works"):
        trainer.train_epoch()
    trainer.model[0].requires_grad_(False)
    losses += [trainer.train_epoch().loss for _ in range(2)]
    assert losses == pytest.approx([beside.train_epoch().loss for _ in range(3)], rel=1e-12)


def test_thawing_beyond_the_budget_names_the_one_that_works():
    trainer = make(GCN, problems.awkward(), (0, 1), device_memory="smallest")
    trainer.train_epoch()
    trainer.model[0].requires_grad_(True)
    with pytest.raises(BudgetError, match="smallest that works"):
        trainer.train_epoch()
    trainer.model[0].requires_grad_(False)
    trainer.train_epoch()

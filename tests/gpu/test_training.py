"""Training on a GPU: losses and gradients of torch_geometric on the whole graph, and what the plan predicted."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hongtu import nn as hnn
from hongtu.plan.passes.strategy import Strategy
from tests import models, problems, training
from tests.models import SIX, H, Model
from tests.staged import SINGLE, budget, check
from tests.training import STRATEGIES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
GRAINS = ((1, 7), (4, 8))  # (m, n); partitions share the GPUs that there are

DROPS = Model(
    "drops",
    lambda f, c: [hnn.Dropout(0.3), hnn.GCNConv(f, H, activation="relu"), hnn.Dropout(0.5), hnn.SAGEConv(H, c)],
    lambda f, c: [],
)
six = pytest.mark.parametrize("model", SIX, ids=repr)
grains = pytest.mark.parametrize("grain", GRAINS, ids=lambda grain: f"m{grain[0]}n{grain[1]}")
strategies = pytest.mark.parametrize("strategy", STRATEGIES)


@strategies
@grains
@six
def test_training_is_exact(model, grain, strategy):
    problem = problems.awkward()
    check(model, problem, grain, device="cuda", strategy=strategy, device_memory="smallest")
    if strategy == "full":
        check(model, problem, grain, device="cuda", strategy=strategy)


@strategies
@grains
@six
def test_training_in_single_precision(model, grain, strategy):
    problem = problems.directed_weighted()
    options = {"device": "cuda", "dtype": torch.float32, "tolerance": SINGLE, "strategy": strategy}
    check(model, problem, grain, device_memory="smallest", **options)
    if strategy == "full":
        check(model, problem, grain, **options)


@grains
@six
def test_rows_that_are_apart(model, grain, monkeypatch):
    """At widths that are no multiple of 16 bytes."""
    monkeypatch.setattr(models, "H", 33)
    options = {"device": "cuda", "dtype": torch.float32, "tolerance": SINGLE}
    check(model, problems.odd_widths(), grain, device_memory="smallest", **options)
    check(model, problems.odd_widths(), grain, **options)


@six
def test_batches_overlap_and_caches_evict(model):
    problem, strategy = problems.directed_weighted(), replace(Strategy(), resident=False, group=False)
    some = budget(model, problem, (4, 8), 2.5, device="cuda", strategy=strategy)
    trainer = check(model, problem, (4, 8), epochs=5, device="cuda", strategy=strategy, device_memory=some)
    assert trainer.plan.choice.staging == 2


@pytest.mark.parametrize("some", [None, 2.5], ids=["in memory", "out of core"])
@six
def test_captured_epochs_are_eager_ones(model, some):
    """From the third on, in which the whole pass is one launch."""
    problem, found = problems.directed_weighted(), {}
    strategy = Strategy() if some is None else replace(Strategy(), resident=False, group=False)
    limit = None if some is None else budget(model, problem, (1, 7), some, device="cuda", strategy=strategy)
    for capture in (False, True):
        options = {"device": "cuda", "strategy": replace(strategy, capture=capture), "device_memory": limit}
        trainer = training.make_trainer(model, problem, (1, 7), **options)
        found[capture] = training.train(trainer, 5).losses
    repeats = trainer._engine._executor.repeats
    assert not repeats.reason and len(repeats._known) == len(trainer.plan.passes.train)
    assert found[True] == pytest.approx(found[False], rel=1e-9)


def test_dropout_draws_the_same_numbers_as_on_the_cpu():
    found = {}
    for device in ("cpu", "cuda"):
        trainer = training.make_trainer(DROPS, problems.awkward(), (4, 8), device=device)
        found[device] = training.train(trainer, 2).losses
    assert found["cuda"] == pytest.approx(found["cpu"], rel=1e-9)


@pytest.mark.parametrize("capture", (False, True))
def test_rows_of_the_host_in_bfloat16_are_near(capture):
    options = {"device": "cuda", "dtype": torch.float32, "device_memory": "smallest"}
    options["strategy"] = replace(Strategy(), resident=False, capture=capture)
    found = []
    for narrow in ({}, {"host_dtype": "bf16", "gradient_dtype": "bf16"}):
        torch.manual_seed(0)
        trainer = training.make_trainer(SIX[1], problems.awkward(), (2, 4), **options, **narrow)
        records = [trainer.train_epoch() for _ in range(4)]
        training.assert_counted(trainer, records[-1])
        found.append([record.loss for record in records])
    assert found[1] == pytest.approx(found[0], rel=2.0**-5)


def test_prediction_and_evaluation():
    trainer = training.make_trainer(SIX[0], problems.awkward(), (4, 8), device="cuda")
    beside = training.make_trainer(SIX[0], problems.awkward(), (4, 8))
    trainer.fit(2, eval_every=1)
    beside.fit(2, eval_every=1)
    torch.testing.assert_close(trainer.predict(), beside.predict(), rtol=1e-9, atol=1e-9)
    assert trainer.evaluate() == beside.evaluate()

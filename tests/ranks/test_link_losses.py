"""Losses over edges on ranks: each takes a part of the pairs, and has everybody's output."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import hongtu
from hongtu import LinkLoss
from tests import problems, training
from tests.models import SIX, H, Model
from tests.ranks.test_dependencies import SAME, assert_ranks, outcome
from tests.ranks.turns import run_ranks
from tests.staged import on_disk

RNG = np.random.default_rng(1)
PROBLEM = problems.awkward()
V = PROBLEM.num_vertices


class Bilinear(nn.Module):
    def __init__(self, columns, out=1):
        super().__init__()
        torch.manual_seed(3)
        self.map, self.idle = nn.Bilinear(columns, columns, out), nn.Linear(2, 2)

    def forward(self, source, destination):
        return self.map(source, destination)


def pairs(count):
    return RNG.integers(0, V, (2, count))


TRAIN, VAL, TARGETS, NUMBERS = pairs(40), pairs(12), RNG.integers(0, 3, 40), RNG.random((12, 2))
LOSSES = {  # of few pairs in a block, so that every rank has some
    "own edges": lambda c: LinkLoss(block=16),
    "given": lambda c: LinkLoss(TRAIN, corrupt="both", negatives=3, decoder=Bilinear(c), val_edges=VAL, block=32),
    "one block": lambda c: LinkLoss(TRAIN, decoder=Bilinear(c), val_edges=VAL),
    "classes": lambda c: LinkLoss(TRAIN, targets=TARGETS, decoder=Bilinear(c, 3), block=8),
    "numbers": lambda c: LinkLoss(VAL, targets=NUMBERS, decoder=Bilinear(c, 2), block=5),
    "beside": lambda c: ["cross_entropy", hongtu.LossTerm(LinkLoss(TRAIN, block=16), weight=0.5)],
}
DEEP = Model("deep", lambda f, c: [hongtu.nn.SAGEConv(f, H), hongtu.nn.GCNConv(H, H), hongtu.nn.GATConv(H, c)], None)


def build(model, kind, **options):
    return training.make_trainer(model, PROBLEM, (4, 3), loss=LOSSES[kind](PROBLEM.classes), **options)


@pytest.mark.most(8)
@pytest.mark.parametrize("ranks", (2, 3))
@pytest.mark.parametrize("dependencies", ("cache", "comm", "hybrid"))
@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("model", (SIX[0], SIX[4], DEEP), ids=repr)
def test_they_give_the_numbers_of_one_process(model, kind, dependencies, ranks):
    """Counted is predicted, too."""
    every = run_ranks(ranks, lambda group: outcome(build(model, kind, ranks=group, dependencies=dependencies)))
    assert_ranks(every, outcome(build(model, kind)), near=1e-9)


def test_what_they_fetch_is_the_output_of_others():
    """And what they send, its gradients, of which a rank has memory for all."""

    def work(group):
        trainer = build(SIX[0], "own edges", ranks=group)
        record = trainer.train_epoch()
        training.assert_counted(trainer, record)
        own = trainer._share.span
        others = V - (own.stop - own.start)
        assert record.rows["fetch"] == record.rows["send"] == others
        assert record.bytes["fetch"] == others * trainer.plan.shape.output * 8
        return trainer.plan.peak_bytes["pageable host"]

    assert min(run_ranks(2, work)) > 2 * V * PROBLEM.classes * 8


def test_within_budgets_and_on_a_disk(tmp_path):
    expected, scores, _ = outcome(build(SIX[4], "given"))
    options = {"strategy": hongtu.Strategy(resident=False), "device_memory": "64KiB", "dependencies": "comm"}

    def work(group):
        trainer = build(SIX[4], "given", ranks=group, **options, **spills)
        assert trainer.plan.spilled
        return outcome(trainer)

    with on_disk(tmp_path) as spills:
        every = run_ranks(2, work)
    for found, evaluated, _ in every:
        training.assert_same(found, expected, SAME)
        assert evaluated == pytest.approx(scores, rel=1e-9, nan_ok=True)

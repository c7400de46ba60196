"""What is computed again for its gradients leaves out what nobody reads, and what runs once may run in finer chunks."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg

from hongtu import nn as hnn
from hongtu.nn.layer import Layer
from hongtu.plan.execution import ONCE
from hongtu.plan.strategy import Strategy
from tests import graphs, problems, training
from tests.models import SIX, H, Model

GCN = SIX[0]


class Squashed(hnn.GCNConv):
    """Does more with what its parent's transform returns."""

    def transform(self, h):
        z, _ = super().transform(h)
        z = torch.tanh(z)
        return z, z


class SquashedSum(hnn.SGConv):
    """The same, inside of it."""

    def map(self, h):
        return torch.tanh(super().map(h))


class Around(Layer):
    """Has a layer of hongtu's inside."""

    reduce = "sum"

    def __init__(self, f, c):
        super().__init__()
        self.inner = hnn.CommNetConv(f, c)
        self.inner.transform_first = True

    def transform(self, h):
        z, s = self.inner.transform(h)
        return z * s, s.exp()

    def update(self, a, s):
        return a + s


@pytest.mark.parametrize("second", [Squashed, SquashedSum, lambda f, c: SquashedSum(f, c, K=2), Around])
def test_what_others_do_with_a_transforms_numbers_is_exact(second):
    """The layer is the last one, narrower than its input: its map comes before the exchange."""
    model = Model(
        "squashed", lambda f, c: [hnn.GCNConv(f, 4 * H, activation="relu"), second(4 * H, c)], lambda f, c: [], None
    )
    problem = problems.directed_weighted()
    kept = training.make_trainer(model, problem, (1, 1))
    again = training.make_trainer(model, problem, (2, 3), device_memory="smallest")
    first = [trainer.model[1].expand()[0].transform_first for trainer in (kept, again)]
    assert first == [second is not Around] * 2
    training.assert_same(training.train(again, 2), training.train(kept, 2), training.EXACT)


def test_a_map_whose_result_nobody_reads_is_not_computed_again(monkeypatch):
    model = Model(
        "gcn-wide",
        lambda f, c: [hnn.GCNConv(f, 4 * H, activation="relu"), hnn.GCNConv(4 * H, c)],
        lambda f, c: [pyg.GCNConv(f, 4 * H), pyg.GCNConv(4 * H, c)],
        torch.relu,
    )
    trainer = training.check(model, problems.awkward(), (2, 3), device_memory="smallest", epochs=2)
    last, calls = trainer.model[1], []
    linear = torch.nn.functional.linear
    assert last.transform_first

    def counted(x, weight, bias=None):
        calls.append(len(x) * (weight is last.lin.weight))
        return linear(x, weight, bias)

    monkeypatch.setattr(torch.nn.functional, "linear", counted)
    trainer.train_epoch()
    assert sum(calls) == problems.awkward().num_vertices, "forward computes it once, backward not again"


@functools.cache
def wide() -> problems.Problem:
    """Features wider than everything else: summing them up once takes the most memory."""
    rng = np.random.default_rng(3)
    return problems.problem_of(graphs.Graph("random", rng.integers(0, 400, (2, 4000)), None, 400), width=24)


@pytest.mark.parametrize("grain", [(1, 16), (2, 12)], ids=str)
@pytest.mark.parametrize("device", ["cpu", "dry"])
def test_what_runs_once_runs_in_finer_chunks(grain, device):
    options = {"device": device, "device_memory": "smallest", "strategy": Strategy(transform_first=False)}
    trainer = training.check(GCN, wide(), grain, epochs=3, **options)
    plan = trainer.plan
    assert plan.views[ONCE].chunks == grain[1] > plan.topology.chunks
    assert {plan.view(p).chunks for p in plan.passes.setup} == {grain[1]}
    assert {plan.view(p).chunks for p in (*plan.passes.train, *plan.passes.evaluate)} == {plan.topology.chunks}
    assert trainer.evaluate().keys() and trainer.plan is plan

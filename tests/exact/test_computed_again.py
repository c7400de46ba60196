"""What is computed again for its gradients leaves out what nobody reads, and what runs once may run in finer chunks."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg

import hongtu
from hongtu import nn as hnn
from hongtu.model.checks import check_module
from hongtu.nn.layer import Layer
from hongtu.plan.passes.strategy import ONCE, Strategy
from tests import graphs, problems, staged, training
from tests.models import SIX, H, Model

GCN = SIX[0]


class Squashed(hnn.GCNConv):
    """Does more with what a map gives than return it."""

    can_transform_first = False

    def transform(self, h):
        z = torch.tanh(self.mapped(h, self.lin.weight))
        return z, z

    def update(self, a, s):
        return a + self.bias


class SquashedAfter(hnn.GCNConv):
    """The same with what its parent's transform returns, which must not depend on the side of the exchange."""

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


MORE = [Squashed, SquashedAfter, SquashedSum, lambda f, c: SquashedSum(f, c, K=2), Around]


@pytest.mark.every
@pytest.mark.long
@pytest.mark.parametrize("strategy", training.STRATEGIES)
@pytest.mark.parametrize("second", MORE)
def test_what_others_do_with_a_transforms_numbers_is_exact(second, strategy):
    """The layer is the last one, narrower than its input: a map would come before the exchange."""
    model = Model(
        "squashed", lambda f, c: [hnn.GCNConv(f, 4 * H, activation="relu"), second(4 * H, c)], lambda f, c: [], None
    )
    problem = problems.directed_weighted()
    plain = training.make_trainer(model, problem, (1, 1), strategy="none")
    again = training.make_trainer(model, problem, (2, 3), strategy=strategy, device_memory="smallest")
    training.assert_same(training.train(again, 2), training.train(plain, 2), training.EXACT)


class LowRank(torch.nn.Module):
    """A linear map and a change of it, which shows the weight and bias of the first only."""

    def __init__(self, base):
        super().__init__()
        self.base, self.change = base, torch.nn.Linear(base.in_features, base.out_features, bias=False)

    weight = property(lambda self: self.base.weight)
    bias = property(lambda self: self.base.bias)

    def forward(self, x):
        return self.base(x) + self.change(x)


def doubled(module, args, out):
    return 2 * out


MAPS = {"GCNConv": ["lin"], "SAGEConv": ["lin_l", "lin_r"], "GraphConv": ["lin_rel", "lin_root"], "SGConv": ["lin"],
        "CommNetConv": ["lin_self", "lin_neighbour"]}  # fmt: skip


@pytest.mark.every
@pytest.mark.parametrize("strategy", training.STRATEGIES)
@pytest.mark.parametrize("of", ["inside", "hook"])
@pytest.mark.parametrize(("name", "part"), [(name, part) for name, parts in MAPS.items() for part in parts])
def test_what_hangs_on_a_map_is_called(name, part, of, strategy):
    """As if its weight were what it comes to."""
    problem = problems.directed_weighted()

    def layers(merged):
        torch.manual_seed(5)
        found = [hnn.GCNConv(6, 20, activation="relu"), getattr(hnn, name)(20, 3)]
        linear = getattr(found[1], part)
        changed = LowRank(linear)
        with torch.no_grad():
            if linear.bias is not None:
                linear.bias.zero_()
            if not merged:
                setattr(found[1], part, changed) if of == "inside" else linear.register_forward_hook(doubled)
            else:
                linear.weight.copy_(linear.weight + changed.change.weight if of == "inside" else 2 * linear.weight)
        return found

    losses = {}
    for merged, used, budget in ((True, "none", None), (False, strategy, None), (False, strategy, "1MiB")):
        trainer = hongtu.Trainer(problems.prepare(problem, 2, 3), layers(merged), dtype=torch.float64,
                                 strategy=used, device_memory=budget)  # fmt: skip
        losses[merged, budget] = trainer.train_epoch().loss
    assert max(losses.values()) - min(losses.values()) < 1e-6, "the merged weight is rounded to float32"


@pytest.mark.parametrize("layer", [hnn.GATConv(4, 4, edge_dim=2), hnn.CGConv(4, 2), hnn.GATv2Conv(4, 4, edge_dim=2)])
def test_a_map_that_is_never_called_must_be_plain(layer):
    name, linear = next((n, m) for n, m in layer.named_modules() if m is (*layer.bare_maps, *layer.bare_products)[0])
    linear.register_forward_hook(doubled)
    with pytest.raises(hongtu.errors.InputError, match=rf"its {name} is a Linear with hooks, expected a plain"):
        check_module(0, layer)


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


@pytest.mark.long
@pytest.mark.parametrize("grain", [(1, 16), (2, 12)], ids=str)
@pytest.mark.parametrize("device", ["cpu", "simulated"])
def test_what_runs_once_runs_in_finer_chunks(grain, device):
    options = {"device": device, "strategy": Strategy(transform_first=False)}
    share = 1.4 if (device, grain) == ("simulated", (2, 12)) else 1.8  # with the least, an aggregate has no room
    some = staged.budget(GCN, wide(), grain, share, **options)
    trainer = training.check(GCN, wide(), grain, epochs=3, device_memory=some, **options)
    plan = trainer.plan
    assert plan.views[ONCE].chunks == grain[1] > plan.topology.chunks
    assert {plan.view(p).chunks for p in plan.passes.setup} == {grain[1]}
    assert {plan.view(p).chunks for p in (*plan.passes.train, *plan.passes.evaluate)} == {plan.topology.chunks}
    assert trainer.evaluate().keys() and trainer.plan is plan

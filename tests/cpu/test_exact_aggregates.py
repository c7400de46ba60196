"""Training with layers beyond the first six is exact, too: against torch_geometric on the whole graph."""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

import hongtu
from hongtu import nn as hnn
from hongtu.cuda_ext.sources import KernelError
from hongtu.dry import DryBackend
from hongtu.plan.strategy import Strategy
from tests import staged, training
from tests.training import STRATEGIES, H, Model

EXACT = 1e-9  # of the largest gradient entry
SINGLE = 1e-4
DEG = torch.tensor([9, 7, 2, 0, 1, 3])
PNA = {"aggregators": ["mean", "std", "max", "min"], "scalers": ["identity", "amplification"], "deg": DEG}


def two(name, first, second, inner=torch.relu):
    """Two layers of one kind: each a dict of options, with the widths where they are given."""

    def modules(library):
        kind = getattr(library, name)
        return lambda f, c: [
            kind(f, H, **first),
            *([_Inner(inner)] if library is hnn else []),
            kind(H * first.get("heads", 1), c, **second),
        ]

    return Model(name, modules(hnn), lambda f, c: _with_place(modules(pyg)(f, c), inner))


class _Inner(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.activation = function

    def forward(self, h):
        return self.activation(h)


def _with_place(layers, inner):
    return [layers[0], _Inner(inner), layers[1]]


class Sign(nn.Module):
    """[h, B h, ..., B^K h], without self-loops."""

    def __init__(self, K):
        super().__init__()
        self.hop, self.K = pyg.APPNP(1, 0.0, add_self_loops=False), K

    def forward(self, h, edge_index, edge_weight=None):
        hops = [h]
        for _ in range(self.K):
            hops.append(self.hop(hops[-1], edge_index, edge_weight))
        return torch.cat(hops, dim=1)


MODELS = (
    two("SAGEConv", {"aggr": "max", "project": True}, {"aggr": ["min", "std"]}),
    two("GraphConv", {}, {"aggr": "max"}),
    two("GENConv", {"norm": "layer", "learn_t": True}, {"norm": None, "aggr": "powermean", "p": 2.0, "learn_p": True}),
    two("GATv2Conv", {"heads": 2}, {"heads": 3, "concat": False, "residual": True}, nn.functional.elu),
    two("TransformerConv", {"heads": 2, "beta": True}, {"heads": 3, "concat": False}),
    two("PNAConv", PNA | {"towers": 5}, PNA | {"pre_layers": 2}),
    Model("SGConv", lambda f, c: [hnn.SGConv(f, c, K=3)], lambda f, c: [pyg.SGConv(f, c, K=3)]),
    Model(
        "APPNP",
        lambda f, c: [nn.Linear(f, H), nn.ReLU(), nn.Linear(H, c), hnn.APPNP(3, 0.2)],
        lambda f, c: [nn.Linear(f, H), nn.ReLU(), nn.Linear(H, c), pyg.APPNP(3, 0.2)],
    ),
    Model(
        "SIGN",
        lambda f, c: [hnn.SIGN(2), nn.Linear(3 * f, c)],
        lambda f, c: [Sign(2), nn.Linear(3 * f, c)],
    ),
)
models = pytest.mark.parametrize("model", MODELS, ids=repr)
strategies = pytest.mark.parametrize("strategy", STRATEGIES)


def check(model, problem, grain, *, epochs=2, tolerance=EXACT, **options):
    trainer = training.make_trainer(model, problem, grain, **options)
    found = training.train(trainer, epochs)
    expected = training.train_reference(model, problem, 3)
    expected = training.Outcome(expected.losses[:epochs], expected.gradients[:epochs])
    training.assert_same(found, expected, tolerance)
    return trainer


@strategies
@models
def test_awkward_graph(model, strategy):
    """Isolated vertices, a hub, duplicate edges and repeated loops, in memory and in the smallest budget."""
    check(model, training.awkward(), (1, 1), strategy=strategy, epochs=3)
    for grain in ((1, 7), (2, 3), (4, 8)) if strategy == "full" else ((2, 3),):
        check(model, training.awkward(), grain, strategy=strategy, device_memory="smallest")


@models
def test_counted_is_predicted(model):
    for budget in (None, "smallest"):
        trainer = training.make_trainer(model, training.awkward(), (2, 3), device_memory=budget)
        record = trainer.train_epoch()
        assert record.bytes == trainer.plan.bytes


@pytest.mark.parametrize("model", [m for m in MODELS if m.name in ("GATv2Conv", "TransformerConv", "APPNP")], ids=repr)
def test_single_precision(model):
    """Not of variances: they are small differences of large numbers, whose rounding torch_geometric shares."""
    check(model, training.awkward(), (2, 3), tolerance=SINGLE, dtype=torch.float32, device_memory="smallest")


HOPS = ("SGConv", "SIGN")


@pytest.mark.parametrize("model", [m for m in MODELS if m.name in HOPS], ids=repr)
def test_hops_of_constant_features_are_computed_once(model):
    """An epoch exchanges nothing, moves no gradient rows and runs one pass forward and one back, whatever K."""
    plan = training.make_trainer(model, training.awkward(), (2, 3)).plan
    hops = len(plan.shape.layers)
    expected = ["setup stage 0", *(f"setup {k}" for k in range(hops)), f"fused {hops - 1}", f"evaluate {hops - 1}"]
    assert [p.name for p in plan.passes.every] == expected
    assert all(p.exchange is None and p.flush is None for p in (*plan.passes.train, *plan.passes.evaluate))


@pytest.mark.parametrize(
    "strategy",
    [
        Strategy(cache_input_aggregate=False),
        Strategy(cache_input_aggregate=False, transform_first=False, keep=False),
        Strategy(transform_first=False, fuse_last_layer=False),
        Strategy(no_input_gradient=False),
    ],
    ids=["no-cache", "recompute", "no-fuse", "input-gradient"],
)
@pytest.mark.parametrize("model", [m for m in MODELS if m.name in (*HOPS, "APPNP")], ids=repr)
def test_hops_without_a_saving(model, strategy):
    trainer = check(model, training.awkward(), (2, 3), strategy=strategy)
    if not strategy.cache_input_aggregate and model.name == "SIGN":
        backward = [p.name for p in trainer.plan.passes.train if p.direction != "forward"]
        assert backward == ["fused 1"], "what has no parameters before it is not differentiated"


@functools.cache
def few_train():
    """Two vertices carry a loss: most of the graph is outside their receptive fields."""
    problem = training.awkward()
    train = np.zeros(problem.num_vertices, dtype=bool)
    train[[2, 40]] = True
    return dataclasses.replace(problem, masks={"train": train, "val": ~train, "test": np.zeros_like(train)})


@models
def test_pruned(model):
    trainer = check(model, few_train(), (2, 3))
    assert trainer.plan.choice.fields


def test_dropout_before_hops_is_new_in_every_epoch():
    """Then the hops are no constants."""
    model = Model(
        "dropped", lambda f, c: [hnn.SGConv(f, c, K=2, input_dropout=0.5)], lambda f, c: [pyg.SGConv(f, c, K=2)]
    )
    trainer = training.make_trainer(model, training.awkward(), (2, 3), optimizer=lambda p: torch.optim.SGD(p, lr=0.0))
    losses = {trainer.train_epoch().loss for _ in range(3)}
    assert len(losses) == 3 and not trainer.plan.passes.setup


def test_frozen_layers_before_hops_are_no_constants():
    """They may be trained again."""
    model = Model(
        "frozen",
        lambda f, c: [nn.Linear(f, 4), hnn.SGConv(4, 4, K=2), hnn.SGConv(4, c, K=2)],
        lambda f, c: [nn.Linear(f, 4), pyg.SGConv(4, 4, K=2), pyg.SGConv(4, c, K=2)],
    )
    layers = model.build(training.awkward())
    layers[0].requires_grad_(False)
    artifact = training.prepare(training.awkward(), 2, 3)
    assert not hongtu.Trainer(artifact, layers).plan.passes.setup


def test_what_has_no_cuda_kernel_is_exact_and_within_the_budget():
    """On devices with memory of their own torch takes [E, F], which the probe must have seen."""
    try:
        device = DryBackend()
    except KernelError as error:
        pytest.skip(str(error))
    for name in ("SAGEConv", "GENConv", "GATv2Conv"):
        [model] = [m for m in MODELS if m.name == name]
        staged.check(model, training.awkward(), (2, 3), device=device, device_memory="smallest")


class Diffused(nn.Module):
    """W (mean over in-neighbours)^K h, the layer of docs/layers.md."""

    def __init__(self, f, c, K):
        super().__init__()
        self.lin, self.mean, self.K = nn.Linear(f, c), pyg.SimpleConv("mean"), K

    def forward(self, h, edge_index):
        for _ in range(self.K):
            h = self.mean(h, edge_index)
        return self.lin(h)


@strategies
def test_a_layer_of_ones_own_may_stand_for_several(strategy):
    """The one that docs/layers.md shows, as it stands there."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "layers.md").read_text()
    [shown] = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "class Diffusion" in block]
    names = {"hongtu": hongtu, "torch": torch}
    exec(shown, names)
    kind = names["Diffusion"]
    model = Model(
        "own", lambda f, c: [kind(f, 4, 3), kind(4, c, 2)], lambda f, c: [Diffused(f, 4, 3), Diffused(4, c, 2)]
    )
    trainer = check(model, training.awkward(), (2, 3), strategy=strategy, device_memory="smallest")
    assert list(trainer.gradients()) == ["0.lin.weight", "0.lin.bias", "1.lin.weight", "1.lin.bias"]

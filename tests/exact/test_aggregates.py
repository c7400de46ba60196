"""Training with layers beyond the first six is exact, too: against torch_geometric on the whole graph."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

import hongtu
from hongtu import nn as hnn
from hongtu.cuda_ext.compile import KernelError
from hongtu.device.simulated import SimulatedBackend
from hongtu.plan.passes.strategy import Strategy
from tests import additions, problems, staged, training
from tests.models import Model
from tests.training import SINGLE, STRATEGIES, check

MODELS = additions.AGGREGATES
BY_NAME = {model.name: model for model in MODELS}
HOPS = (
    Model("SGConv", lambda f, c: [hnn.SGConv(f, c, K=3)], lambda f, c: [pyg.SGConv(f, c, K=3)]),
    BY_NAME["sign"],
)


@pytest.mark.long
@pytest.mark.parametrize("model", [BY_NAME[name] for name in ("GATv2Conv", "TransformerConv", "hops")], ids=repr)
def test_single_precision(model):
    """Not of variances: they are small differences of large numbers, whose rounding torch_geometric shares."""
    check(model, problems.awkward(), (2, 3), epochs=2, tolerance=SINGLE, dtype=torch.float32, device_memory="smallest")


@pytest.mark.parametrize("model", HOPS, ids=repr)
def test_hops_of_constant_features_are_computed_once(model):
    """An epoch exchanges nothing, moves no gradient rows and runs one pass forward and one back, whatever K."""
    plan = training.make_trainer(model, problems.awkward(), (2, 3)).plan
    hops = len(plan.shape.layers)
    expected = ["setup stage 0", *(f"setup {k}" for k in range(hops)), f"fused {hops - 1}", f"evaluate {hops - 1}"]
    assert [p.name for p in plan.passes.every] == expected
    assert all(p.exchange is None and p.flush is None for p in (*plan.passes.train, *plan.passes.evaluate))


@pytest.mark.parametrize(
    "strategy",
    [
        Strategy(cache_input_aggregate=False),
        Strategy(cache_input_aggregate=False, transform_first=False, save=False),
        Strategy(transform_first=False, fuse_last_layer=False),
        Strategy(no_input_gradient=False),
    ],
    ids=["no-cache", "recompute", "no-fuse", "input-gradient"],
)
@pytest.mark.parametrize("model", [*HOPS, BY_NAME["hops"]], ids=repr)
def test_hops_without_a_saving(model, strategy):
    trainer = check(model, problems.awkward(), (2, 3), epochs=2, strategy=strategy)
    if not strategy.cache_input_aggregate and model.name == "sign":
        backward = [p.name for p in trainer.plan.passes.train if p.direction != "forward"]
        assert backward == ["fused 1"], "what has no parameters before it is not differentiated"


@pytest.mark.parametrize("model", [m for m in MODELS if m.name != "hops"] + [HOPS[0]], ids=repr)
def test_pruned(model):
    trainer = check(model, problems.few_train(), (2, 3), epochs=2)
    assert trainer.plan.choice.fields


def test_dropout_before_hops_is_new_in_every_epoch():
    """Then the hops are no constants."""
    model = Model(
        "dropped", lambda f, c: [hnn.SGConv(f, c, K=2, input_dropout=0.5)], lambda f, c: [pyg.SGConv(f, c, K=2)]
    )
    trainer = training.make_trainer(model, problems.awkward(), (2, 3), optimizer=lambda p: torch.optim.SGD(p, lr=0.0))
    losses = {trainer.train_epoch().loss for _ in range(3)}
    assert len(losses) == 3 and not trainer.plan.passes.setup


def test_frozen_layers_before_hops_are_no_constants():
    """They may be trained again."""
    model = Model(
        "frozen",
        lambda f, c: [nn.Linear(f, 4), hnn.SGConv(4, 4, K=2), hnn.SGConv(4, c, K=2)],
        lambda f, c: [nn.Linear(f, 4), pyg.SGConv(4, 4, K=2), pyg.SGConv(4, c, K=2)],
    )
    layers = model.build(problems.awkward())
    layers[0].requires_grad_(False)
    artifact = problems.prepare(problems.awkward(), 2, 3)
    assert not hongtu.Trainer(artifact, layers).plan.passes.setup


@pytest.mark.long
def test_what_has_no_cuda_kernel_is_exact_and_within_the_budget():
    """On devices with memory of their own torch takes [E, F], which the probe must have seen."""
    try:
        device = SimulatedBackend()
    except KernelError as error:
        pytest.skip(str(error))
    for name in ("SAGEConv", "GENConv", "GATv2Conv"):
        staged.check(BY_NAME[name], problems.awkward(), (2, 3), device=device, device_memory="smallest")


class Diffused(nn.Module):
    """W (mean over in-neighbours)^K h, the layer of docs/layers.md."""

    def __init__(self, f, c, K):
        super().__init__()
        self.lin, self.mean, self.K = nn.Linear(f, c), pyg.SimpleConv("mean"), K

    def forward(self, h, edge_index):
        for _ in range(self.K):
            h = self.mean(h, edge_index)
        return self.lin(h)


@pytest.mark.parametrize("strategy", STRATEGIES)
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
    trainer = check(model, problems.awkward(), (2, 3), epochs=2, strategy=strategy, device_memory="smallest")
    assert list(trainer.gradients()) == ["0.lin.weight", "0.lin.bias", "1.lin.weight", "1.lin.bias"]

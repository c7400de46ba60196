"""Values by name: residual and dense connections, jumping knowledge and GCNII, exact on the whole graph."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

import hongtu
from hongtu import nn as hnn
from hongtu.device.simulated import SimulatedBackend
from hongtu.errors import InputError
from hongtu.plan.passes.definition import gradient
from hongtu.plan.passes.strategy import Strategy
from tests import additions, problems, staged, training
from tests.models import H, Model
from tests.training import GRAINS, NOTHING, SINGLE, STRATEGIES, SWITCHES, check

grains = pytest.mark.parametrize("grain", GRAINS, ids=lambda grain: f"m{grain[0]}n{grain[1]}")
strategies = pytest.mark.parametrize("strategy", STRATEGIES)


class Mixed(nn.Module):
    """Not row-wise in its second input."""

    def forward(self, a, b):
        return a + b.sum(0)


MODELS = additions.CONNECTIONS


def test_torch_geometrics_jumping_knowledge():
    """Its module stands in our list as well."""

    def jumping(lib, f, c):
        return [
            (lib.SAGEConv(f, H), "x -> x1"), (lib.GATConv(H, H), "x1 -> x2"),
            (pyg.JumpingKnowledge("lstm", H, 2), "x1, x2 -> x"), nn.Linear(H, c),
        ]  # fmt: skip

    check(additions.of(jumping, "theirs"), problems.directed_weighted(), (2, 3), epochs=2, device_memory="smallest")


@pytest.mark.most(9)
@pytest.mark.long(sample=2)
@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize(
    ("model", "alone", "budget"),
    [(1, True, "100KiB"), (1, False, "100KiB"), (2, False, "100KiB"), (0, False, None)],
)
def test_savings(name, model, alone, budget):
    """Each alone, and all but one."""
    strategy = replace(NOTHING if alone else Strategy(), **{name: alone})
    check(MODELS[model], problems.few_train(), (2, 3), strategy=strategy, device_memory=budget, epochs=2)


def test_nothing_is_stored_twice():
    """x1 is what the second layer exchanges, the features are their own; GCNII's x0 is stored and read as itself."""
    strategy = Strategy(transform_first=False, fuse_last_layer=False)

    def plan(layers):
        artifact = problems.prepare(problems.awkward(), 2, 3)
        return hongtu.Trainer(artifact, layers, strategy=strategy, device_memory="1MiB").plan.passes

    jumps = plan(
        [
            (hnn.SAGEConv(6, H), "x -> x1"),
            (hnn.SAGEConv(H, H), "x1 -> x2"),
            (additions.Sum(), "x1, x2 -> y"),
            hnn.SAGEConv(H, 3),
        ]
    )
    assert {name for name in jumps.width if name[0] == "v"} == set()
    assert [p.values for p in jumps.train if p.layer == 1] == [("z1",)] * 2
    backward = {p.layer: p for p in jumps.train if p.direction == "backward"}
    assert gradient("z1") in backward[1].direct and backward[1].flush == gradient("z1")

    names = ["forward stage 0", "forward 0", "forward 1", "forward 2", "backward 2"]
    initial = plan(MODELS[0].layers(6, 3))
    assert [p.name for p in initial.train][:5] == names
    assert initial.train[0].outputs == ("z0", "v0.1")
    assert [p.values for p in initial.train][1:] == [("v0.1",)] * 6 + [()]
    assert [p.name for p in initial.train if "v0.1" in p.frees] == ["backward 0"]

    skipping = plan(
        [hnn.SAGEConv(6, H), (hnn.SAGEConv(H, 6), "x -> y"), (additions.Sum(), "y, y -> y"), hnn.SAGEConv(6, 3)]
    )
    assert not any(p.values for p in skipping.train)

    steps = plan([nn.Linear(6, H), hnn.APPNP(3, 0.2), nn.Linear(H, 3)])
    assert {name for name in steps.width if name[0] in "sv"} == {"v0.0"}, "h_0 is one tensor, whatever K"


@pytest.mark.long
def test_functions_and_branches():
    """Two layers read the same rows; a function joins what they give."""

    def join(a, b):
        return torch.relu(a) * b

    def modules(gcn, sage):
        return lambda f, c: [
            (gcn(f, H), "x -> a"), (sage(f, H), "x -> b"), (join_module(), "a, b -> x"), gcn(H, c),
        ]  # fmt: skip

    class Join(nn.Module):
        def forward(self, a, b):
            return join(a, b)

    def join_module():
        return Join()

    model = Model("branches", modules(hnn.GCNConv, hnn.SAGEConv), modules(pyg.GCNConv, pyg.SAGEConv))
    for strategy in STRATEGIES:
        check(model, problems.awkward(), (2, 3), strategy=strategy, device_memory="smallest", epochs=2)
    layers = model.build(problems.awkward())
    layers[2] = (join, "a, b -> x")
    trainer = hongtu.Trainer(problems.prepare(problems.awkward(), 1, 7), layers, dtype=torch.float64)
    expected = training.train_reference(model, problems.awkward()).losses[0]
    assert trainer.train_epoch().loss == pytest.approx(expected, rel=1e-12)


@pytest.mark.long
def test_snapshots_planning_again_and_copies_keep_the_headers(tmp_path):
    problem = problems.awkward()
    through = training.train(training.make_trainer(MODELS[2], problem, (2, 3)), 4)
    first = training.make_trainer(MODELS[2], problem, (2, 3))
    first.fit(2, eval_every=1)
    first.save(tmp_path / "snapshot")
    second = training.make_trainer(MODELS[2], problem, (2, 3), on_oom="replan", device_memory="1MiB")
    second.load(tmp_path / "snapshot")
    assert training.train(second, 2).losses == pytest.approx(through.losses[2:], rel=1e-12)


@pytest.mark.long
def test_staged_devices():
    for gpus, model in ((1, MODELS[0]), (3, MODELS[2])):
        staged.check(
            model, problems.awkward(), (3, 2), device=SimulatedBackend(gpus, seed=gpus), device_memory="smallest"
        )


def test_single_precision():
    for model in MODELS:
        check(model, problems.awkward(), (2, 3), tolerance=SINGLE, dtype=torch.float32, epochs=2)


@pytest.mark.parametrize(
    ("layers", "why"),
    [
        ([(hnn.GCNConv(6, H), "x, y -> x")], r"layers\[0\]: takes 'y', which nothing before it gives; there are 'x'"),
        ([(hnn.GCNConv(6, H), "x, edge_index -> x")], "edges reach every layer without being named"),
        ([(hnn.GCNConv(6, H), "x")], r'header \'x\'; expected names like "x" or "x, x0 -> x1"'),
        ([(hnn.GCNConv(6, H), 3)], "or a pair of one and a header"),
        ([lambda x: x, hnn.GCNConv(6, H)], r"layers\[0\] is <lambda>"),
        ([(hnn.GCNConv(6, H), "x -> a"), (hnn.GCNConv(H, 3), "a, x -> y")], r"layers\[1\] .*failed on a small graph"),
        ([(hnn.GCNConv(6, 3), "x -> a"), (nn.Linear(6, 3), "x -> b"), (Mixed(), "a, b -> y")], "mixes the rows"),
    ],
)
def test_lists_that_make_no_model_are_refused(layers, why):
    with pytest.raises(InputError, match=why):
        hongtu.Trainer(problems.prepare(problems.awkward(), 1, 1), layers)

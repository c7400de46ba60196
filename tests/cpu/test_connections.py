"""Values by name: residual and dense connections, jumping knowledge and GCNII, exact on the whole graph."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

import hongtu
from hongtu import nn as hnn
from hongtu.dry import DryBackend
from hongtu.errors import InputError
from hongtu.plan.passes import gradient
from hongtu.plan.strategy import Strategy
from tests import staged, training
from tests.cpu.test_counters import check_counters
from tests.cpu.test_exact import NOTHING, SINGLE, SWITCHES, check, few_train
from tests.training import GRAINS, STRATEGIES, H, Model

grains = pytest.mark.parametrize("grain", GRAINS, ids=lambda grain: f"m{grain[0]}n{grain[1]}")
strategies = pytest.mark.parametrize("strategy", STRATEGIES)


class Sum(nn.Module):
    """Any number of rows."""

    def forward(self, *rows):
        return sum(rows)


class Mixed(nn.Module):
    """Not row-wise in its second input."""

    def forward(self, a, b):
        return a + b.sum(0)


def gcnii(conv):
    return lambda f, c: [
        (nn.Linear(f, H), "x -> x0"), nn.ReLU(),
        (conv(H, 0.1, 0.5, 1), "x0, x0 -> x"), nn.ReLU(),
        (conv(H, 0.2, 0.5, 2, shared_weights=False), "x, x0 -> x"), nn.ReLU(),
        (conv(H, 0.3, normalize=False), "x, x0 -> x"), nn.Linear(H, c),
    ]  # fmt: skip


def jumping(sage, gat, knowledge, mode):
    """BatchNorm and jumping knowledge: the second layer's rows are read by the third and by the last module."""
    options = ("lstm", H, 3) if mode == "lstm" else (mode,)
    return lambda f, c: [
        (sage(f, H), "x -> x1"), nn.BatchNorm1d(H), nn.ReLU(), (gat(H, H), "x1 -> x2"), nn.ReLU(),
        (sage(H, H), "x2 -> x3"), (knowledge(*options), "x1, x2, x3 -> x"), nn.Linear(3 * H if mode == "cat" else H, c),
    ]  # fmt: skip


def dense(gcn, sage, gin, knowledge, inplace):
    """The features and every layer's rows reach all later ones; the last is a residual around a normalisation. What
    works in place leaves the rows that others read alone."""
    return lambda f, c: [
        (gcn(f, 4), "x -> a"), nn.Tanh(), (knowledge("cat"), "x, a -> h"), (sage(f + 4, 4), "h -> b"),
        (nn.ReLU(inplace=inplace), "b -> r"), (knowledge("cat"), "x, a, r -> h"), (gin(nn.Linear(f + 8, H)), "h -> g"),
        (nn.BatchNorm1d(H), "g -> n"), (Sum(), "n, g, n -> y"), (sage(H, H), "y -> y"), (Sum(), "g, y -> y"),
        (nn.ELU(inplace=inplace), "a -> e"), (knowledge("cat"), "y, b, e -> y"), nn.Linear(H + 8, c),
    ]  # fmt: skip


MODELS = (
    Model("gcnii", gcnii(hnn.GCN2Conv), gcnii(pyg.GCN2Conv)),
    Model(
        "cat",
        jumping(hnn.SAGEConv, hnn.GATConv, hnn.JumpingKnowledge, "cat"),
        jumping(pyg.SAGEConv, pyg.GATConv, pyg.JumpingKnowledge, "cat"),
    ),
    Model(
        "dense",
        dense(hnn.GCNConv, hnn.SAGEConv, hnn.GINConv, hnn.JumpingKnowledge, True),
        dense(pyg.GCNConv, pyg.SAGEConv, pyg.GINConv, pyg.JumpingKnowledge, False),
    ),
)
models = pytest.mark.parametrize("model", MODELS, ids=repr)


@strategies
@grains
@models
def test_awkward_graph(model, grain, strategy):
    """Exact, counted as predicted, within the budget."""
    for budget in ("64KiB", None) if strategy == "full" else ("64KiB",):
        check_counters(check(model, training.awkward(), grain, strategy=strategy, device_memory=budget, epochs=2))
    if grain == (2, 3):
        check_counters(check(model, training.awkward(), grain, strategy=strategy, device_memory="smallest", epochs=2))


@pytest.mark.parametrize("mode", ["max", "lstm"])
def test_jumping_knowledge(mode):
    """torch_geometric's own module stands in our list as well."""
    theirs = jumping(pyg.SAGEConv, pyg.GATConv, pyg.JumpingKnowledge, mode)
    for knowledge in (hnn.JumpingKnowledge, pyg.JumpingKnowledge):
        model = Model(mode, jumping(hnn.SAGEConv, hnn.GATConv, knowledge, mode), theirs)
        check(model, training.directed_weighted(), (2, 3), epochs=2, device_memory="smallest")


@pytest.mark.parametrize("name", SWITCHES)
def test_savings(name):
    """Each alone, and all but one."""
    for strategy in (replace(NOTHING, **{name: True}), replace(Strategy(), **{name: False})):
        for model in MODELS[1:]:
            check(model, few_train(), (2, 3), strategy=strategy, device_memory="smallest", epochs=2)
    check(MODELS[0], few_train(), (2, 3), strategy=strategy, epochs=2)


def test_nothing_is_stored_twice():
    """x1 is what the second layer exchanges, the features are their own; GCNII's x0 is stored and read as itself."""
    strategy = Strategy(transform_first=False, fuse_last_layer=False)

    def plan(layers):
        artifact = training.prepare(training.awkward(), 2, 3)
        return hongtu.Trainer(artifact, layers, strategy=strategy, device_memory="1MiB").plan.passes

    jumps = plan(
        [(hnn.SAGEConv(6, H), "x -> x1"), (hnn.SAGEConv(H, H), "x1 -> x2"), (Sum(), "x1, x2 -> y"), hnn.SAGEConv(H, 3)]
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

    skipping = plan([hnn.SAGEConv(6, H), (hnn.SAGEConv(H, 6), "x -> y"), (Sum(), "y, y -> y"), hnn.SAGEConv(6, 3)])
    assert not any(p.values for p in skipping.train)


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
        check(model, training.awkward(), (2, 3), strategy=strategy, device_memory="smallest", epochs=2)
    layers = model.build(training.awkward())
    layers[2] = (join, "a, b -> x")
    trainer = hongtu.Trainer(training.prepare(training.awkward(), 1, 7), layers, dtype=torch.float64)
    expected = training.train_reference(model, training.awkward()).losses[0]
    assert trainer.train_epoch().loss == pytest.approx(expected, rel=1e-12)


def test_snapshots_planning_again_and_copies_keep_the_headers(tmp_path):
    problem = training.awkward()
    through = training.train(training.make_trainer(MODELS[2], problem, (2, 3)), 4)
    first = training.make_trainer(MODELS[2], problem, (2, 3))
    first.fit(2, eval_every=1)
    first.save(tmp_path / "snapshot")
    second = training.make_trainer(MODELS[2], problem, (2, 3), on_oom="replan", device_memory="1MiB")
    second.load(tmp_path / "snapshot")
    assert training.train(second, 2).losses == pytest.approx(through.losses[2:], rel=1e-12)


def test_staged_devices():
    for gpus, model in ((1, MODELS[0]), (3, MODELS[2])):
        staged.check(model, training.awkward(), (3, 2), device=DryBackend(gpus, seed=gpus), device_memory="smallest")


def test_single_precision():
    for model in MODELS:
        check(model, training.awkward(), (2, 3), tolerance=SINGLE, dtype=torch.float32, epochs=2)


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
        hongtu.Trainer(training.prepare(training.awkward(), 1, 1), layers)

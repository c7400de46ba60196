"""Training is exact: losses and gradients equal those of torch_geometric, or a dense reference, on the whole graph."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg

from hongtu import nn as hnn
from hongtu.plan.passes.strategy import Strategy
from tests import problems, training
from tests.models import DEEP, SIX, H, Model
from tests.training import NOTHING, SINGLE, STRATEGIES, SWITCHES, check, over_grid

six = pytest.mark.parametrize("model", SIX, ids=repr)
strategies = pytest.mark.parametrize("strategy", STRATEGIES)


@pytest.mark.most(10)
@pytest.mark.long
@over_grid
@six
def test_awkward_graph(model, grain, strategy):
    """Isolated vertices, a hub, duplicate edges and repeated loops."""
    check(model, problems.awkward(), grain, epochs=3, strategy=strategy, device_memory="smallest")
    if strategy == "full":  # the others' plans do not depend on the budget
        check(model, problems.awkward(), grain, epochs=2, strategy=strategy)


@pytest.mark.every
@over_grid
@six
def test_directed_weighted_graph(model, grain, strategy):
    problem = problems.directed_weighted()
    check(model, problem, grain, epochs=1, strategy=strategy, device_memory="smallest")


@pytest.mark.every
@over_grid
@six
def test_cora(model, grain, strategy, data_graph):
    """The real graph with the first 64 columns of its features."""
    problem = problems.planetoid(data_graph("planetoid-cora"), 64)
    check(model, problem, grain, strategy=strategy, epochs=2)


@pytest.mark.every
@pytest.mark.long
@strategies
@six
def test_cora_in_the_smallest_budget(model, strategy, data_graph):
    problem = problems.planetoid(data_graph("planetoid-cora"), 4)
    trainer = check(model, problem, (4, 8), strategy=strategy, device_memory="smallest", epochs=2)
    loaded = [sum(len(device.loads) for device in plan.devices) for plan in trainer.plan.transfers.values()]
    assert max(loaded) > problem.num_vertices, "no row was brought twice: nothing was ever evicted"


@pytest.mark.long
@six
def test_cora_with_all_features(model, data_graph):
    check(model, problems.planetoid(data_graph("planetoid-cora")), (4, 8), epochs=2)


@pytest.mark.parametrize("weighted", (False, True))
@pytest.mark.parametrize("model", [m for m in SIX if m.name in ("gcn", "sage", "gin")], ids=repr)
def test_edges_that_stay_in_the_order_of_their_sources(model, weighted, monkeypatch):
    monkeypatch.setattr("hongtu.plan.search.planner.SMALL", 0)
    problem = problems.directed_weighted() if weighted else problems.awkward()
    for grain in ((1, 7), (2, 3)):
        trainer = check(model, problem, grain, epochs=2)
        assert trainer.plan.choice.ordered and trainer.plan.edge_orders


@pytest.mark.every
@pytest.mark.long
@strategies
@six
def test_single_precision(model, strategy):
    problem = problems.directed_weighted() if strategy == "paper" else problems.awkward()
    options = {"dtype": torch.float32, "strategy": strategy, "device_memory": "smallest"}
    check(model, problem, (2, 3), tolerance=SINGLE, **options)


def test_single_precision_on_cora(data_graph):
    for model in SIX:
        problem = problems.planetoid(data_graph("planetoid-cora"), 64)
        check(model, problem, (2, 3), tolerance=SINGLE, dtype=torch.float32)


@pytest.mark.long
@strategies
def test_three_different_layers(strategy):
    check(DEEP, problems.awkward(), (1, 7), strategy=strategy)
    check(DEEP, problems.awkward(), (2, 3), strategy=strategy, device_memory="smallest")


def savings():
    """Each alone, all, all but one (so that of any two, both are on, either, and none), and 8 random subsets, on top of
    any reuse."""
    yield from (replace(NOTHING, **{name: True}) for name in SWITCHES)
    yield from (replace(Strategy(), **{name: False}) for name in SWITCHES)
    rng = np.random.default_rng(0)
    for _ in range(8):
        chosen = {name: bool(rng.random() < 0.5) for name in SWITCHES}
        yield Strategy(reuse=str(rng.choice(["none", "paper", "lookahead"])), **chosen)
    for reuse in ("none", "paper", "lookahead"):
        yield Strategy(reuse=reuse)
        yield replace(NOTHING, reuse=reuse, schedule="paper")


LINEAR = Model(
    "gcn-sage",
    lambda f, c: [hnn.GCNConv(f, H, activation="relu"), hnn.SAGEConv(H, c)],
    lambda f, c: [pyg.GCNConv(f, H), pyg.SAGEConv(H, c)],
    torch.relu,
)


@pytest.mark.most(5)
@pytest.mark.long
@pytest.mark.parametrize(
    "strategy", list(savings()), ids=lambda s: "+".join(n for n in SWITCHES if getattr(s, n)) or "none"
)
def test_every_subset_of_savings(strategy):
    whole, pruned = problems.awkward(), problems.few_train()
    for model, problem, budget in (
        (DEEP, whole, "smallest"), (LINEAR, pruned, None), (LINEAR, pruned, "smallest"), (DEEP, pruned, None),
    ):  # fmt: skip
        trainer = check(model, problem, (2, 3), strategy=strategy, device_memory=budget, epochs=2)
        assert bool(trainer.plan.choice.fields) == (strategy.prune and problem is pruned)


@pytest.mark.long
def test_savings_are_used():
    """What each switch is for happens: otherwise the tests above compare nothing."""
    plan = training.make_trainer(LINEAR, problems.few_train(), (2, 3)).plan
    names = [p.name for p in plan.passes.every]
    assert names == ["setup stage 0", "setup 0", "forward 0", "fused 1", "backward 0", "evaluate 0", "evaluate 1"]
    assert plan.resident >= {"a0", "z1", "grad z1"} and any(p.saves for p in plan.passes.train)
    assert [p.hops for p in plan.passes.train] == [1, 0, 1]
    labels = plan.view(plan.passes.train[1]).active.size * 9
    assert plan.bytes["load"] == plan.bytes["flush"] == plan.bytes["write"] == plan.bytes["read"] - labels == 0
    budgeted = training.make_trainer(LINEAR, problems.few_train(), (2, 3), device_memory="smallest").plan
    assert budgeted.bytes["read"] > labels and not any(p.saves for p in budgeted.passes.train)


@functools.cache
def few_labels():
    """Few vertices carry a loss, so that every layer computes a part of its own."""
    problem = problems.awkward()
    train = np.zeros(problem.num_vertices, dtype=bool)
    train[np.flatnonzero(problem.masks["train"])[::25]] = True
    return dataclasses.replace(problem, masks=problem.masks | {"train": train})


@pytest.mark.long
@pytest.mark.parametrize("group", [True, False])
@pytest.mark.parametrize("name", ["SAGEConv", "GCNConv", "GATConv"])
def test_what_pruned_layers_keep_until_backward(name, group):
    """Three layers, each with a checkpoint or kept rows of its own part of the graph."""
    ours, theirs = getattr(hnn, name), getattr(pyg, name)
    model = Model(
        f"three-{name}",
        lambda f, c: [ours(f, H, activation="relu"), ours(H, H, activation="relu"), ours(H, c)],
        lambda f, c: [theirs(f, H), theirs(H, H), theirs(H, c)],
        torch.relu,
    )
    for grain in ((1, 7), (4, 8)):
        trainer = check(model, few_labels(), grain, epochs=2, strategy=Strategy(group=group))
        assert any(view.active is not None for view in trainer.plan.views.values()), "nothing was pruned"


SAGE_3 = Model(
    "sage-3",
    lambda f, c: [hnn.SAGEConv(f, H, activation="relu"), hnn.SAGEConv(H, H, activation="relu"), hnn.SAGEConv(H, c)],
    lambda f, c: [pyg.SAGEConv(f, H), pyg.SAGEConv(H, H), pyg.SAGEConv(H, c)],
    torch.relu,
)


@pytest.mark.parametrize("grain", [(1, 1), (1, 4), (3, 4)], ids=str)
def test_what_is_kept_may_lie_in_rows_that_are_exchanged(grain):
    """Without a limit, several chunks a device: saved activations are found in the resident tensor."""
    strategy = replace(Strategy(), group=False, transform_first=False)  # what is exchanged is the activation
    trainer = check(SAGE_3, problems.awkward(), grain, strategy=strategy)
    held = [p for p in trainer.plan.passes.train if p.holds]
    names, directions = {name for p in held for name in p.holds}, {p.direction for p in held}
    assert names == {"z1", "z2"} and directions == {"forward", "backward"}

"""Models whose edges have states from layer to layer are exact, and what these take is what the plan says."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

import hongtu
from hongtu import nn as hnn
from hongtu.plan.passes.strategy import Strategy
from tests import graphs, problems, staged
from tests.models import H, Model
from tests.problems import prepare
from tests.ranks.turns import run_ranks
from tests.training import STRATEGIES, assert_same, check, sgd, train, train_reference

P = problems.EDGE_COLUMNS


class EdgeModel(Model):
    """The reference's convolutions are called with rows, edges and states of edges, and give both."""

    def run_reference(self, modules, problem, dtype=torch.float64):
        given = {"x": torch.from_numpy(problem.features).to(dtype), "e": problem.edge_data(dtype)["edge_attr"]}
        x = "x"
        for module, header in zip(modules, modules.headers, strict=True):
            default = "x, e -> x, e" if isinstance(module, Whole) else f"{x} -> {x}"
            takes, gives = (part.split(", ") for part in (header or default).split(" -> "))
            found = [given[name] for name in takes]
            edges = (problem.edge_index,) if isinstance(module, Whole) else ()
            found = module(*found, *edges)
            given |= dict(zip(gives, found if isinstance(found, tuple) else (found,), strict=False))
            x = gives[0] if gives[0] in ("x", "y") else x
        return given[x]


class Whole(nn.Module):
    """On the whole graph."""


class MeshWhole(Whole):
    """As DeepMind's GraphNetBlock, with residuals."""

    def __init__(self, *given, **options):
        super().__init__()
        block = hnn.MeshBlock(*given, **options)
        self.edge_mlp, self.vertex_mlp, self.mean = block.edge_mlp, block.vertex_mlp, block.mean

    def forward(self, x, e, edge_index):
        source, destination = edge_index
        m = self.edge_mlp(torch.cat([e, x[source], x[destination]], dim=1))
        a = x.new_zeros(len(x), m.shape[1]).index_add(0, destination, m)
        if self.mean:
            a = a / torch.bincount(destination, minlength=len(x)).clamp(min=1).unsqueeze(1)
        return x + self.vertex_mlp(torch.cat([x, a], dim=1)), e + m


class Own(hnn.Layer):
    """A user's: states of another width than they had, several tensors in s, and softmax over in-edges of a state."""

    def __init__(self, columns, edges, out):
        super().__init__()
        self.source, self.target = nn.Linear(columns, out), nn.Linear(columns, out, bias=False)
        self.edge = nn.Linear(edges, out)

    def transform(self, h):
        return self.source(h), (self.target(h), h)

    def update_edges(self, block, z, s, e):
        return torch.tanh(self.edge(e) + block.gather(z) * block.gather_destination(s[0]))

    def aggregate(self, block, z, s):
        shares = block.softmax(block.edge_features)
        return block.segment_sum(shares * block.gather(z))

    def update(self, a, s):
        return torch.cat([a, s[1]], dim=1)


class OwnWhole(Whole):
    def __init__(self, columns, edges, out):
        super().__init__()
        self.source, self.target = nn.Linear(columns, out), nn.Linear(columns, out, bias=False)
        self.edge = nn.Linear(edges, out)

    def forward(self, x, e, edge_index):
        source, destination = edge_index
        e = torch.tanh(self.edge(e) + self.source(x)[source] * self.target(x)[destination])
        total = e.new_zeros(len(x), e.shape[1]).index_add(0, destination, e.exp())
        shares = e.exp() / total[destination]
        a = e.new_zeros(len(x), e.shape[1]).index_add(0, destination, shares * self.source(x)[source])
        return torch.cat([a, x], dim=1), e


class Pair(hnn.Layer):
    """One that gives only forward."""

    updates_edges = True

    def __init__(self, columns, edges, out):
        super().__init__()
        self.both = nn.Linear(2 * columns + edges, out)

    def forward(self, block, h):
        source, destination = block.edge_index
        e = self.both(torch.cat([h[source], h[destination], block.edge_features], dim=1)).relu()
        return block.segment_mean(e), e


class PairWhole(Whole):
    def __init__(self, columns, edges, out):
        super().__init__()
        self.both = nn.Linear(2 * columns + edges, out)

    def forward(self, x, e, edge_index):
        source, destination = edge_index
        e = self.both(torch.cat([x[source], x[destination], e], dim=1)).relu()
        a = e.new_zeros(len(x), e.shape[1]).index_add(0, destination, e)
        return a / torch.bincount(destination, minlength=len(x)).clamp(min=1).unsqueeze(1), e


class Gine(Whole, pyg.GINEConv):
    """torch_geometric's, which reads edges and gives none."""

    def __init__(self, inside):
        pyg.GINEConv.__init__(self, inside)

    def forward(self, x, e, edge_index):
        return pyg.GINEConv.forward(self, x, edge_index, e)


def mesh(block):
    def layers(f, c):
        return [
            (nn.Linear(f, H), "x -> x"), (nn.Linear(P, 3), "e -> e"), nn.ReLU(),
            block(H, 3), block(H, 3, hidden=4, hidden_layers=1, norm=False, aggr="mean"), block(H, 3, activation="tanh"),
            nn.Linear(H, c),
        ]  # fmt: skip

    return layers


def shared(block):
    """Four steps with the same weights, and edges of as many columns as the graph's."""

    def layers(f, c):
        step = block(H, P)
        return [nn.Linear(f, H), step, step, step, step, nn.Linear(H, c)]

    return layers


class Sum(nn.Module):
    def forward(self, *rows):
        return sum(rows)


def wired(own, pair, gine):
    """States taken by several layers, row-wise modules of edges before and between them, one of another layer's, and a
    last state that nobody takes."""

    def layers(f, c):
        return [
            (nn.Linear(P, H), "e -> e0"), (nn.Tanh(), "e0 -> e0"),
            (own(f, H, H), "x, e0 -> x, e1"),
            (nn.LayerNorm(H), "e1 -> n1"), (Sum(), "n1, e0, e1 -> n1"),
            (pair(f + H, H, H), "x, n1 -> x, e2"),
            (gine(nn.Linear(H, H)), "x, e1 -> x"), nn.ReLU(),
            (pair(H, P, H), "x, e -> x, e3"),
            (Sum(), "e1, e2, e3 -> e4"),
            (own(H, H, c), "x, e4 -> x, e5"), nn.Linear(c + H, c),
        ]  # fmt: skip

    return layers


class GatedWhole(Whole):
    """As GraphGPS's GatedGCNLayer, but for layer norm."""

    def __init__(self, *given, **options):
        super().__init__()
        for name, part in hnn.GatedGCNConv(*given, **options).named_children():
            setattr(self, name, part)

    def forward(self, x, e, edge_index):
        j, i = edge_index
        e_ij = self.D(x)[i] + self.E(x)[j] + self.C(e)
        gate = torch.sigmoid(e_ij)
        total = torch.zeros_like(self.A(x)).index_add(0, i, gate * self.B(x)[j])
        out = self.A(x) + total / (torch.zeros_like(total).index_add(0, i, gate) + 1e-6)
        out, e_ij = self.norm_x(out).relu(), self.norm_e(e_ij).relu()
        return x + out if out.shape == x.shape else out, e + e_ij if e_ij.shape == e.shape else e_ij


def gated(conv):
    def layers(f, c):
        return [conv(f, H, P), conv(H, H), conv(H, H, norm=None), conv(H, c, H, residual=False, norm=None)]

    return layers


MODELS = [
    EdgeModel("gated", gated(hnn.GatedGCNConv), gated(GatedWhole)),
    EdgeModel("mesh", mesh(hnn.MeshBlock), mesh(MeshWhole)),
    EdgeModel("shared", shared(hnn.MeshBlock), shared(MeshWhole)),
    EdgeModel("wired", wired(Own, Pair, hnn.GINEConv), wired(OwnWhole, PairWhole, Gine)),
]
NOTHING_STAYS = Strategy(resident=False)
models = pytest.mark.parametrize("model", MODELS, ids=repr)


def awkward():
    return problems.edge_data()


@functools.cache
def few():
    """Paths with some edges twice and loops, of which two vertices far from their beginnings carry a loss."""
    v = np.arange(1, 60)
    edges = np.stack([np.r_[v - 1, v[::7], v[::5]], np.r_[v, v[::7], (v[::5] + 1) % 60]])
    problem = problems.problem_of(graphs.Graph("paths", edges, None, 70))
    train = np.isin(np.arange(70), [20, 55])
    masks = {"train": train, "val": ~train, "test": np.zeros_like(train)}
    return problems.with_edge_data(replace(problem, masks=masks))


@models
def test_in_memory(model):
    check(model, awkward(), (1, 1), epochs=2)


@models
@pytest.mark.parametrize("grain", [(1, 5), (4, 8)], ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategies(model, grain, strategy):
    check(model, awkward(), grain, strategy=strategy)


@models
@pytest.mark.parametrize("budget", ["smallest", 150_000])
def test_budgets(model, budget):
    check(model, awkward(), (2, 6), device_memory=budget)


@models
@pytest.mark.parametrize("options", [{}, {"device_memory": "smallest"}], ids=str)
def test_pruned(model, options):
    """States exist only of the in-edges of what the loss depends on, layer by layer."""
    trainer = check(model, few(), (2, 5), **options)
    plan = trainer.plan
    assert plan.choice.fields and any(plan.edge_places(p) for p in plan.passes.train)


@models
@pytest.mark.parametrize("problem", [awkward, few], ids=["whole", "pruned"])
def test_devices_with_their_own_memory(model, problem):
    for options in {}, {"device_memory": "smallest"}:
        staged.check(model, problem(), (2, 3), device=staged.simulated(seed=5), **options)


@models
@pytest.mark.parametrize(("ranks", "dependencies"), [(2, "cache"), (3, "comm"), (2, "hybrid")], ids=str)
def test_ranks(model, ranks, dependencies):
    """A state lives with the rank of its edge's destination, and where that is computed again."""
    problem = awkward()
    artifact, expected = prepare(problem, 4, 3), train_reference(model, problem).first(2)

    def work(group):
        layers = model.build(problem)
        options = {"loss": model.loss, "optimizer": sgd, "dtype": torch.float64, "dependencies": dependencies}
        trainer = hongtu.Trainer(artifact, layers, ranks=group, **options)
        assert_same(train(trainer, 2), expected, 1e-9)

    run_ranks(ranks, work)


@models
@pytest.mark.parametrize("kept", [0, 2])
def test_on_a_disk(model, kept):
    """States are written there in the order of chunks, and come back in that of backward."""
    for options in {"device_memory": "smallest"}, {"device": staged.simulated(seed=2), "device_memory": "smallest"}:
        with staged.on_disk(fit=functools.partial(staged.everything, kept=kept)) as disk:
            trainer = staged.check(model, awkward(), (2, 4), strategy=NOTHING_STAYS, **options, **disk)
        spilled = trainer.plan.spilled.keys() & trainer.plan.passes.of_edges.keys()
        assert spilled and trainer.record.bytes["disk"] > 0

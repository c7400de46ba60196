"""Layers called without the weights of edges, in all strategies and budgets: also where edges hold what normalises."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

import hongtu
from tests import problems, training


class Net(nn.Module):
    """Two convolutions, each with or without the weights of edges."""

    def __init__(self, *convolutions, weights=(False, False)):
        super().__init__()
        self.first, self.second = convolutions
        self.weights = weights

    def forward(self, x, edge_index, edge_weight):
        own = [edge_weight if given else None for given in self.weights]
        h = self.first(x, edge_index, own[0]).relu() if own[0] is not None else self.first(x, edge_index).relu()
        return self.second(h, edge_index, own[1]) if own[1] is not None else self.second(h, edge_index)


class Plain(Net):
    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


class Front(nn.Module):
    """Rows that are mapped before the only convolution."""

    def __init__(self):
        super().__init__()
        self.lin, self.conv = nn.Linear(6, 4), pyg.GCNConv(4, 3)

    def forward(self, x, edge_index):
        return self.conv(self.lin(x).relu(), edge_index)


MODELS = {
    "GCN": lambda: Plain(pyg.GCNConv(6, 4), pyg.GCNConv(4, 3)),
    "GCN behind a Linear": Front,
    "GCN without loops": lambda: Plain(*(pyg.GCNConv(a, b, add_self_loops=False) for a, b in ((6, 4), (4, 3)))),
    "GCN of A": lambda: Plain(*(pyg.GCNConv(a, b, normalize=False) for a, b in ((6, 4), (4, 3)))),
    "GAT": lambda: Plain(pyg.GATConv(6, 4), pyg.GATConv(4, 3)),
    "GCN, one with weights": lambda: Net(pyg.GCNConv(6, 4), pyg.GCNConv(4, 3), weights=(True, False)),
}


@pytest.mark.pairs
@pytest.mark.parametrize("graph", ["weighted", "plain"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("strategy", training.STRATEGIES)
def test_weights_that_are_not_given(strategy, name, graph):
    base = problems.awkward()
    problem = base if graph == "weighted" else replace(base, weights=None)
    if graph == "plain" and name.endswith("weights"):
        pytest.skip("there are none")
    torch.manual_seed(1)
    model, artifact = MODELS[name]().double(), problems.prepare(problem, 2, 3)
    x, mask = torch.from_numpy(problem.features).double(), torch.from_numpy(problem.masks["train"])
    weight = [problem.edge_weight()] * (type(model) is Net)
    out = model(x, problem.edge_index, *weight)
    expected = nn.functional.cross_entropy(out[mask], torch.from_numpy(problem.labels)[mask])
    expected.backward()
    options = {"optimizer": training.sgd, "dtype": torch.float64, "strategy": strategy}
    smallest = training.smallest_budget(artifact, lambda: hongtu.from_pyg(model), **options)
    for budget in (smallest, None):
        trainer = hongtu.Trainer(artifact, hongtu.from_pyg(model), device_memory=budget, **options)
        torch.testing.assert_close(trainer.predict(), out.detach())
        record = trainer.train_epoch()
        assert record.loss == pytest.approx(float(expected.detach()), rel=1e-9)
        training.assert_counted(trainer, record)
        found = sum(float(gradient.square().sum()) for gradient in trainer.gradients().values())
        assert found == pytest.approx(sum(float(p.grad.square().sum()) for p in model.parameters()), rel=1e-8)

"""Dropout in convolutions, and in parts of them, that somebody has written: the same for every cut of the graph."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import hongtu
from hongtu.errors import InputError
from tests import graphs, problems
from tests.models import H
from tests.ranks.turns import run_ranks
from tests.training import sgd

P = problems.EDGE_COLUMNS


class OfEdges(pyg.MessagePassing):
    """Drops rows of edges, where there are some, then of destinations, beside its messages."""

    def __init__(self, f, c):
        super().__init__(aggr="add")
        self.edge, self.lin = nn.Linear(P, f), nn.Linear(f, c)

    def forward(self, x, edge_index, edge_attr):
        if isinstance(x, torch.Tensor):
            x = x, x
        e = self.edge(edge_attr)
        e = torch.dropout(e, 0.3, train=self.training) if len(e) else e
        rows = self.propagate(edge_index, x=x, e=e, size=(len(x[0]), len(x[1])))
        return self.lin(functional.dropout(rows, 0.4, self.training) + x[1])

    def message(self, x_j, e):
        return x_j * e


class Network(nn.Module):
    def __init__(self, f, c):
        super().__init__()
        self.lin = nn.Linear(f, c)

    def forward(self, x):
        return self.lin(functional.dropout(x, 0.4, self.training)).tanh()


class Net(nn.Module):
    def __init__(self, conv, f, c):
        super().__init__()
        self.first, self.second = conv(f, H), conv(H, c)

    def forward(self, x, edge_index, edge_attr):
        if isinstance(self.first, pyg.GINConv):
            return self.second(self.first(x, edge_index), edge_index)
        return self.second(self.first(x, edge_index, edge_attr), edge_index, edge_attr)


CONVOLUTIONS = {
    "of edges": OfEdges,
    "network": lambda f, c: pyg.GINConv(Network(f, c)),
    "network in a chain": lambda f, c: pyg.GINConv(nn.Sequential(nn.Linear(f, H), nn.Dropout(0.2), Network(H, c))),
}


def few_edges():
    """Some chunks have as many edges as destinations, others none."""
    v, rng = 30, np.random.default_rng(0)
    graph = graphs.Graph("few", rng.integers(0, v, (2, v)), None, v)
    return problems.with_edge_data(problems.problem_of(graph))


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_the_losses_of_every_cut_are_the_same(name):
    problem = few_edges()
    torch.manual_seed(3)
    model = Net(CONVOLUTIONS[name], problem.width, problem.classes).double()

    def losses(grain, **options):
        layers, artifact = hongtu.from_pyg(copy.deepcopy(model)), problems.prepare(problem, *grain)
        trainer = hongtu.Trainer(artifact, layers, dtype=torch.float64, optimizer=sgd, seed=3, **options)
        return [trainer.train_epoch().loss for _ in range(2)]

    expected = losses((1, 1))
    for grain, strategy in (((1, 5), "full"), ((2, 3), "paper"), ((4, 4), "none")):
        assert losses(grain, strategy=strategy) == pytest.approx(expected, rel=1e-10), grain
    for found in run_ranks(2, lambda group: losses((2, 3), ranks=group, dependencies="hybrid")):
        assert found == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("reentrant", [True, False])
def test_dropout_that_is_computed_again_in_backward_is_refused(reentrant):
    """It would draw by torch's generator then, and gradients would be those of other masks."""

    class Checkpointed(Network):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=reentrant)

    layers = [nn.Linear(6, H), hongtu.nn.PyGLayer(pyg.EdgeConv(Checkpointed(2 * H, 3)))]
    with pytest.raises(
        InputError, match=r"dropout inside of torch.utils.checkpoint or torch.no_grad, .*; leave it out"
    ):
        hongtu.Trainer(problems.prepare(few_edges()), layers).train_epoch()

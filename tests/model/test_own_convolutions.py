"""Convolutions of one's own, with what people write in them: exact, in chunks and in the smallest budget."""

from __future__ import annotations

import functools

import pytest
import torch
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import softmax

import hongtu
from hongtu import nn as hnn
from hongtu.errors import InputError
from tests import graphs, problems, training


class Own(MessagePassing):
    def __init__(self, columns_in, columns_out):
        super().__init__()
        self.lin, self.gate = torch.nn.Linear(columns_in, columns_out), torch.nn.Linear(2 * columns_out, 1)


class KeepsShares(Own):
    """Has the shares of its last call, their gradients with them."""

    def forward(self, x, edge_index):
        self.rows = [self.lin(x)]
        return self.propagate(edge_index, x=self.rows[0])

    def message(self, x_i, x_j, index):
        self.alpha = softmax(self.gate(torch.cat([x_i, x_j], dim=1)).tanh(), index)
        return self.alpha * x_j


class WeighsIfAsked(Own):
    """Takes one tensor, and weights or none."""

    def forward(self, x, edge_index, edge_weight=None):
        if edge_weight is None:
            edge_weight = torch.ones(edge_index.shape[1], dtype=x.dtype)
        return self.propagate(edge_index, x=self.lin(x), edge_weight=edge_weight)

    def message(self, x_j, edge_weight):
        return edge_weight.view(-1, 1) * x_j


class Multiplies(Own):
    def forward(self, x, edge_index):
        size = (len(x), len(x))
        matrix = torch.sparse_coo_tensor(edge_index.flip(0), x.new_ones(edge_index.shape[1]), size)
        return torch.sparse.mm(matrix, self.lin(x))


class MultipliesRows(Own):
    def forward(self, x, edge_index):
        size = (len(x), len(x))
        matrix = torch.sparse_coo_tensor(edge_index.flip(0), x.new_ones(edge_index.shape[1]), size)
        return matrix.to_sparse_csr() @ self.lin(x)


class Two(torch.nn.Module):
    def __init__(self, kind, features, classes):
        super().__init__()
        self.first, self.last = kind(features, 8), kind(8, classes)

    def forward(self, x, edge_index):
        return self.last(self.first(x, edge_index).relu(), edge_index)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.parametrize("kind", [KeepsShares, WeighsIfAsked, Multiplies, MultipliesRows])
def test_own_convolutions(kind):
    problem = problems.problem_of(graphs.Graph("plain", problems.awkward_graph().edges, None, 64))
    torch.manual_seed(0)
    model = Two(kind, problem.width, problem.classes).double()
    x, edges = torch.from_numpy(problem.features).double(), problem.edge_index
    model(x, edges)  # as for lazy weights
    options = {"optimizer": training.sgd, "dtype": torch.float64}
    artifact, layers = problems.prepare(problem, 2, 3), functools.partial(hongtu.from_pyg, model)
    budget = training.smallest_budget(artifact, layers, **options)
    trainers = [hongtu.Trainer(artifact, layers(), device_memory=limit, **options) for limit in (None, budget)]
    optimizer = training.sgd(model.parameters())
    mask, labels = torch.from_numpy(problem.masks["train"]), torch.from_numpy(problem.labels)
    for _ in range(3):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x, edges)[mask], labels[mask])
        loss.backward()
        optimizer.step()
        for trainer in trainers:
            record = trainer.train_epoch()
            assert record.loss == pytest.approx(loss.item(), rel=1e-10)
    with torch.no_grad():
        torch.testing.assert_close(trainers[0].predict(), model.eval()(x, edges), rtol=1e-9, atol=1e-9)


def test_every_device_has_a_copy_of_what_keeps_results():
    problem = problems.problem_of(graphs.Graph("plain", problems.awkward_graph().edges, None, 64))
    torch.manual_seed(0)
    model = Two(KeepsShares, problem.width, problem.classes).double()
    artifact = problems.prepare(problem, 2, 3)
    alone, beside = (
        hongtu.Trainer(artifact, hongtu.from_pyg(model), device=device, optimizer=training.sgd, dtype=torch.float64)
        for device in ("cpu", "simulated")
    )
    assert [alone.train_epoch().loss for _ in range(2)] == [beside.train_epoch().loss for _ in range(2)]


class Chooses(Own):
    """Takes some edges, by the numbers of their ends."""

    def __init__(self, choose, *, pairs=False):
        super().__init__(8, 8)
        self.choose, self.pairs = choose, pairs

    def forward(self, x, edge_index):
        edges = edge_index[:, self.choose(*edge_index)]
        return self.lin(self.propagate(edges, x=x)) if self.pairs else self.propagate(edges, x=self.lin(x))


class Keeps(Own):
    """Has a number of its first call."""

    def __init__(self, count, *, pairs=False):
        super().__init__(8, 8)
        self.count, self.kept, self.pairs = count, None, pairs

    def forward(self, x, edge_index):
        self.kept = self.count(edge_index) if self.kept is None else self.kept
        return (
            self.lin(self.propagate(edge_index, x=x)) if self.pairs else self.propagate(edge_index, x=self.lin(x))
        ) / self.kept


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("make", [
    lambda pairs: Chooses(lambda source, destination: source < destination, pairs=pairs),
    lambda pairs: Chooses(lambda source, destination: source >= destination, pairs=pairs),
    lambda pairs: Chooses(lambda source, destination: (source + destination) % 2 == 0, pairs=pairs),
    lambda pairs: Keeps(lambda edges: edges.shape[1], pairs=pairs),
    lambda pairs: Keeps(lambda edges: edges.max() + 1, pairs=pairs),
    lambda pairs: Keeps(lambda edges: edges[0].float().std(), pairs=pairs),
], ids=["below", "above", "even", "edges", "vertices", "spread"])  # fmt: skip
def test_convolutions_of_numbers_that_a_chunk_has_not_are_refused(make, pairs):
    problem = problems.problem_of(graphs.Graph("plain", problems.awkward_graph().edges, None, 64), width=8)
    with pytest.raises(InputError, match="depends on more than its in-edges and their sources"):
        hongtu.Trainer(problems.prepare(problem, 2, 3), [hnn.PyGLayer(make(pairs)), hnn.GCNConv(8, problem.classes)])
    kept = Chooses(lambda source, destination: source != destination, pairs=pairs)
    hongtu.Trainer(problems.prepare(problem, 2, 3), [hnn.PyGLayer(kept), hnn.GCNConv(8, problem.classes)])

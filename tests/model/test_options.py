"""Options that torch_geometric's convolutions have and hongtu's layers have not, and matrices of torch-sparse."""

from __future__ import annotations

import pytest
import torch
import torch_geometric.nn as pyg
from torch_geometric.data import Data

import hongtu
from hongtu.errors import InputError
from tests.model.test_edge_inputs import WIDTH, E, N, check, graph, net, numbers, prepare


def plain(self, x, edge_index):
    return self.b(self.a(x, edge_index).relu(), edge_index)


def weighed(self, x, edge_index, edge_weight):
    return self.b(self.a(x, edge_index, edge_weight).relu(), edge_index)


def with_features(self, x, edge_index, edge_attr):
    return self.b(self.a(x, edge_index, edge_attr).relu(), edge_index)


PLAIN = {
    "another aggr": lambda: pyg.GATConv(WIDTH, 8, aggr="mean"),
    "a pair": lambda: pyg.GATConv((WIDTH, WIDTH), 4, heads=2),
    "one term": lambda: pyg.ChebConv(WIDTH, 8, K=1),
    "no hops": lambda: pyg.TAGConv(WIDTH, 8, K=0),
    "no hops at all": lambda: pyg.MixHopConv(WIDTH, 8, [0]),
    "columns apart": lambda: pyg.GCNConv(WIDTH, 8, decomposed_layers=2),
    "columns apart, hops": lambda: pyg.TAGConv(WIDTH, 8, K=2, decomposed_layers=3),
}
FEATURED = {
    "add": lambda: pyg.GATConv(WIDTH, 8, edge_dim=3, fill_value="add"),
    "max": lambda: pyg.GATv2Conv(WIDTH, 8, edge_dim=3, fill_value="max"),
    "of each column": lambda: pyg.GATv2Conv(WIDTH, 8, edge_dim=3, fill_value=torch.tensor([1.0, 2.0, 3.0])),
}


@pytest.mark.parametrize("of", PLAIN)
def test_options_of_rows(of):
    data = graph()
    check(prepare(data), net(plain, a=PLAIN[of](), b=pyg.SAGEConv(8, 4)), lambda m: m(data.x, data.edge_index), data)


@pytest.mark.parametrize("of", FEATURED)
def test_options_of_edge_features(of):
    data = graph(edge_attr=numbers(E, 3))
    model = net(with_features, a=FEATURED[of](), b=pyg.SAGEConv(8, 4))
    check(prepare(data), model, lambda m: m(data.x, data.edge_index, data.edge_attr.double()), data)


@pytest.mark.parametrize(
    "make",
    [
        lambda: pyg.GCNConv(WIDTH, 8, improved=True),
        lambda: pyg.SimpleConv("mean", combine_root="self_loop"),
        lambda: pyg.SimpleConv("max", combine_root="self_loop"),
    ],
)
def test_self_loops_of_weighed_edges(make):
    data = graph(edge_weight=numbers(E))
    conv = make()
    model = net(weighed, a=conv, b=pyg.SAGEConv(8 if isinstance(conv, pyg.GCNConv) else WIDTH, 4))
    check(prepare(data), model, lambda m: m(data.x, data.edge_index, data.edge_weight.double()), data)


def test_improved_without_weights_is_said_to_be_nothing():
    with pytest.raises(InputError, match=r"\(GCNConv\) is improved, which torch_geometric leaves out of edges"):
        hongtu.Trainer(prepare(graph()), hongtu.from_pyg(pyg.GCN(WIDTH, 8, 2, 4, improved=True)))


def reversible(self, x, edge_index):
    return self.b(self.a(x, edge_index), edge_index)


def test_a_reversible_block_is_its_forward():
    data = graph()
    block = pyg.GroupAddRev(pyg.SAGEConv(WIDTH // 2, WIDTH // 2), num_groups=2)
    model = net(reversible, a=block, b=pyg.SAGEConv(WIDTH, 4))
    check(prepare(data), model, lambda m: m(data.x.clone(), data.edge_index), data)


class Sums(pyg.MessagePassing):
    """A convolution that maps its rows first."""

    def __init__(self, aggr):
        super().__init__(aggr=aggr)
        self.lin = torch.nn.Linear(WIDTH, 8)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=self.lin(x))


OF_SORTED_EDGES = {
    "mlp": lambda: pyg.aggr.MLPAggregation(8, 8, max_num_elements=20, num_layers=1),
    "set transformer": lambda: pyg.aggr.SetTransformerAggregation(8, heads=2),
    "patch transformer": lambda: pyg.aggr.PatchTransformerAggregation(8, 8, 3, 8, heads=2),
}


@pytest.mark.parametrize("aggr", OF_SORTED_EDGES)
def test_aggregations_that_need_edges_by_destination(aggr):
    data = graph()
    data.edge_index = data.edge_index[:, data.edge_index[1].argsort(stable=True)]
    model = net(plain, a=Sums(OF_SORTED_EDGES[aggr]()), b=pyg.SAGEConv(8, 4))
    check(prepare(data), model, lambda m: m(data.x, data.edge_index), data)


@pytest.mark.parametrize("make", [pyg.aggr.GRUAggregation, pyg.aggr.LSTMAggregation, pyg.aggr.LCMAggregation])
def test_aggregations_that_the_longest_list_changes(make):
    model = net(plain, a=Sums(make(8, 8)), b=pyg.SAGEConv(8, 4))
    with pytest.raises(InputError, match="that the longest list of in-edges does not change"):
        hongtu.Trainer(prepare(graph()), hongtu.from_pyg(model))


class SparseTensor:
    """As torch_sparse's, by its methods."""

    def __init__(self, row, column, value):
        self._parts = row, column, value

    def coo(self):
        return self._parts

    def sparse_sizes(self):
        return N, N


def of_matrix(self, x, adj_t):
    return self.b(self.a(x, adj_t).relu(), adj_t)


@pytest.mark.parametrize("strategy", ["full", "paper"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: {"a": pyg.GCNConv(WIDTH, 8), "b": pyg.GCNConv(8, 4)},
        lambda: {"a": pyg.GCNConv(WIDTH, 8, improved=True), "b": pyg.GCNConv(8, 4, improved=True)},
        lambda: {"a": pyg.SGConv(WIDTH, 8, K=2), "b": pyg.APPNP(2, 0.1)},
    ],
)
def test_the_diagonal_of_a_sparse_tensor_is_replaced(make, strategy):
    """torch_sparse.fill_diag puts the added weight where a self-loop is stored."""
    data, weight = graph(), numbers(E).abs() + 0.5
    source, destination = data.edge_index
    assert (source == destination).any()
    matrix = SparseTensor(destination, source, weight)
    given = Data(x=data.x, adj_t=matrix, y=data.y, train_mask=data.train_mask)
    parts = make()
    of_loops = 2.0 if getattr(parts["a"], "improved", False) else 1.0
    filled = torch.where(source == destination, of_loops, weight.double())

    def call(m):
        h = m.a(data.x, data.edge_index, filled).relu()
        return m.b(h, data.edge_index, filled)

    check(prepare(given), net(of_matrix, **parts), call, data, strategy=strategy)

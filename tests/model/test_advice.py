"""What messages of refusal advise is run, as it is written, and gives torch_geometric's numbers."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from torch_geometric import utils
from torch_geometric.nn.conv.gcn_conv import gcn_norm

import hongtu
from hongtu.errors import InputError
from tests.model.test_edge_inputs import WIDTH, E, N, check, graph, numbers, prepare


class Changing(torch.nn.Module):
    """Changes the edges that it is given."""

    def __init__(self, change, conv=pyg.GraphConv):
        super().__init__()
        self.change, self.first, self.last = change, conv(WIDTH, 8), conv(8, 4)

    def forward(self, x, edge_index, edge_weight):
        if self.change is not None:
            edge_index, edge_weight = self.change(edge_index, edge_weight)
        return self.last(self.first(x, edge_index, edge_weight).relu(), edge_index, edge_weight)


class ChangingEdges(Changing):
    def forward(self, x, edge_index):
        if self.change is not None:
            edge_index = self.change(edge_index)
        return self.last(self.first(x, edge_index).relu(), edge_index)


def doubled(made):
    """Edges and weights, which artifacts have in float32."""
    return made[0], made[1].double()


def with_change(change, *whole):
    """Calls a model as it was, with what it was given."""

    def call(model):
        model.change = change
        found = model(*whole)
        model.change = None
        return found

    return call


def check_beforehand(kind, change, data):
    """The refusal's line of code, run on the ``Data``, makes the forward without the change do what it did with it."""
    torch.manual_seed(2)
    model, beside = kind(change).double(), (data.edge_weight.double(),) if kind is Changing else ()
    whole = data.x, data.edge_index, *beside
    with pytest.raises(InputError, match=r"change edges before hongtu\.preprocess_graph, as ") as refused:
        hongtu.from_pyg(model)
    made = re.search(r"preprocess_graph, as (.*), and leave it out of forward", str(refused.value))[1]
    names = {"data": data, "subset": torch.arange(20), "gcn_norm": gcn_norm, **vars(utils)}
    exec(made, names)
    model.change = None
    check(prepare(data), model, with_change(change, *whole), data)


@pytest.mark.parametrize(
    "change",
    [
        lambda e, w: utils.add_self_loops(e, w, fill_value=2.0),
        lambda e, w: utils.add_remaining_self_loops(e, w, 3.0, N),
        lambda e, w: doubled(utils.get_laplacian(e, w.float(), "sym", num_nodes=N)),
        lambda e, w: doubled(gcn_norm(e, w.float(), improved=True)),
        lambda e, w: utils.remove_self_loops(e, w),
        lambda e, w: utils.to_undirected(e, w, reduce="max"),
        lambda e, w: utils.coalesce(e, w, num_nodes=N),
        lambda e, w: utils.sort_edge_index(e, w, sort_by_row=False),
    ],
)
def test_edges_and_their_weights_are_changed_beforehand(change):
    check_beforehand(Changing, change, graph(edge_weight=(64 * numbers(E)).round() / 64))  # whose sums are exact


@pytest.mark.parametrize(
    "change",
    [
        lambda e: utils.add_self_loops(e)[0],
        lambda e: utils.remove_self_loops(e)[0],
        lambda e: utils.to_undirected(e),
        lambda e: utils.coalesce(e),
        lambda e: utils.subgraph(torch.arange(20), e)[0],
    ],
)
@pytest.mark.parametrize("beside", [False, True])
def test_edges_are_changed_beforehand(change, beside):
    check_beforehand(ChangingEdges, change, graph(edge_attr=numbers(E, 2)) if beside else graph())


@pytest.mark.parametrize("end", [0, 1])
def test_degrees_are_columns_beforehand(end):
    class Scaled(ChangingEdges):
        def forward(self, x, edge_index):
            x = torch.cat([x, utils.degree(edge_index[end], x.size(0)).view(-1, 1)], dim=1) if self.change else x
            return super().forward(x, edge_index)

    data = graph()
    model = Scaled(None)
    model.first = pyg.GraphConv(WIDTH + 1, 8)
    x, model.change = data.x, lambda e: e
    with pytest.raises(InputError, match=r"as data.x = (.*), and leave it out of forward") as refused:
        hongtu.from_pyg(model)
    exec(
        re.search(r"as (data.x = .*), and leave", str(refused.value))[1], {"data": data, "torch": torch, **vars(utils)}
    )
    assert data.x.shape == (N, WIDTH + 1)
    model.change = None
    check(prepare(data), model, with_change(lambda e: e, x, data.edge_index), data)


class Called(torch.nn.Module):
    """Calls a function with rows, in its own forward or in that of a module without convolutions."""

    def __init__(self, function, apart=False):
        super().__init__()
        self.first, self.last = pyg.SAGEConv(WIDTH, 8), pyg.SAGEConv(8, 4)
        self.act = AsItIs(function)
        self.apart = apart

    def forward(self, x, edge_index):
        h = self.first(x, edge_index)
        return self.last(self.act(h) if self.apart else FUNCTIONS[self.act.name](h), edge_index)


class AsItIs(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.name = name

    def forward(self, h):
        return FUNCTIONS[self.name](h)


def swish(h):
    return h * torch.sigmoid(h)


def halves_(h):
    return h.mul_(0.5)


FUNCTIONS = {
    "scripted": torch.jit.script(swish),
    "scripted, in place": torch.jit.script(halves_),
    "compiled": torch.compile(swish, backend="eager"),
    "mapped": torch.vmap(lambda row: row / (1 + row.norm())),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_takes_only_tensors_is_called_in_a_module(name):
    with pytest.raises(
        InputError, match=r"takes no less than tensors, as .* in line \d+: .*call that in the forward of"
    ):
        hongtu.from_pyg(Called(name))
    data = graph()
    check(prepare(data), Called(name, apart=True), lambda model: model(data.x, data.edge_index), data)


def test_a_function_of_torch_jit_in_a_module_is_no_crash():
    model = Called("scripted")
    model.function = FUNCTIONS["scripted"]
    with pytest.raises(InputError, match=r"Called cannot be copied: ScriptFunction .*where no module holds it"):
        hongtu.from_pyg(model)


@pytest.mark.parametrize("conv", [pyg.GATConv, pyg.GATv2Conv])
@pytest.mark.parametrize("change", [lambda e: e[:, 1], lambda e: e[:, :1].squeeze(-1).log1p(), lambda e: e.sum(1)])
def test_one_number_of_an_edge_is_a_column(conv, change):
    """As in torch_geometric's convolutions of attention."""

    class OfOne(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = conv(WIDTH, 4, heads=2, edge_dim=1), conv(8, 4, edge_dim=1, fill_value=0.3)

        def forward(self, x, edge_index, edge_attr):
            h = self.first(x, edge_index, change(edge_attr)).relu()
            return self.last(h, edge_index, change(edge_attr))

    data = graph(edge_attr=numbers(E, 3))
    whole = data.x, data.edge_index, data.edge_attr.double()
    check(prepare(data), OfOne(), lambda model: model(*whole), data)


class Parts(torch.nn.Module):
    """What a list of layers has, one after another."""

    def __init__(self, conv, behind):
        super().__init__()
        self.conv, self.behind = conv, behind

    def forward(self, x, edge_index):
        return self.behind(self.conv(x, edge_index))


@pytest.mark.parametrize(
    ("conv", "behind", "place"),
    [
        (pyg.GCN(WIDTH, 8, 2, 8), torch.nn.Linear(8, 4), 0),
        (pyg.GCN(WIDTH, 8, 3, 8, jk="cat"), torch.nn.Linear(8, 4), 0),
        (pyg.SAGEConv(WIDTH, 8), pyg.MLP([8, 8, 4]), 1),
        (pyg.SAGEConv(WIDTH, 8), pyg.MLP([8, 8, 8, 4], norm="layer_norm", act="elu"), 1),
    ],
)
def test_models_in_a_list_are_unpacked_as_is_said(conv, behind, place):
    data, model = graph(), Parts(conv, behind).double()
    parts = [model.conv, model.behind]
    entries = [part if k == place else hongtu.nn.PyGLayer(part) if k == 0 else part for k, part in enumerate(parts)]
    with pytest.raises(InputError, match=rf"layers\[{place}\] .* pass \*hongtu.from_pyg\(model\) in its place"):
        hongtu.Trainer(prepare(data), entries, dtype=torch.float64)
    entries = [*hongtu.from_pyg(conv), *(hongtu.from_pyg(behind) if place else [behind])]
    trainer = hongtu.Trainer(prepare(data), entries, dtype=torch.float64)
    with torch.no_grad():
        expected = model.eval()(data.x, data.edge_index)
    torch.testing.assert_close(trainer.predict(), expected, rtol=1e-9, atol=1e-9)
    with pytest.raises(InputError, match=r"layers\[0\] is a list of \d: expected a layer; unpack it, as \*layers"):
        hongtu.Trainer(prepare(data), [hongtu.from_pyg(conv), behind])


class Looked(torch.nn.Module):
    """A learned row for each vertex."""

    def __init__(self, places):
        super().__init__()
        self.places, self.rows, self.conv = places, torch.nn.Embedding(N, 8), pyg.SAGEConv(8, 4)

    def forward(self, x, edge_index):
        return self.conv(self.rows(self.places(x)), edge_index)


@pytest.mark.parametrize(
    "places",
    [
        lambda x: torch.arange(x.size(0)),
        lambda x: torch.arange(x.shape[0], device=x.device),
        lambda x: torch.arange(x.size(0)).to(x.device).long(),
    ],
)
def test_a_learned_row_for_each_vertex(places):
    with pytest.raises(InputError, match=r"with the places of rows, .* data.x = torch.arange"):
        hongtu.from_pyg(Looked(places))
    data = graph()
    data.x = torch.arange(N).view(-1, 1)
    check(prepare(data), Looked(lambda x: x[:, 0].long()), lambda model: model(data.x, data.edge_index), data)


class Tied(torch.nn.Module):
    """Uses one weight twice."""

    def __init__(self, alone):
        super().__init__()
        self.first, self.lin, self.last = pyg.SAGEConv(WIDTH, 8), torch.nn.Linear(8, 8), pyg.SAGEConv(8, 4)
        self.alone = alone

    def forward(self, x, edge_index):
        h = self.first(x, edge_index)
        h = torch.nn.functional.linear(h, self.lin.weight, self.lin.bias) if self.alone else self.lin(h)
        return self.last(h.relu() @ self.lin.weight, edge_index)


def test_a_weight_that_is_used_twice():
    with pytest.raises(
        InputError, match=r"lin.weight, a weight .* as torch.nn.functional.linear\(h, self.lin.weight\)"
    ):
        hongtu.from_pyg(Tied(alone=False))
    data = graph()
    check(prepare(data), Tied(alone=True), lambda model: model(data.x, data.edge_index), data)


class OfAll(torch.nn.Module):
    """Makes something of all features of vertices, or of edges, at once."""

    def __init__(self, change, of_edges):
        super().__init__()
        self.first, self.last = pyg.GATConv(WIDTH, 8, edge_dim=2), pyg.SAGEConv(8, 4)
        self.change, self.of_edges = change, of_edges

    def forward(self, x, edge_index, edge_attr):
        if self.change is not None:
            x, edge_attr = (x, self.change(edge_attr)) if self.of_edges else (self.change(x), edge_attr)
        return self.last(self.first(x, edge_index, edge_attr), edge_index)


OF_ALL = {
    "by the largest": lambda x: x / x.abs().max(),
    "centred": lambda x: x - x.mean(0),
    "standardised": lambda x: (x - x.mean(0)) / x.std(0),
    "softmax": lambda x: x.softmax(0),
    "by a norm": lambda x: torch.nn.functional.normalize(x, dim=0),
}


@pytest.mark.parametrize("of", ["x", "edge_attr"])
@pytest.mark.parametrize("name", [*OF_ALL, "of whole numbers"])
def test_what_is_made_of_all_rows_is_made_beforehand(name, of):
    data, change = graph(edge_attr=(64 * numbers(E, 2)).round() / 64), OF_ALL.get(name, OF_ALL["standardised"])
    line = rf"is made once before hongtu.preprocess_graph, as (rows = data.{of}.*), and left out of forward"
    with pytest.raises(InputError, match=line) as refused:
        hongtu.Trainer(prepare(data), hongtu.from_pyg(OfAll(change, of == "edge_attr")))
    beforehand = data.clone()
    if name == "of whole numbers":
        beforehand[of] = (64 * data[of]).long()
    if name in ("standardised", "of whole numbers"):
        exec(re.search(line, str(refused.value))[1], {"data": beforehand})
    else:
        beforehand[of] = change(data[of])
    whole = beforehand.x.float().double(), data.edge_index, beforehand.edge_attr.float().double()
    check(prepare(beforehand), OfAll(None, False), lambda model: model(*whole), beforehand)


@pytest.mark.parametrize(
    "change",
    [
        lambda e: 1 / e,
        lambda e: e / e.norm(dim=1, keepdim=True),
        lambda e: (e - e.mean(1, keepdim=True)) / e.std(1, keepdim=True),
    ],
)
def test_what_is_made_of_each_edge_alone_is_taken(change):
    """Though it gives no numbers where an edge has zeros."""
    data = graph(edge_attr=numbers(E, 2))
    whole = data.x, data.edge_index, data.edge_attr.double()
    check(prepare(data), OfAll(change, True), lambda model: model(*whole), data)


@pytest.mark.parametrize(
    "function", [np.tanh, lambda h: torch.from_numpy(np.asarray(h)), lambda h: torch.tensor(h.tolist())]
)
def test_functions_of_arrays_have_counterparts_that_take_rows(function):
    FUNCTIONS["of an array"] = function
    with pytest.raises(InputError, match=r"an array, or a list, of rows; .* as torch.tanh\(h\) for numpy.tanh\(h\)"):
        hongtu.from_pyg(Called("of an array"))
    FUNCTIONS["of an array"], data = torch.tanh, graph()
    check(prepare(data), Called("of an array"), lambda model: model(data.x, data.edge_index), data)


def of_rows(self, x, /, edge_index):
    return self.last(self.first(x, edge_index), edge_index)


def of_all(self, x, edge_index, edge_weight=None, /):
    return self.last(self.first(x, edge_index, edge_weight), edge_index)


def of_data(self, data, /):
    return self.last(self.first(data.x, data.edge_index), data.edge_index)


@pytest.mark.parametrize("forward", [of_rows, of_all, of_data])
def test_arguments_without_names_are_given_in_order(forward):
    data = graph()
    given = (data,) if forward is of_data else (data.x, data.edge_index)
    kind = type("InOrder", (Changing,), {"forward": forward})
    check(prepare(data), kind(None), lambda model: model(*given), data)

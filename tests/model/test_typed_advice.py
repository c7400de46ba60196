"""What refusals of models of types say names what was given, and what they advise gives torch_geometric's numbers."""

from __future__ import annotations

import copy
import re

import pytest
import torch
import torch_geometric as pyg_itself
import torch_geometric.nn as pyg
from torch import nn
from torch.nn import functional as F
from torch_geometric import utils
from torch_geometric.data import HeteroData
from torch_geometric.transforms import ToUndirected
from torch_geometric.utils import augmentation
from torch_geometric.utils import dropout_edge as named

import hongtu
from hongtu.errors import InputError
from tests import problems

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
BY = ("paper", "by", "author")


def graph(*with_attr):
    """Some of whose relations have edge features."""
    torch.manual_seed(4)
    data = HeteroData()
    data["paper"].x, data["author"].x = torch.randn(20, 6), torch.randn(8, 4)
    data["paper"].y, data["paper"].train_mask = torch.arange(20) % 3, torch.arange(20) % 3 > 0
    for key, sizes in ((WRITES, (8, 20)), (BY, (20, 8)), (CITES, (20, 20))):
        ends = torch.cat([torch.arange(sizes[1]), torch.randint(sizes[1], (30,))])  # each vertex has an in-edge
        data[key].edge_index = torch.stack([torch.randint(sizes[0], ends.shape), ends])
    for key in with_attr:
        data[key].edge_attr = torch.randn(data[key].num_edges, 3).float()
    return data


def prepare(data):
    return hongtu.preprocess_graph(data=data, artifact=problems.new_path(), partitions=2, chunks=3)


def called(model, data):
    """What a model gives on a whole graph, in its own precision."""
    dtype = next((p.dtype for p in model.parameters() if not nn.parameter.is_lazy(p)), torch.float32)
    x = {kind: rows.to(dtype) for kind, rows in data.x_dict.items()}
    with_attr = {"edge_attr": {key: rows.to(dtype) for key, rows in data.edge_attr_dict.items()}} if has(data) else {}
    found = model(x, data.edge_index_dict, *with_attr.values())
    return found["paper"] if isinstance(found, dict) else found


def has(data):
    return any("edge_attr" in data[key] for key in data.edge_types)


def check(model, data):
    """Losses and predictions are those of the model on the whole graph."""
    called(model, data)  # which gives lazy weights their shapes
    theirs = copy.deepcopy(model).double()
    trainer = hongtu.Trainer(
        prepare(data), hongtu.from_pyg(copy.deepcopy(theirs)), dtype=torch.float64,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
    )  # fmt: skip
    optimizer, mask = torch.optim.SGD(theirs.parameters(), lr=0.1), data["paper"].train_mask
    for _ in range(2):
        optimizer.zero_grad()
        loss = F.cross_entropy(called(theirs, data)[mask], data["paper"].y[mask])
        loss.backward()
        optimizer.step()
        assert trainer.train_epoch().loss == pytest.approx(loss.item(), rel=1e-9)
    found = trainer.predict()
    with torch.no_grad():
        expected = called(theirs.eval(), data)
    torch.testing.assert_close(found["paper"] if isinstance(found, dict) else found, expected, rtol=1e-9, atol=1e-9)


class Net(nn.Module):
    """A forward that is given, and layers for it."""

    def __init__(self, forward, **parts):
        super().__init__()
        self.function, self.lin = forward, pyg.Linear(-1, 3)
        self.conv = pyg.HeteroConv({WRITES: pyg.SAGEConv((-1, -1), 8), CITES: pyg.SAGEConv(-1, 8)})
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x_dict, edge_index_dict):
        return self.function(self, x_dict, edge_index_dict)


class OfEdges(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = pyg.GATConv((-1, -1), 8, edge_dim=3, add_self_loops=False), pyg.SAGEConv((-1, -1), 3)

    def forward(self, x, edge_index, edge_attr):
        return self.last(self.first(x, edge_index, edge_attr).relu(), edge_index)


def medians(self, x, edges):
    h = self.own((x["author"], x["paper"]), edges[WRITES]).relu()
    return self.last((h, h), edges[CITES])


TAKEN = {
    "GraphSAGE": lambda data: pyg.to_hetero(pyg.GraphSAGE(-1, 8, 2, 3), data.metadata()),
    "three layers": lambda data: pyg.to_hetero(pyg.GraphSAGE(-1, 8, 3, 3, jk="cat", dropout=0.0), data.metadata()),
    "GAT": lambda data: pyg.to_hetero(pyg.GAT((-1, -1), 8, 2, 3, add_self_loops=False), data.metadata(), aggr="max"),
    "median": lambda data: Net(
        medians, own=pyg.SAGEConv((-1, -1), 4, aggr="median"), last=pyg.SAGEConv((-1, -1), 3, aggr="median")
    ),
}


@pytest.mark.parametrize("name", TAKEN)
def test_models_of_torch_geometric_by_type(name):
    data = graph()
    check(TAKEN[name](data), data)


@pytest.mark.parametrize("with_attr", [(WRITES, BY, CITES), (WRITES,), (CITES, BY)])
def test_edge_features_by_type(with_attr):
    data = graph(*with_attr)
    check(pyg.to_hetero(OfEdges(), data.metadata()), data)


REFUSED = {
    "unknown type": (
        lambda self, x, e: self.lin(self.conv(x, e)["papers"]),
        {},
        r"asks for 'papers', and there are paper, author, \(",
    ),
    "unknown relation": (
        lambda self, x, e: self.lin(self.own(x["paper"], e["cites"])),
        {"own": lambda: pyg.SAGEConv(-1, 4)},
        "asks for 'cites'",
    ),
    "no rows": (
        lambda self, x, e: self.lin(self.conv(x, e)["author"]),
        {},
        "asks for 'author', and nothing before gives rows",
    ),
    "types of others": (
        lambda self, x, e: self.lin(self.own(x, e)["paper"]),
        {"own": lambda: pyg.HGTConv(-1, 8, (["paper", "author", "venue"], [WRITES, BY, CITES]), 2)},
        r"has no shape, as nothing of .* goes through it; .*data.metadata\(\)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_there_is_named(name):
    forward, parts, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        hongtu.Trainer(
            prepare(graph()), hongtu.from_pyg(Net(forward, **{name: make() for name, make in parts.items()}))
        )


@pytest.mark.parametrize("field", ["train_mask", "num_nodes", "n_id", "y"])
def test_a_forward_reads_what_a_chunk_has(field):
    class OfData(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = pyg.HeteroConv({CITES: pyg.SAGEConv(-1, 3)})

        def forward(self, data):
            getattr(data["paper"], field)
            return self.conv(data.x_dict, data.edge_index_dict)["paper"]

    with pytest.raises(InputError, match=rf"it reads {field} of a HeteroData, where there are x; in .*the train mask"):
        hongtu.Trainer(prepare(graph()), hongtu.from_pyg(OfData()))


@pytest.mark.parametrize("argument", ["edge_attr_dict", "edge_weight_dict", "time_dict"])
def test_arguments_that_the_graph_has_not(argument):
    names = {}
    exec(f"def forward(self, x_dict, edge_index_dict, {argument}): ...", names)
    kind = type("Asks", (Net,), {"forward": names["forward"]})
    message = rf"data\[relation\].{argument[:-5]}" if argument.startswith("edge") else "give it a default$"
    with pytest.raises(InputError, match=rf"asks for '{argument}'.*{message}"):
        hongtu.Trainer(prepare(graph()), hongtu.from_pyg(kind(None)))


def between(conv, pair):
    """A convolution between two types, of a pair or of the sources alone."""
    return Net(
        lambda self, x, e: self.lin(self.own((x["author"], x["paper"]) if pair else x["author"], e[WRITES])), own=conv
    )


def test_convolutions_between_types_as_is_advised():
    for model, message in (
        (
            between(pyg.SAGEConv(4, 4), False),
            r"rows of author alone, .*give it a pair, \(x_source, x_destination\)",
        ),
        (between(pyg.GATConv((4, 6), 4), True), r"adds self-loops, .*of two types; make it with add_self_loops=False"),
        (
            between(pyg.GATv2Conv((4, 6), 4), True),
            r"adds self-loops, .*of two types; make it with add_self_loops=False",
        ),
    ):
        with pytest.raises(InputError, match=message):
            hongtu.Trainer(prepare(graph()), hongtu.from_pyg(model))
    check(between(pyg.SAGEConv((4, 6), 4), True), graph())
    check(between(pyg.GATConv((4, 6), 4, add_self_loops=False), True), graph())


CHANGES = {
    "to_undirected": lambda edges: utils.to_undirected(edges),
    "add_self_loops": lambda edges: utils.add_self_loops(edges)[0],
    "remove_self_loops": lambda edges: utils.remove_self_loops(edges)[0],
    "coalesce": lambda edges: utils.coalesce(edges),
}


@pytest.mark.parametrize("with_attr", [(), (CITES, WRITES, BY)])
@pytest.mark.parametrize("name", CHANGES)
def test_edges_of_a_relation_are_changed_beforehand(name, with_attr):
    data, change = graph(*with_attr), CHANGES[name]

    def forward(self, x, e):
        return self.lin(self.own(x["paper"], change(e[CITES]) if self.changes else e[CITES]))

    model = Net(forward, own=pyg.SAGEConv(6, 4))
    model.changes = True
    with pytest.raises(InputError, match=r"as (data\[.*\)), and leave it out of forward") as refused:
        hongtu.Trainer(prepare(data), hongtu.from_pyg(model))
    model.changes = False
    exec(re.search(r"preprocess_graph, as (.*), and leave", str(refused.value))[1], {"data": data, **vars(utils)})
    changed = graph()
    changed[CITES].edge_index = data[CITES].edge_index
    assert change(graph()[CITES].edge_index).sort()[0].tolist() == data[CITES].edge_index.sort()[0].tolist()
    check(model, changed)


COUNTED = {  # sizes of both types, as people write them
    "pair": lambda x, e: utils.add_self_loops(e, num_nodes=(8, 20))[0],
    "pair of sizes": lambda x, e: utils.add_self_loops(e, num_nodes=(x["author"].size(0), x["paper"].shape[0]))[0],
    "number": lambda x, e: utils.add_remaining_self_loops(e, num_nodes=8)[0],
    "size of sources": lambda x, e: utils.add_self_loops(e, num_nodes=x["author"].size(0))[0],
}


@pytest.mark.parametrize("name", COUNTED)
def test_self_loops_between_two_types_are_made_beforehand(name):
    data, change = graph(), COUNTED[name]

    def forward(self, x, e):
        edges = change(x, e[WRITES]) if self.changes else e[WRITES]
        return self.lin(self.own((x["author"], x["paper"]), edges))

    model = Net(forward, own=pyg.SAGEConv((4, 6), 4))
    model.changes = True
    with pytest.raises(InputError, match=r"as (data\[.*\)), and leave it out of forward") as refused:
        hongtu.Trainer(prepare(data), hongtu.from_pyg(model))
    model.changes = False
    exec(re.search(r"preprocess_graph, as (.*), and leave", str(refused.value))[1], {"data": data, **vars(utils)})
    expected = graph()
    assert data[WRITES].edge_index.tolist() == change(expected.x_dict, expected[WRITES].edge_index).tolist()
    check(model, data)


ON_EDGES = {  # what a forward may ask of edges, and do with them
    "size": lambda x, e: asserts(e.size(0) == 2 and e.size(dim=-2) == 2),
    "shape": lambda x, e: asserts(e.shape[0] == 2),
    "len": lambda x, e: asserts(len(e) == 2),
    "dim": lambda x, e: asserts(e.dim() == 2 and e.ndim == 2),
    "dtype": lambda x, e: asserts(e.dtype == torch.long and not e.is_floating_point() and not e.is_sparse),
    "device": lambda x, e: x.to(e.device),
    "number": lambda x, e: x / e.size(0),
    "long": lambda x, e: (x, e.long()),
    "contiguous": lambda x, e: (x, e.contiguous()),
    "to": lambda x, e: (x, e.to(x.device)),
}


@pytest.mark.parametrize("name", ON_EDGES)
def test_a_forward_may_ask_what_edges_of_every_graph_are(name):
    def forward(self, x, e):
        found = ON_EDGES[name](x["paper"], e[CITES])
        rows, edges = found if isinstance(found, tuple) else (x["paper"] if found is None else found, e[CITES])
        return self.lin(self.own(rows, edges))

    check(Net(forward, own=pyg.SAGEConv(6, 4)), graph())


@pytest.mark.parametrize("asks", ["e.size(1) > 0", "e.shape[1] > 0", "e.numel() > 0", "x / e.shape[1]", "e.shape == x"])
def test_how_many_edges_there_are_is_not_asked(asks):
    def forward(self, x, e):
        return self.lin(self.own(x["paper"], e[CITES] if eval(asks, {"x": x["paper"], "e": e[CITES]}) is None else 0))

    with pytest.raises(
        InputError, match=r"takes edges apart \((size|shape|numel)\), .* how many there are, of __init__"
    ):
        hongtu.Trainer(prepare(graph()), hongtu.from_pyg(Net(forward, own=pyg.SAGEConv(6, 4))))


SIZED = {
    "by name": lambda own, pair, e: own(pair, e, size=(pair[0].size(0), pair[1].size(0))),
    "by place": lambda own, pair, e: own(pair, e, (pair[0].shape[0], pair[1].shape[0])),
    "view": lambda own, pair, e: own(pair, e).view(pair[1].size(0), -1),
    "reshape": lambda own, pair, e: own(pair, e).reshape(pair[1].shape[0], 2, -1).flatten(1),
    "pair": lambda own, pair, e: own(pair, e).view((pair[1].size(0), -1)),
    "list": lambda own, pair, e: own(pair, e).reshape([pair[1].size(0), -1, 2]).flatten(1),
    "function": lambda own, pair, e: torch.reshape(own(pair, e), (pair[1].shape[0], 2, -1)).flatten(1),
    "all but one": lambda own, pair, e: (h := own(pair, e)).view(*h.shape[:-1], 2, -1).flatten(1),
    "and more": lambda own, pair, e: (h := own(pair, e)).reshape((*h.size()[:1], 2, h.size(-1) // 2)).flatten(1),
    "columns": lambda own, pair, e: (
        (h := torch.stack([own(pair, e)] * 2).sum(0)).view(-1, h.size(1) // 2, 2).flatten(1)
    ),
}


@pytest.mark.parametrize("name", SIZED)
def test_sizes_of_rows_are_those_of_a_chunk(name):
    def forward(self, x, e):
        return self.lin(SIZED[name](self.own, (x["author"], x["paper"]), e[WRITES]))

    check(Net(forward, own=pyg.SAGEConv((4, 6), 4)), graph())


MOVED = {
    "rows": lambda x, e: {"paper": x["paper"].to(x["author"].device)},
    "by name": lambda x, e: {"paper": x["paper"].to(device=x["author"].device)},
    "edges": lambda x, e: {"author": x["author"].relu().to(e[BY].device)},
    "as others": lambda x, e: {"paper": x["paper"].type_as(x["author"])},
    "to others": lambda x, e: {"paper": x["paper"].to(x["author"])},
    "dtype": lambda x, e: {"paper": x["paper"].to(x["author"].device, x["author"].dtype).type(x["author"].dtype)},
}


@pytest.mark.parametrize("name", MOVED)
def test_rows_of_all_types_are_on_one_device_and_of_one_dtype(name):
    check(Net(lambda self, x, e: self.lin(self.conv(x | MOVED[name](x, e), e)["paper"])), graph())


class Factor(pyg.MessagePassing):
    """A convolution to which size is something else."""

    def __init__(self):
        super().__init__(aggr="add")
        self.own = nn.Linear(4, 3)

    def forward(self, x, edge_index, size=1.0):
        return size * self.propagate(edge_index, x=(self.own(x[0]), None), size=(len(x[0]), len(x[1])))

    def message(self, x_j):
        return x_j


class Required(Factor):
    def forward(self, x, edge_index, size):
        return self.propagate(edge_index, x=(self.own(x[0]), None), size=size)


class Optional(Factor):
    def forward(self, x, edge_index, size=None):
        return self.propagate(edge_index, x=(self.own(x[0]), None), size=size)


class Divides(Factor):
    def forward(self, x, edge_index, size=None):
        return super().forward(x, edge_index, 1.0 if size is None else 1.0 / size[1])


NO_COUNTS = {
    "by name": lambda own, pair, e: own(pair, e, size=2.5),
    "by place": lambda own, pair, e: own(pair, e, 0.5),
    "whole": lambda own, pair, e: own(pair, e, size=-2),
}


@pytest.mark.parametrize("name", NO_COUNTS)
def test_a_size_that_is_no_count_is_given(name):
    check(
        Net(lambda self, x, e: NO_COUNTS[name](self.own, (x["author"], x["paper"]), e[WRITES]), own=Factor()), graph()
    )


@pytest.mark.parametrize("kind", [Required, Optional, Divides])
def test_a_size_that_a_convolution_of_ones_own_needs(kind):
    def forward(self, x, e):
        size = () if self.advised else ((x["author"].size(0), x["paper"].size(0)),)
        return self.own((x["author"], x["paper"]), e[WRITES], *size)

    model = Net(forward, own=kind())
    model.advised = False
    with pytest.raises(InputError, match=r"calls own with a size, .* as size=\(x\[0\].size\(0\), x\[1\].size\(0\)\)"):
        hongtu.Trainer(prepare(graph()), hongtu.from_pyg(model))
    model.own, model.advised = Factor(), True
    check(model, graph())


def test_no_rows_of_destinations():
    def forward(self, x, e):
        given = x["paper"] if self.both else None
        size = None if self.both else (x["author"].size(0), x["paper"].size(0))
        return self.lin(self.own((x["author"], given), e[WRITES], size=size))

    model = Net(forward, own=pyg.SAGEConv((4, 6), 4, root_weight=False))
    model.both = False
    with pytest.raises(InputError, match=r"calls own with \(x, None\) and a size; give it the rows of both"):
        hongtu.Trainer(prepare(graph()), hongtu.from_pyg(model))
    expected = called(model, graph())
    model.both = True
    torch.testing.assert_close(called(model, graph()), expected)
    check(model, graph())


@pytest.mark.parametrize(("name", "remedy"), [
    ("dropout_edge", r"drop messages in the convolution: GATConv\(dropout=0.5\)"),
    ("dropout_node", "drop messages in the convolution"),
    ("negative_sampling", "hongtu.LinkLoss draws negatives"),
    ("add_random_edge", "add some once, before hongtu.preprocess_graph"),
])  # fmt: skip
def test_functions_that_draw_edges_are_named(name, remedy):
    def forward(self, x, e):
        edges = getattr(utils, name)(e[CITES])
        return self.lin(self.own(x["paper"], edges[0] if isinstance(edges, tuple) else edges))

    with pytest.raises(InputError, match=rf"calls {name}, which draws edges anew in every epoch; {remedy}"):
        hongtu.Trainer(prepare(graph()), hongtu.from_pyg(Net(forward, own=pyg.SAGEConv(6, 4))))


def within(self, x, e):
    from torch_geometric.utils.dropout import dropout_node as inside

    return self.lin(self.own(x["paper"], inside(e[CITES])[0]))


@pytest.mark.parametrize(("name", "forward"), [
    ("dropout_edge", lambda self, x, e: self.lin(self.own(x["paper"], pyg_itself.utils.dropout_edge(e[CITES])[0]))),
    ("dropout_edge", lambda self, x, e: self.lin(self.own(x["paper"], named(e[CITES], training=self.training)[0]))),
    ("add_random_edge", lambda self, x, e: self.lin(self.own(x["paper"], augmentation.add_random_edge(e[CITES])[0]))),
    ("dropout_node", within),
])  # fmt: skip
def test_functions_that_draw_edges_are_known_by_any_name(name, forward):
    with pytest.raises(InputError, match=f"calls {name}, which draws edges anew in every epoch"):
        hongtu.Trainer(prepare(graph()), hongtu.from_pyg(Net(forward, own=pyg.SAGEConv(6, 4))))


@pytest.mark.parametrize("of_edges", [False, True])
def test_kinds_are_looked_up_as_integers(of_edges):
    data = graph(WRITES, CITES, BY) if of_edges else graph()
    data["paper"].x = torch.arange(40.0).view(20, 2) % 5
    for key in data.edge_types if of_edges else ():
        data[key].edge_attr = torch.arange(data[key].num_edges).view(-1, 1) % 3

    class Looks(Net):
        def forward(self, x_dict, edge_index_dict, edge_attr_dict=None):
            of = edge_attr_dict[CITES][:, 0] if of_edges else x_dict["paper"][:, 1]
            found = self.emb(of.long() if self.long else of)
            edges = (edge_index_dict[CITES], found) if of_edges else (edge_index_dict[CITES],)
            return self.lin(self.own(self.first(x_dict["paper"]) if of_edges else found, *edges))

    own = pyg.GINEConv(nn.Linear(4, 4)) if of_edges else pyg.SAGEConv(4, 4)
    model = Looks(None, emb=nn.Embedding(5, 4), own=own, first=nn.Linear(2, 4))
    model.long = False
    with pytest.raises(InputError, match=r"are floats there; look kinds up as x.long\(\), or edge_attr.long\(\)"):
        hongtu.Trainer(prepare(data), hongtu.from_pyg(model))
    model.long = True
    check(model, data)


def test_reverse_relations_are_made_beforehand():
    def turned(self, x, e):
        return self.lin(self.conv(x | {"author": self.own((x["paper"], x["author"]), e[WRITES].flip(0))}, e)["paper"])

    def reverse(self, x, e):
        edges = e["paper", "rev_writes", "author"]
        return self.lin(self.conv(x | {"author": self.own((x["paper"], x["author"]), edges)}, e)["paper"])

    with pytest.raises(
        InputError, match=r"turns edges round \(flip\); .*ToUndirected\(\)\(data\) gives every relation"
    ):
        hongtu.Trainer(prepare(graph()), hongtu.from_pyg(Net(turned, own=pyg.SAGEConv((6, 4), 8))))
    check(Net(reverse, own=pyg.SAGEConv((6, 4), 8)), ToUndirected()(graph()))


class Wrapper(nn.Module):
    """Of what ``to_hetero`` made, with other names, as scripts have it."""

    def __init__(self, data, forward):
        super().__init__()
        self.model, self.function = pyg.to_hetero(pyg.GraphSAGE((-1, -1), 8, 2, 3), data.metadata()), forward

    def forward(self, x, edge_index):
        return self.function(self, x, edge_index)


WRAPPED = {
    "as it is": lambda self, x, e: self.model(x, e),
    "of one type": lambda self, x, e: self.model(x, e)["paper"].relu(),
    "by type": lambda self, x, e: self.model({kind: rows.tanh() for kind, rows in x.items()}, e),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_a_wrapper_around_to_hetero_need_not_name_dictionaries(name):
    data = graph()
    check(Wrapper(data, WRAPPED[name]), data)


def forward_that(asks):
    def forward(self, x, e):
        h = self.lin(self.conv(x, e)["paper"])
        asks(x["paper"], h)
        return h

    return Net(forward)


def asserts(said):
    assert said


ASKED = {
    "dim": lambda x, h: asserts(x.dim() == 2),
    "columns": lambda x, h: asserts(x.size(1) == 6 and x.shape[-1] == 6),
    "columns of a layer": lambda x, h: asserts(h.shape[1] == 3),
    "columns behind a function": lambda x, h: asserts(h.relu().size(-1) == 3),
    "floating point": lambda x, h: asserts(x.is_floating_point()),
}


@pytest.mark.parametrize("name", ASKED)
def test_a_forward_may_ask_for_dimensions_and_columns(name):
    check(forward_that(ASKED[name]), graph())


@pytest.mark.parametrize(("asks", "message"), [
    (lambda x, h: asserts(len(x) > 0), "asks for len, and it depends on how many vertices or edges there are; in"),
    (lambda x, h: asserts(x.shape == (20, 6)), "asks for shape, and it depends on how many vertices"),
    (lambda x, h: asserts(h.size(0) > 3), "asks for size, and it depends on how many vertices"),
    (lambda x, h: asserts(x.t().shape[1] == 6), "asks for shape, and it depends on how many vertices"),
    (lambda x, h: asserts((x @ x.t()).shape[1] == 20), "asks for shape, and it depends on how many vertices"),
    (lambda x, h: asserts(not x.isnan().any()), "asks for any, and it depends on numbers; in .*what prints or checks"),
    (lambda x, h: asserts(x.dtype == torch.float32), "asks for dtype, and it depends on what the Trainer is given"),
], ids=range(7))  # fmt: skip
def test_what_a_forward_asks_of_a_graph_is_named(asks, message):
    with pytest.raises(InputError, match=message):
        hongtu.Trainer(prepare(graph()), hongtu.from_pyg(forward_that(asks)))

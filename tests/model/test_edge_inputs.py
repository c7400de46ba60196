"""What a forward hands its convolutions of edges is what they get: torch_geometric's numbers, whatever graphs have."""

from __future__ import annotations

import copy

import pytest
import torch
import torch_geometric.nn as pyg
from torch.nn import GELU, BatchNorm1d, Embedding, LayerNorm, Linear, Module, Sequential, Tanh
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.utils import to_torch_csr_tensor

import hongtu
from hongtu.errors import InputError
from tests import problems

N, E, WIDTH = 40, 170, 6


def graph(**beside):
    """Isolated vertices, duplicate edges and self-loops; float64."""
    generator = torch.Generator().manual_seed(3)
    edges = torch.randint(0, N - 5, (2, E), generator=generator)
    edges[:, :12] = edges[:, 12:24]
    edges[1, 30:34] = edges[0, 30:34]
    x = torch.randn(N, WIDTH, generator=generator, dtype=torch.float64).float().double()
    mask = torch.arange(N) % 3 > 0
    return Data(x=x, edge_index=edges, y=torch.arange(N) % 4, train_mask=mask, **beside)


def numbers(*shape, low=0.1):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(5)) + low


def prepare(data, **options):
    return hongtu.preprocess_graph(data=data, artifact=problems.new_path(), partitions=2, chunks=3, **options)


def check(artifact, model, call, data, epochs=2, without=(), **options):
    """Losses of some epochs, and predictions, are those of ``call(model)`` on the whole graph."""
    torch.manual_seed(1)
    theirs = copy.deepcopy(model).double()
    trainer = hongtu.Trainer(
        artifact, hongtu.from_pyg(copy.deepcopy(theirs), without=without), dtype=torch.float64,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1), **options,
    )  # fmt: skip
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = F.cross_entropy(call(theirs)[data.train_mask], data.y[data.train_mask])
        loss.backward()
        optimizer.step()
        record = trainer.train_epoch()
        assert record.loss == pytest.approx(loss.item(), rel=1e-9)
        assert record.bytes == trainer.plan.bytes
    with torch.no_grad():
        torch.testing.assert_close(trainer.predict(), call(theirs.eval()), rtol=1e-9, atol=1e-9)
    hongtu.to_pyg(trainer.model, theirs)
    return trainer


def net(forward, **parts):
    """A module with these parts and this forward."""

    class Net(Module):
        def __init__(self):
            super().__init__()
            for name, part in parts.items():
                setattr(self, name, part)

    Net.forward = forward
    return Net()


ATTRIBUTES = {
    "[E]": numbers(E), "[E, 3]": numbers(E, 3), "codes": torch.arange(E) % 5,
    "codes [E, 1]": torch.arange(E).view(-1, 1) % 5, "flags": torch.arange(E) % 3 == 0,
    "times": torch.arange(E) * 16_777, "float64": numbers(E).double(),
}  # fmt: skip


@pytest.mark.most(10)
@pytest.mark.pairs
@pytest.mark.parametrize("form", ATTRIBUTES)
@pytest.mark.parametrize("kind", [pyg.GCN, pyg.GraphSAGE, pyg.GAT], ids=lambda kind: kind.__name__)
def test_features_of_edges_are_no_weights(kind, form):
    data, model = graph(edge_attr=ATTRIBUTES[form]), kind(WIDTH, 8, 2, 4)
    check(prepare(data), model, lambda m: m(data.x, data.edge_index), data)


def own_weighs(self, x, edge_index, edge_attr):
    return self.b(self.a(x, edge_index, edge_attr).relu(), edge_index, edge_attr)


def weighs_by_name(self, x, edge_index, edge_weight):
    return self.b(self.a(x, edge_index, edge_weight).relu(), edge_weight=edge_weight, edge_index=edge_index)


def of_data(self, data):
    return self.b(self.a(data.x, data.edge_index, data.edge_attr.view(-1)).relu(), data.edge_index)


def weighs_once(self, x, edge_index, edge_attr):
    return self.b(self.a(x, edge_index, 1 / (1 + edge_attr)).relu(), edge_index)


def weighs_first_unweighted(self, x, edge_index, edge_attr):
    return self.b(self.a(x, edge_index).relu(), edge_index, edge_attr / edge_attr.max())


WEIGHED = {
    "gcn": lambda: {"a": pyg.GCNConv(WIDTH, 8), "b": pyg.GCNConv(8, 4)},
    "graph": lambda: {"a": pyg.GraphConv(WIDTH, 8, aggr="max"), "b": pyg.GraphConv(8, 4)},
    "hops": lambda: {"a": pyg.SGConv(WIDTH, 4, K=2), "b": pyg.APPNP(2, 0.1)},
    "mixed": lambda: {"a": pyg.GraphConv(WIDTH, 8), "b": pyg.GCNConv(8, 4)},
    "wrapped": lambda: {"a": pyg.LEConv(WIDTH, 8), "b": pyg.GCNConv(8, 4)},
}
FORWARDS = [own_weighs, weighs_by_name, of_data, weighs_once, weighs_first_unweighted]


@pytest.mark.most(12)
@pytest.mark.pairs
@pytest.mark.parametrize("forward", FORWARDS)
@pytest.mark.parametrize("parts", WEIGHED)
def test_features_of_edges_weigh_where_the_forward_hands_them_on_as_weights(forward, parts):
    data, model = graph(edge_attr=numbers(E)), net(forward, **WEIGHED[parts]())
    whole = data.clone()
    whole.edge_attr = data.edge_attr.double()

    def call(m):
        return m(whole) if forward is of_data else m(data.x, data.edge_index, whole.edge_attr)

    budget = "90%" if parts in ("gcn", "mixed") else None
    trainer = check(prepare(data), model, call, data, device_memory=budget)
    again = hongtu.Trainer(trainer.artifact, [hongtu.nn.GCNConv(WIDTH, 4)])
    assert again.artifact.topology.edge_weight is None, "another model gets what the directory has"


@pytest.mark.long
def test_layers_of_one_graph_with_and_without_weights():
    data = graph(edge_weight=numbers(E))
    weight = data.edge_weight.double()
    for strategy in ("full", "paper", "none"):
        for parts in ("gcn", "mixed", "hops"):
            model = net(
                lambda s, x, edge_index, edge_weight: s.b(s.a(x, edge_index), edge_index, edge_weight),
                **WEIGHED[parts](),
            )
            check(prepare(data), model, lambda m: m(data.x, data.edge_index, weight), data, strategy=strategy)
    model = net(lambda s, x, edge_index: s.a(x, edge_index), a=pyg.GCNConv(WIDTH, 4))
    check(prepare(data), model, lambda m: m(data.x, data.edge_index), data)


def features(self, x, edge_index, edge_attr):
    return self.b(self.a(x, edge_index, edge_attr).relu(), edge_index)


def encoded(self, x, edge_index, edge_attr):
    return self.a(x, edge_index, self.lin(edge_attr).tanh() * self.scale)


READ = {
    "gat": lambda: (features, {"a": pyg.GATConv(WIDTH, 8, edge_dim=1), "b": pyg.SAGEConv(8, 4)}),
    "gatv2": lambda: (features, {"a": pyg.GATv2Conv(WIDTH, 8, edge_dim=1), "b": pyg.GCNConv(8, 4)}),
    "transformer": lambda: (features, {"a": pyg.TransformerConv(WIDTH, 8, edge_dim=1), "b": pyg.SAGEConv(8, 4)}),
    "gen": lambda: (features, {"a": pyg.GENConv(WIDTH, 8, edge_dim=1, norm="layer"), "b": pyg.SAGEConv(8, 4)}),
    "nn": lambda: (features, {"a": pyg.NNConv(WIDTH, 4, Linear(1, 24), aggr="mean"), "b": pyg.SAGEConv(4, 4)}),
    "gine": lambda: (
        encoded,
        {"a": pyg.GINEConv(Linear(WIDTH, 4)), "lin": Linear(1, WIDTH), "scale": torch.nn.Parameter(torch.ones(WIDTH))},
    ),
}  # fmt: skip


@pytest.mark.pairs
@pytest.mark.parametrize("kind", READ)
@pytest.mark.parametrize("old", [False, True])
def test_one_column_of_features_is_features(kind, old):
    """Also of an artifact of an earlier version, which has it as weights."""
    forward, parts = READ[kind]()
    attributes = numbers(E, 1)
    data = graph(edge_attr=attributes)
    artifact = prepare(data)
    if old:
        artifact = prepare(graph(edge_weight=attributes.view(-1)))
        del artifact.manifest["edge_forms"]
    check(artifact, net(forward, **parts), lambda m: m(data.x, data.edge_index, attributes.double()), data)


def by_code(self, x, edge_index, edge_attr):
    return self.a(x, edge_index, self.lin(edge_attr.view(edge_attr.size(0), -1).squeeze(1)))


def as_a_column(self, x, edge_index, edge_attr):
    return self.a(x, edge_index, self.lin(edge_attr.unsqueeze(1).to(x.dtype)))


def as_it_is(self, x, edge_index, edge_attr):
    return self.a(x, edge_index, self.lin(edge_attr))


def of_types(self, x, edge_index, edge_type):
    return self.a(x, edge_index, self.lin(edge_type))


@pytest.mark.parametrize(
    ("form", "forward", "make"),
    [
        ("codes", as_it_is, lambda: Embedding(5, WIDTH)), ("codes [E, 1]", by_code, lambda: Embedding(5, WIDTH)),
        ("[E]", as_a_column, lambda: Sequential(Linear(1, 8), GELU(), Linear(8, WIDTH))),
        ("codes", as_a_column, lambda: Linear(1, WIDTH)), ("flags", as_a_column, lambda: Linear(1, WIDTH)),
        ("[E, 3]", as_it_is, lambda: Linear(3, WIDTH)),
    ],
)  # fmt: skip
def test_encoders_get_edge_features_in_the_form_of_the_data(form, forward, make):
    data = graph(edge_attr=ATTRIBUTES[form])
    given = data.edge_attr.double() if data.edge_attr.is_floating_point() else data.edge_attr
    model = net(forward, a=pyg.GINEConv(Linear(WIDTH, 4)), lin=make())
    check(prepare(data), model, lambda m: m(data.x, data.edge_index, given), data)


def test_types_are_features_and_features_are_types():
    data = graph(edge_type=ATTRIBUTES["codes"])
    model = net(of_types, a=pyg.GINEConv(Linear(WIDTH, 4)), lin=Embedding(5, WIDTH))
    check(prepare(data), model, lambda m: m(data.x, data.edge_index, data.edge_type), data)
    data = graph(edge_attr=ATTRIBUTES["codes"])
    model = net(features, a=pyg.RGCNConv(WIDTH, 8, 5), b=pyg.SAGEConv(8, 4))
    check(prepare(data), model, lambda m: m(data.x, data.edge_index, data.edge_attr), data)


def test_weights_and_features_beside_each_other():
    data = graph(edge_weight=numbers(E), edge_attr=numbers(E, 1, low=-0.5))
    given = data.edge_weight.double(), data.edge_attr.double()

    def forward(self, x, edge_index, edge_attr, edge_weight):
        x = self.a(x, edge_index, edge_attr).relu()
        return self.c(self.b(x, edge_index, edge_weight), edge_index)

    parts = {"a": pyg.GATConv(WIDTH, 8, edge_dim=1), "b": pyg.GCNConv(8, 8), "c": pyg.GCNConv(8, 4)}
    check(prepare(data), net(forward, **parts), lambda m: m(data.x, data.edge_index, given[1], given[0]), data)

    def swapped(self, x, edge_index, edge_weight):
        return self.a(x, edge_index, edge_weight)

    model = net(swapped, a=pyg.GATConv(WIDTH, 4, edge_dim=1))
    check(prepare(data), model, lambda m: m(data.x, data.edge_index, given[0]), data)


def of_matrix(self, x, adj_t):
    return self.b(self.a(x, adj_t).relu(), adj_t)


def of_matrix_or_weights(self, x, adj_t, edge_weight=None):
    return self.b(self.a(x, adj_t, edge_weight).relu(), adj_t, edge_weight)


def of_edges_or_matrix(self, x, edge_index):
    return self.b(self.a(x, edge_index).relu(), edge_index)


def of_matrix_of_data(self, data):
    return self.b(self.a(data.x, data.adj_t).relu(), data.adj_t)


@pytest.mark.most(10)
@pytest.mark.pairs
@pytest.mark.parametrize("forward", [of_matrix, of_matrix_or_weights, of_edges_or_matrix, of_matrix_of_data])
@pytest.mark.parametrize("parts", ["gcn", "sum", "graph", "hops", "sage", "gin", "without", "after", "powers"])
def test_the_values_of_a_matrix_come_along(forward, parts):
    made = {
        "sum": lambda: {k: pyg.GCNConv(w, o, normalize=False) for k, w, o in (("a", WIDTH, 8), ("b", 8, 4))},
        "graph": lambda: {"a": pyg.GraphConv(WIDTH, 8, aggr="mean"), "b": pyg.GraphConv(8, 4)},
        "sage": lambda: {"a": pyg.SAGEConv(WIDTH, 8), "b": pyg.GCNConv(8, 4)},
        "gin": lambda: {"a": pyg.GINConv(Linear(WIDTH, 8)), "b": pyg.SAGEConv(8, 4, aggr="sum")},
        "without": lambda: {"a": pyg.GCNConv(WIDTH, 8, improved=True), "b": pyg.GCNConv(8, 4, add_self_loops=False)},
        "powers": lambda: {"a": pyg.MixHopConv(WIDTH, 4, [1, 0]), "b": pyg.MixHopConv(8, 4, [2], add_self_loops=False)},
        "after": lambda: {"a": pyg.GraphConv(WIDTH, 8), "b": pyg.SGConv(8, 4, K=2)},
    }.get(parts, WEIGHED.get(parts))
    data, weight = graph(), numbers(E)
    unique = torch.unique(data.edge_index[0] * N + data.edge_index[1])  # a matrix of torch adds equal entries up
    edges = torch.stack([unique // N, unique % N])
    assert (edges[0] == edges[1]).any()  # to which some of the convolutions add I, and others do not
    weight = weight[: edges.shape[1]] if forward is not of_matrix else torch.ones(edges.shape[1])
    matrix = to_torch_csr_tensor(edges.flip(0), weight, size=(N, N))
    data = Data(x=data.x, adj_t=matrix, y=data.y, train_mask=data.train_mask)
    whole = data.clone()
    whole.adj_t = to_torch_csr_tensor(edges.flip(0), weight.double(), size=(N, N))
    if parts in ("gin", "sage") and forward is of_matrix_or_weights:
        forward = of_matrix  # these have no weights
    call = (lambda m: m(whole)) if forward is of_matrix_of_data else (lambda m: m(data.x, whole.adj_t))
    check(prepare(data), net(forward, **made()), call, data)


@pytest.mark.parametrize("improved", [False, True])
@pytest.mark.parametrize("strategy", ["none", "p2p", "paper"])
def test_self_loops_of_a_matrix_are_added_to_in_the_form_of_the_paper(strategy, improved):
    data = graph()
    unique = torch.unique(data.edge_index[0] * N + data.edge_index[1])
    edges = torch.stack([unique // N, unique % N])
    assert (edges[0] == edges[1]).any()
    weight = numbers(edges.shape[1])
    given = Data(x=data.x, y=data.y, train_mask=data.train_mask)
    given.adj_t = to_torch_csr_tensor(edges.flip(0), weight, size=(N, N))
    whole = to_torch_csr_tensor(edges.flip(0), weight.double(), size=(N, N))
    model = net(of_matrix, a=pyg.GCNConv(WIDTH, 8, improved=improved), b=pyg.GCNConv(8, 4, improved=improved))
    check(prepare(given), model, lambda m: m(data.x, whole), data, strategy=strategy)


def of_weighed_edges(self, x, edge_index, edge_weight):
    return self.b(self.a(x, edge_index, edge_weight).relu(), edge_index, edge_weight)


def of_weighed_edges_of_data(self, data):
    return of_weighed_edges(self, data.x, data.edge_index, data.edge_weight)


@pytest.mark.parametrize("forward", [of_weighed_edges, of_weighed_edges_of_data])
@pytest.mark.parametrize("parts", ["gcn", "hops"])
def test_self_loops_of_a_matrix_that_is_taken_as_edges_and_weights(forward, parts):
    """As of edges: a self-loop takes the place of the one that is added."""
    data = graph()
    unique = torch.unique(data.edge_index[0] * N + data.edge_index[1])
    edges = torch.stack([unique // N, unique % N])
    assert (edges[0] == edges[1]).any()
    weight = numbers(edges.shape[1])
    matrix = to_torch_csr_tensor(edges.flip(0), weight, size=(N, N))
    given = Data(x=data.x, adj_t=matrix, y=data.y, train_mask=data.train_mask)
    whole = Data(x=data.x, edge_index=edges, edge_weight=weight.double())

    def call(m):
        return m(whole) if forward is of_weighed_edges_of_data else m(whole.x, edges, whole.edge_weight)

    check(prepare(given), net(forward, **WEIGHED[parts]()), call, data)


def may_weigh(self, x, edge_index, edge_weight=None):
    return self.b(self.a(x, edge_index, edge_weight), edge_index)


@pytest.mark.long
def test_what_is_optional_is_given_where_the_graph_has_it_by_that_name(capfd):
    for beside, given in (({"edge_weight": numbers(E)}, True), ({"edge_attr": numbers(E)}, False), ({}, False)):
        data = graph(**beside)
        weight = data.edge_weight.double() if given else None
        for model in (pyg.GCN(WIDTH, 8, 2, 4), net(may_weigh, **WEIGHED["gcn"]())):
            check(prepare(data), model, lambda m, d=data, w=weight: m(d.x, d.edge_index, w), data)
            check(prepare(data), model, lambda m, d=data: m(d.x, d.edge_index), data, without=["edge_weight"])
        said = capfd.readouterr().err
        assert (
            "its edge_weight is the forward's optional edge_weight, as in model(x, edge_index, edge_weight)" in said
        ) is given
    data = graph(edge_attr=numbers(E, 2))
    model = pyg.GAT(WIDTH, 8, 2, 4, edge_dim=2)
    check(prepare(data), model, lambda m: m(data.x, data.edge_index, edge_attr=data.edge_attr.double()), data)
    assert "its edge_attr is the forward's optional edge_attr, as in model(x, edge_index, edge_attr)" in (
        capfd.readouterr().err
    )
    model = net(
        lambda s, x, edge_index, edge_attr=None: s.a(x, edge_index, edge_attr), a=pyg.GENConv(WIDTH, WIDTH, norm=None)
    )
    for given in (None, numbers(E, WIDTH)):
        data = graph(edge_attr=given)
        value = None if given is None else given.double()
        check(prepare(data), model, lambda m, d=data, v=value: m(d.x, d.edge_index, v), data)


@pytest.mark.long
def test_one_convolution_gets_what_is_optional_or_goes_without(capfd):
    convolutions = (
        ("edge_weight", 1, pyg.GCNConv(WIDTH, 4)),
        ("edge_weight", 1, pyg.GraphConv(WIDTH, 4)),
        ("edge_weight", 1, pyg.LEConv(WIDTH, 4)),
        ("edge_attr", 2, pyg.GATConv(WIDTH, 4, edge_dim=2)),
        ("edge_attr", 4, pyg.GENConv(WIDTH, 4, norm=None)),
    )
    for name, columns, conv in convolutions:
        data = graph(**{name: numbers(E, columns) if name == "edge_attr" else numbers(E)})
        artifact, given = prepare(data), {name: data[name].double()}
        check(artifact, conv, lambda m, d=data, k=given: m(d.x, d.edge_index, **k), data)
        said = f'hongtu.from_pyg(model, without=["{name}"]) is model(x, edge_index)' in capfd.readouterr().err
        assert said is (getattr(conv, "edge_dim", None) is None)  # who says edge_dim says that there are some
        if getattr(conv, "edge_dim", None) is None:
            check(artifact, conv, lambda m, d=data: m(d.x, d.edge_index), data, without=name)
    with pytest.raises(InputError, match="has an edge_dim and is called without edge_attr"):
        hongtu.from_pyg(pyg.GATConv(WIDTH, 4, edge_dim=2), without=["edge_attr"])
    for model in (net(lambda s, x, edge_index, edge_weight: x, a=pyg.GCNConv(WIDTH, 4)), pyg.SAGEConv(WIDTH, 4)):
        with pytest.raises(InputError, match=r"'edge_weight' is no optional argument of [A-Za-z]*.forward[(]x"):
            hongtu.from_pyg(model, without=["edge_weight"])


def depends(self, x, edge_index, edge_weight=None):
    if edge_weight is None:
        x = x.relu()
    return self.a(x, edge_index, edge_weight)


def fills_in(self, x, edge_index, edge_weight=None):
    if edge_weight is None:
        raise ValueError("no weights")
    return self.a(x, edge_index, edge_weight)


def test_a_forward_that_does_something_else_without_weights(capfd):
    data = graph(edge_weight=numbers(E))
    model = net(depends, a=pyg.GCNConv(WIDTH, 4))
    check(prepare(data), model, lambda m: m(data.x, data.edge_index), data)
    assert "its edge_weight is not used: the forward calls" in capfd.readouterr().err
    model, weight = net(fills_in, a=pyg.GCNConv(WIDTH, 4)), data.edge_weight.double()
    check(prepare(data), model, lambda m: m(data.x, data.edge_index, weight), data)


def learned(self, x, edge_index, edge_attr):
    return self.a(x, edge_index, self.lin(edge_attr).sigmoid())


class Ends(pyg.SAGEConv):
    def forward(self, x, edge_index, ends=None):
        return super().forward(x, edge_index)


def unknown(self, x, edge_index, edge_attr):
    return self.a(x, edge_index, ends=edge_attr)


def of_several(self, x, edge_index, edge_attr, edge_weight):
    return self.a(x, edge_index, torch.cat([edge_attr, edge_weight.view(-1, 1)], dim=1))


def sum_of_two(self, x, edge_index, edge_attr):
    return self.a(x, edge_index, self.lin(edge_attr[:, :1]) + self.lin(edge_attr[:, 1:]))


def of_types_and_features(self, x, edge_index, edge_attr, edge_type):
    return self.a(x, edge_index, edge_attr + self.kinds(edge_type))


def mixed(self, x, edge_index, edge_attr):
    return self.a(x, edge_index, edge_attr / edge_attr.max())


def two_kinds(self, x, edge_index, edge_attr):
    return self.b(self.a(x, edge_index, edge_attr[:, 0]), edge_index, edge_attr[:, 1])


@pytest.mark.parametrize(
    ("forward", "parts", "message"),
    [
        (own_weighs, WEIGHED["gcn"], r"edge_attr on as edge_weight, \(170, 2\), .*hand one column on, as edge_attr"),
        (learned, lambda: {"a": pyg.GCNConv(WIDTH, 4), "lin": Linear(2, 1)}, "takes edge_weight made with parameters"),
        (unknown, lambda: {"a": Ends(WIDTH, 4)}, "with edge_attr as its ends, which no layer takes of edges"),
        (two_kinds, WEIGHED["gcn"], r"layers\[1\] \(GCNConv\): is called with another edge_weight than layers\[0\]"),
        (of_several, lambda: {"a": pyg.GATConv(WIDTH, 4, edge_dim=3)}, "cat with several things .* data.edge_attr = "),
        (sum_of_two, lambda: {"a": pyg.GATConv(WIDTH, 4, edge_dim=3), "lin": Linear(1, 3)}, "add .* of one module"),
        (
            of_types_and_features,
            lambda: {"a": pyg.GATConv(WIDTH, 4, edge_dim=2), "kinds": torch.nn.Embedding(3, 2)},
            "add with several things .* of one module, .*, such as types, in columns of data.edge_attr",
        ),
        (mixed, lambda: {"a": pyg.GATConv(WIDTH, 4, edge_dim=2)}, "mixes the rows of its input"),
        (features, lambda: {"a": pyg.RGCNConv(WIDTH, 8, 5), "b": pyg.SAGEConv(8, 4)}, "as edge_type"),
    ],
)  # fmt: skip
def test_what_cannot_be_given_is_refused(forward, parts, message):
    with pytest.raises(InputError, match=message):
        hongtu.Trainer(prepare(graph(edge_attr=numbers(E, 2))), hongtu.from_pyg(net(forward, **parts())))


def test_a_graph_without_features_is_refused_by_the_name_of_the_field():
    for conv in (pyg.GINEConv(Linear(WIDTH, 8)), pyg.NNConv(WIDTH, 8, Linear(1, 48)), pyg.GMMConv(WIDTH, 8, 1, 2)):
        for forward in (features, lambda s, x, edge_index: s.b(s.a(x, edge_index).relu(), edge_index)):
            model = net(forward, a=conv, b=pyg.SAGEConv(8, 4))
            with pytest.raises(InputError, match=r"edge_attr.* (as data.edge_attr|give the Data an edge_attr)"):
                hongtu.Trainer(prepare(graph()), hongtu.from_pyg(model))
    message = r"hands edge_attr on as edge_attr, and .* has no edge_features; give the Data an edge_attr"
    model = net(features, a=pyg.GATConv(WIDTH, 8, edge_dim=1), b=pyg.SAGEConv(8, 4))
    with pytest.raises(InputError, match=message):
        hongtu.Trainer(prepare(graph()), hongtu.from_pyg(model))
    model = net(
        encoded,
        a=pyg.GINEConv(Linear(WIDTH, 4)),
        lin=Sequential(Linear(1, WIDTH), Tanh()),
        scale=torch.nn.Parameter(torch.ones(1)),
    )
    with pytest.raises(InputError, match=message):
        hongtu.Trainer(prepare(graph()), hongtu.from_pyg(model))


def norming(norm, out):
    return Sequential(Linear(3, 8), norm(8), Tanh(), Linear(8, out))


NORMED = {  # a convolution of edge features [E, 3], which a network with a normalisation sees
    "encoder": lambda norm: net(as_it_is, a=pyg.GATConv(WIDTH, 4, edge_dim=5), lin=norming(norm, 5)),
    "NNConv": lambda norm: net(as_features, a=pyg.NNConv(WIDTH, 4, norming(norm, WIDTH * 4))),
    "PyGLayer": lambda norm: net(as_features, a=pyg.NNConv(WIDTH, 4, norming(norm, WIDTH * 4), aggr="max")),
}


def as_features(self, x, edge_index, edge_attr):
    return self.a(x, edge_index, edge_attr)


@pytest.mark.parametrize("name", NORMED)
def test_statistics_of_edges_are_refused_and_layer_norm_is_taken(name):
    data = graph(edge_attr=ATTRIBUTES["[E, 3]"])
    with pytest.raises(InputError, match=r"BatchNorm1d inside .*, which is another model, or normalise edge_attr"):
        hongtu.Trainer(prepare(data), hongtu.from_pyg(NORMED[name](BatchNorm1d)))
    model = NORMED[name](LayerNorm)
    check(prepare(data), model, lambda m: m(data.x, data.edge_index, data.edge_attr.double()), data)


HOPS = {
    "GatedGraphConv": lambda: pyg.GatedGraphConv(WIDTH, 2), "ARMAConv": lambda: pyg.ARMAConv(WIDTH, 6, 2, 2),
    "TAGConv": lambda: pyg.TAGConv(WIDTH, 6, 2), "ChebConv": lambda: pyg.ChebConv(WIDTH, 6, 3),
    "SSGConv": lambda: pyg.SSGConv(WIDTH, 6, 0.3, 2), "MixHopConv": lambda: pyg.MixHopConv(WIDTH, 2, [0, 1, 2]),
    "SGConv": lambda: pyg.SGConv(WIDTH, 6, 2), "APPNP": lambda: pyg.APPNP(2, 0.2),
    "GCNConv": lambda: pyg.GCNConv(WIDTH, 6), "GraphConv": lambda: pyg.GraphConv(WIDTH, 6),
    "LEConv": lambda: pyg.LEConv(WIDTH, 6), "GCN2Conv": lambda: pyg.GCN2Conv(WIDTH, 0.3),
}  # fmt: skip


@pytest.mark.parametrize("first", HOPS)
def test_layers_of_several_hops_take_the_weights_in_each(first):
    def forward(self, x, edge_index, edge_weight=None):
        beside = (x,) if first == "GCN2Conv" else ()
        return self.b(self.a(x, *beside, edge_index, edge_weight), edge_index)

    torch.manual_seed(2)
    data, model = graph(edge_weight=numbers(E)), net(forward, a=HOPS[first](), b=pyg.GraphConv(6, 4))
    weight = data.edge_weight.double()
    check(prepare(data), model, lambda m: m(data.x, data.edge_index, weight), data)


class Encodes(pyg.MessagePassing):
    """Its own encoder makes rows of edge_attr: in ``forward``, or for each message."""

    def __init__(self, encoder, inside, **options):
        super().__init__(**options)
        self.lin, self.encoder, self.inside = Linear(WIDTH, 8), encoder, inside

    def forward(self, x, edge_index, edge_attr):
        return self.propagate(edge_index, x=self.lin(x), e=edge_attr if self.inside else self.encoder(edge_attr))

    def message(self, x_j, e):
        return (x_j + (self.encoder(e) if self.inside else e)).relu()


class Bonds(Module):
    """As OGB's BondEncoder: an Embedding for each column."""

    def __init__(self):
        super().__init__()
        self.columns = torch.nn.ModuleList(Embedding(kinds, 8) for kinds in (5, 6, 2))

    def forward(self, edge_attr):
        return sum(embedding(edge_attr[:, k]) for k, embedding in enumerate(self.columns))


class Encoded(Module):
    """A model that looks kinds of edges up before a convolution, or in it."""

    def __init__(self, encoder, inside):
        super().__init__()
        self.encoder = encoder if inside is None else torch.nn.Identity()
        self.lin = Linear(WIDTH, 8) if inside is None else torch.nn.Identity()
        self.first = pyg.GINEConv(Linear(8, 8)) if inside is None else Encodes(encoder, inside)
        self.last = pyg.SAGEConv(8, 4)

    def forward(self, x, edge_index, edge_attr):
        return self.last(self.first(self.lin(x), edge_index, self.encoder(edge_attr)).relu(), edge_index)


def kinds(*counts, least=0):
    generator = torch.Generator().manual_seed(6)
    found = torch.stack([torch.randint(least, count, (E,), generator=generator) for count in counts], dim=1)
    return found if len(counts) > 1 else found[:, 0]


ENCODERS = {  # and edges that they take
    "Embedding": (lambda: Embedding(5, 8), lambda: kinds(5)),
    "of a column": (lambda: Sequential(torch.nn.Flatten(0), Embedding(5, 8)), lambda: kinds(5)[:, None]),
    "bonds": (Bonds, lambda: kinds(5, 6, 2)),
    "Linear": (lambda: Sequential(Linear(3, 8), Tanh()), lambda: numbers(E, 3)),
    "of one number": (lambda: Sequential(torch.nn.Unflatten(0, (-1, 1)), Linear(1, 8)), lambda: numbers(E)),
}
INSIDE = {"before": None, "in forward": False, "in message": True}


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_of_edges_in_and_before_convolutions(name, inside):
    make, edges = ENCODERS[name]
    data = graph(edge_attr=edges())
    attr = data.edge_attr.double() if data.edge_attr.is_floating_point() else data.edge_attr
    check(prepare(data), Encoded(make(), INSIDE[inside]), lambda model: model(data.x, data.edge_index, attr), data)


BEYOND = {
    "above": (
        lambda: Embedding(5, 8),
        lambda: kinds(7),
        "kinds from 0 to 6 in an Embedding of 5 rows, .* make it of 7",
    ),
    "below": (
        lambda: Embedding(5, 8),
        lambda: kinds(5, least=-1),
        "kinds from -1 to 4 .*; number them from 0, as kinds -",
    ),
    "a column": (Bonds, lambda: kinds(5, 9, 2), "kinds from 0 to 8 in an Embedding of 6 rows, .* make it of 9"),
}


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("name", BEYOND)
def test_kinds_of_edges_beyond_an_embedding_are_refused_by_the_trainer(name, inside):
    make, edges, message = BEYOND[name]
    with pytest.raises(InputError, match=message):
        hongtu.Trainer(prepare(graph(edge_attr=edges())), hongtu.from_pyg(Encoded(make(), INSIDE[inside])))


@pytest.mark.parametrize(("encoder", "edges", "message"), [
    (lambda: Embedding(5, 8), lambda: numbers(E), r"kinds are integers, as edge_attr.long\(\); or make it take"),
    (lambda: Linear(3, 8), lambda: kinds(5, 6, 2), r"integers become floats by edge_attr.float\(\); or make it take"),
])  # fmt: skip
def test_edge_features_of_another_kind_of_numbers(encoder, edges, message):
    with pytest.raises(InputError, match=message):
        hongtu.Trainer(prepare(graph(edge_attr=edges())), hongtu.from_pyg(Encoded(encoder(), False)))

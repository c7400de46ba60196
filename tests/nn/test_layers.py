"""Built-in layers and PyGLayer against torch_geometric, on whole graphs and cut into blocks."""

import copy

import numpy as np
import pytest
import torch

from hongtu.errors import InputError
from hongtu.nn import CommNetConv, GATConv, GCNConv, GGCNConv, GINConv, Layer, PyGLayer, SAGEConv
from hongtu.nn.block import Rows
from hongtu.nn.context import RowContext
from hongtu.nn.layer import bind
from hongtu.nn.layers.normalized import degree_factors
from tests.graphs import Graph, awkward_graphs, hub, loops, make_blocks, weighted
from tests.layer_oracle import IN, OUT, check, features, gradients, run

pyg = pytest.importorskip("torch_geometric.nn")


@pytest.fixture(params=awkward_graphs(), ids=str)
def graph(request):
    return request.param


class CommNetOracle(torch.nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.lin_self = torch.nn.Linear(in_channels, out_channels, bias=False)
        self.lin_neighbour = torch.nn.Linear(in_channels, out_channels, bias=False)
        self.mean = pyg.SimpleConv(aggr="mean")

    def forward(self, x, edge_index):
        return self.lin_self(x) + self.lin_neighbour(self.mean(x, edge_index))


def mlp():
    return torch.nn.Sequential(torch.nn.Linear(IN, 6), torch.nn.ReLU(), torch.nn.Linear(6, OUT))


# name -> (ours, torch_geometric's)
LAYERS = {
    "gcn": lambda: (GCNConv(IN, OUT), pyg.GCNConv(IN, OUT)),
    "gcn_no_bias": lambda: (GCNConv(IN, OUT, bias=False), pyg.GCNConv(IN, OUT, bias=False)),
    "gcn_no_loops": lambda: (GCNConv(IN, OUT, add_self_loops=False), pyg.GCNConv(IN, OUT, add_self_loops=False)),
    "gcn_plain": lambda: (GCNConv(IN, OUT, normalize=False), pyg.GCNConv(IN, OUT, normalize=False)),
    "gcn_improved": lambda: (GCNConv(IN, OUT, improved=True), pyg.GCNConv(IN, OUT, improved=True)),
    "sage": lambda: (SAGEConv(IN, OUT), pyg.SAGEConv(IN, OUT)),
    "sage_sum": lambda: (SAGEConv(IN, OUT, "sum", normalize=True), pyg.SAGEConv(IN, OUT, "sum", normalize=True)),
    "sage_no_root": lambda: (
        SAGEConv(IN, OUT, root_weight=False, bias=False),
        pyg.SAGEConv(IN, OUT, root_weight=False, bias=False),
    ),
    "gin": lambda: (GINConv(mlp()), pyg.GINConv(mlp())),
    "gin_linear": lambda: (GINConv(torch.nn.Linear(IN, OUT)), pyg.GINConv(torch.nn.Linear(IN, OUT))),
    "gin_eps": lambda: (GINConv(mlp(), eps=0.3, train_eps=True), pyg.GINConv(mlp(), eps=0.3, train_eps=True)),
    "commnet": lambda: (CommNetConv(IN, OUT), CommNetOracle(IN, OUT)),
    "gat": lambda: (GATConv(IN, OUT), pyg.GATConv(IN, OUT)),
    "gat_heads": lambda: (GATConv(IN, OUT, 3, negative_slope=0.1), pyg.GATConv(IN, OUT, 3, negative_slope=0.1)),
    "gat_mean": lambda: (GATConv(IN, OUT, 4, concat=False), pyg.GATConv(IN, OUT, 4, concat=False)),
    "gat_no_loops": lambda: (
        GATConv(IN, OUT, 2, add_self_loops=False, bias=False),
        pyg.GATConv(IN, OUT, 2, add_self_loops=False, bias=False),
    ),
    "ggcn": lambda: (GGCNConv(IN, OUT), pyg.ResGatedGraphConv(IN, OUT)),
    "ggcn_no_root": lambda: (
        GGCNConv(IN, OUT, root_weight=False, bias=False),
        pyg.ResGatedGraphConv(IN, OUT, root_weight=False, bias=False),
    ),
}


def pair(name, seed=0):
    """Our layer and torch_geometric's with the same float64 parameters, all random (biases too)."""
    torch.manual_seed(seed)
    ours, theirs = (module.double() for module in LAYERS[name]())
    for parameter in ours.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    theirs.load_state_dict(ours.state_dict())
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def oracle(name, theirs, graph, h):
    if not name.startswith("gcn"):
        return theirs(h, graph.edge_index)
    weight = graph.edge_weight()
    if name == "gcn_improved" and weight is None:  # torch_geometric adds I, not the documented 2 I, without weights
        weight = torch.ones(graph.edges.shape[1], dtype=torch.float64)
    return theirs(h, graph.edge_index, weight)


@pytest.mark.pairs
@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("name", LAYERS)
def test_equals_torch_geometric(name, graph, parts):
    ours, theirs = pair(name)
    h = features(graph)
    expected = oracle(name, theirs, graph, h)
    for transform_first in {False, ours.can_transform_first}:
        ours.transform_first = transform_first
        check(ours, theirs, run(ours, graph, h, parts), expected, h)


@pytest.mark.parametrize("name", LAYERS)
def test_parameters_and_initialisation_are_torch_geometrics(name):
    torch.manual_seed(0)
    ours, theirs = LAYERS[name]()
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for key, value in theirs.state_dict().items():
        assert ours.state_dict()[key].shape == value.shape
    if name.startswith("gin"):  # its parameters are the caller's
        return
    samples = [{}, {}]
    for _ in range(60):
        for sample, module in zip(samples, LAYERS[name](), strict=True):
            for key, value in module.state_dict().items():
                sample.setdefault(key, []).append(value.flatten())
    for key in samples[0]:
        found, expected = (torch.cat(sample[key]) for sample in samples)
        assert abs(found.max() - expected.max()) <= 0.06 * expected.abs().max(), key
        assert abs(found.std() - expected.std()) <= 0.12 * expected.std(), key


def test_declarations():
    for name in LAYERS:
        layer = LAYERS[name]()[0]
        assert layer.linear_aggregate == (not name.startswith(("gat", "ggcn")))
        assert layer.can_transform_first == name.startswith(("gcn", "sage", "commnet", "gin"))
        assert layer.weighted == name.startswith("gcn")
        assert layer.uses_statistics == (name.startswith("gcn") and name != "gcn_plain")
        assert not layer.plain
    assert LAYERS["sage"]()[0].reduce == "mean" and LAYERS["sage_sum"]()[0].reduce == "sum"


def test_what_is_z_is_stored_once():
    graph = loops()
    context = RowContext(rows=make_blocks(graph)[0].rows)
    for name in ("gcn", "sage", "gin", "commnet", "gat"):
        layer = pair(name)[0]
        bind(layer, context)
        z, s = layer.transform(features(graph))
        assert (s[0] if isinstance(s, tuple) else s) is z


@pytest.mark.parametrize("name", ["gcn", "sage", "gin", "commnet", "gat", "ggcn"])
def test_activation_and_input_dropout_add_no_parameters(name):
    makers = {
        "gcn": lambda **k: GCNConv(IN, OUT, **k),
        "sage": lambda **k: SAGEConv(IN, OUT, **k),
        "gin": lambda **k: GINConv(mlp(), **k),
        "commnet": lambda **k: CommNetConv(IN, OUT, **k),
        "gat": lambda **k: GATConv(IN, OUT, **k),
        "ggcn": lambda **k: GGCNConv(IN, OUT, **k),
    }
    graph = weighted()
    h = features(graph)
    plain = makers[name]().double()
    for activation, function in (("relu", torch.relu), ("elu", torch.nn.functional.elu), (torch.tanh, torch.tanh)):
        layer = makers[name](activation=activation, input_dropout=0.4).double()
        layer.load_state_dict(plain.state_dict())
        torch.testing.assert_close(run(layer.eval(), graph, h), function(run(plain, graph, h)))
        context = RowContext(rows=make_blocks(graph)[0].rows)
        bind(layer.train(), context)
        dropped = layer.input_dropout(h)
        torch.testing.assert_close(run(layer, graph, h), function(run(plain, graph, dropped)))
        assert not torch.equal(dropped, h)


@pytest.mark.parametrize("name", ["gcn", "sage", "gin", "commnet", "gat", "ggcn"])
def test_dropout_does_not_depend_on_the_blocks(name):
    graph = hub()
    layer = pair(name)[0]
    layer.input_dropout.p = 0.5
    if name == "gat":
        layer.attention_dropout.p = 0.5
    h = features(graph)
    outputs = [run(layer, graph, h, parts, RowContext(seed=3, epoch=2)) for parts in (1, 2, 6)]
    for output in outputs[1:]:
        torch.testing.assert_close(output, outputs[0], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(run(layer, graph, h, 1, RowContext(seed=3, epoch=3)), outputs[0])


def test_attention_dropout_is_unbiased_and_reaches_the_self_edges():
    one, copies = loops(), 2000
    offset = np.repeat(np.arange(copies) * one.num_vertices, one.edges.shape[1])
    graph = Graph("copies", np.tile(one.edges, copies) + offset, None, one.num_vertices * copies)
    layer, theirs = pair("gat_heads")
    layer.attention_dropout.p = 0.3
    h = features(one).detach()
    with torch.no_grad():
        found = run(layer, graph, h.repeat(copies, 1)).view(copies, one.num_vertices, -1).mean(0)
        torch.testing.assert_close(found, theirs(h, one.edge_index), rtol=0.1, atol=0.1)


def test_one_vertex_drops_its_own_edge():
    layer = GATConv(IN, 8, heads=8, dropout=0.5).double()
    graph = next(graph for graph in awkward_graphs() if graph.name == "one_vertex")
    h = features(graph)
    heads = torch.stack([run(layer, graph, h, 1, RowContext(epoch=epoch)) for epoch in range(200)]).view(-1, 8)
    assert 0.4 < (heads == 0).all(1).double().mean() < 0.6


@pytest.mark.parametrize(
    "make,found",
    [
        (lambda: SAGEConv(IN, OUT, aggr="median"), "aggr 'median'.*PyGLayer"),
        (lambda: GCNConv(IN, OUT, add_self_loops=True, normalize=False), "normalize=True"),
        (lambda: GCNConv(IN, OUT, activation="no_such_function"), "no_such_function"),
        (lambda: PyGLayer(pyg.GCNConv(IN, OUT)), "GCNConv"),
        (lambda: PyGLayer(pyg.GCNConv(IN, OUT, cached=True)), "GCNConv"),
        (lambda: PyGLayer(pyg.SGConv(IN, OUT)), "hongtu.nn.SGConv"),
        (lambda: PyGLayer(pyg.FAConv(IN)), "needs x, x_0, edge_index"),
        (lambda: PyGLayer(pyg.ChebConv(IN, OUT, 2)), "use hongtu.nn.ChebConv"),
        (lambda: PyGLayer(pyg.GCNConv(IN, OUT), square=True), "more than its in-edges.*use hongtu.nn.GCNConv"),
        (lambda: PyGLayer(pyg.ChebConv(IN, OUT, 2), square=True), "more than its in-edges"),
        (lambda: PyGLayer(pyg.GraphConv(IN, OUT, flow="target_to_source")), "source_to_target"),
    ],
)
def test_what_is_refused(make, found):
    with pytest.raises(ValueError, match=found):
        make()


PYG_LAYERS = {
    "sage": lambda: pyg.SAGEConv(IN, OUT),
    "sage_max": lambda: pyg.SAGEConv(IN, OUT, aggr="max"),
    "gat": lambda: pyg.GATConv(IN, OUT, heads=2),
    "gatv2": lambda: pyg.GATv2Conv(IN, OUT, heads=2),
    "graph": lambda: pyg.GraphConv(IN, OUT),
    "transformer": lambda: pyg.TransformerConv(IN, OUT, heads=2),
    "gin": lambda: pyg.GINConv(mlp()),
    "ggcn": lambda: pyg.ResGatedGraphConv(IN, OUT),
}


@pytest.mark.pairs
@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("name", PYG_LAYERS)
def test_pyg_layer(name, graph, parts):
    torch.manual_seed(0)
    conv = PYG_LAYERS[name]().double()
    layer = PyGLayer(copy.deepcopy(conv))
    assert layer.plain and not layer.linear_aggregate
    h = features(graph)
    weight = {"edge_weight": graph.edge_weight()} if name == "graph" else {}
    expected, out = conv(h, graph.edge_index, **weight), run(layer, graph, h, parts)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)
    found, wanted = gradients(out, layer.conv, h), gradients(expected, conv, h)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("parts", [1, 4])
def test_square_pyg_layer_without_a_width(graph, parts):
    torch.manual_seed(0)
    conv = pyg.EdgeConv(torch.nn.Linear(2 * IN, OUT)).double()
    h = features(graph)
    out = run(PyGLayer(copy.deepcopy(conv), square=True), graph, h, parts)
    torch.testing.assert_close(out, conv(h, graph.edge_index), rtol=1e-10, atol=1e-10)


def test_square_pyg_layer_without_a_width_is_tried_when_it_runs():
    class Whole(pyg.EdgeConv):
        def forward(self, x, edge_index):
            return super().forward(x - x.mean(0), edge_index)

    layer = PyGLayer(Whole(torch.nn.Linear(2 * IN, OUT)), square=True)
    graph = awkward_graphs()[0]
    with pytest.raises(InputError, match=r"PyGLayer\(Whole\): .* more than its in-edges"):
        run(layer, graph, features(graph).float(), 1)


class Maximum(Layer):
    """A user layer that gives only forward."""

    def forward(self, block, h):
        out = h.new_full((block.num_dst, h.shape[1]), -10.0)
        index = block.dst_of_edge.unsqueeze(1).expand(-1, h.shape[1])
        return torch.maximum(out.scatter_reduce(0, index, block.gather(h), "amax"), h[: block.num_dst])


def test_user_layer_with_only_forward(graph):
    h = features(graph)
    expected = h.detach().clone()
    for source, destination in graph.edges.T:
        expected[destination] = torch.maximum(expected[destination], h.detach()[source])
    for parts in (1, 3):
        torch.testing.assert_close(run(Maximum(), graph, h, parts), expected)


class OwnLinear(Layer):
    """A user layer whose aggregate is custom, linear and without parameters."""

    linear_aggregate = True

    def aggregate(self, block, z, s):
        return block.sum(z) - 2 * block.mean(z, weighted=True)


def test_user_layer_may_declare_a_linear_aggregate():
    assert OwnLinear().linear_aggregate and not OwnLinear().plain and not Maximum().linear_aggregate


def test_layer_that_defines_nothing():
    with pytest.raises(NotImplementedError, match=r"forward\(block, h\)"):
        run(Layer(), hub(), features(hub()))


def test_rows_of_an_unbound_layer():
    with pytest.raises(AssertionError, match="bind"):
        _ = Layer().rows
    layer = Layer()
    rows = Rows(torch.arange(2))
    bind(layer, RowContext(rows=rows))
    assert layer.rows is rows


@pytest.mark.parametrize("improved", [False, True])
@pytest.mark.parametrize("add_self_loops", [False, True])
def test_degree_factors_are_as_good_as_the_statistics(add_self_loops, improved):
    """Of vertices without in-edges, without self-loops, and with one."""
    statistics = torch.tensor([[0.0, 0.0, torch.nan], [3.0, 0.0, torch.nan], [4.0, 0.5, 0.25]], dtype=torch.float64)
    layer = GCNConv(2, 2, add_self_loops=add_self_loops, improved=improved)
    assert layer.factors == (add_self_loops, improved, "replace")
    factors = degree_factors(statistics, *layer.factors)
    loop = (2.0 if improved else 1.0) * add_self_loops
    lacks = torch.tensor([loop, loop, -0.25 * add_self_loops], dtype=torch.float64)
    degrees = statistics[:, 0] + lacks
    scale = torch.where(degrees > 0, degrees.rsqrt(), 0)
    torch.testing.assert_close(factors, torch.stack([scale, lacks], dim=1))
    found = []
    for rows in (Rows(torch.arange(3), statistics=statistics), Rows(torch.arange(3), factors=factors)):
        bind(torch.nn.Sequential(layer), RowContext(rows=rows))
        found.append((layer.scale_R1(), layer._loop_correction_R1()))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_subclass_gets_the_statistics():
    class Own(GCNConv):
        pass

    assert Own(2, 2).factors is None

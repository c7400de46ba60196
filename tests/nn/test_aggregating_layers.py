"""Layers beyond the first six against torch_geometric, on whole graphs and cut into blocks."""

import copy
import pickle
from types import SimpleNamespace

import pytest
import torch

from hongtu.graph.topology import build_topology
from hongtu.nn import (
    APPNP,
    SIGN,
    GATv2Conv,
    GENConv,
    GraphConv,
    PNAConv,
    SAGEConv,
    SGConv,
    TransformerConv,
    aggr,
    degree_histogram,
)
from hongtu.nn.context import RowContext
from hongtu.nn.dropout import dropout_key
from tests.graphs import awkward_graphs, by_destination, hub, loops, weighted
from tests.layer_oracle import IN, OUT, check, features, keep_mask, run

pyg = pytest.importorskip("torch_geometric.nn")
pyg_aggr = pytest.importorskip("torch_geometric.nn.aggr")

DEG = torch.tensor([3, 7, 2, 0, 1])
FOUR = ["mean", "std", "max", "min"]
ALL_SCALERS = list(aggr.SCALERS)


@pytest.fixture(params=awkward_graphs(), ids=str)
def graph(request):
    return request.param


def same(name, ours=None, **options):
    """A layer and its namesake with the same options; ``ours`` holds those that only one of them takes."""
    return lambda: (globals()[name](IN, OUT, **options, **(ours or {})), getattr(pyg, name)(IN, OUT, **options))


def pna(aggregators, scalers, **options):
    given = {"aggregators": aggregators, "scalers": scalers, "deg": DEG, **options}
    return lambda: (PNAConv(IN, OUT, **given), pyg.PNAConv(IN, OUT, **given))


class SignOracle(torch.nn.Module):
    def __init__(self, K):
        super().__init__()
        self.hop = pyg.APPNP(K=1, alpha=0.0, add_self_loops=False)
        self.K = K

    def forward(self, x, edge_index, edge_weight=None):
        hops = [x]
        for _ in range(self.K):
            hops.append(self.hop(hops[-1], edge_index, edge_weight))
        return torch.cat(hops, dim=1)


LAYERS = {
    **{
        f"sage_{how}": same("SAGEConv", aggr=how) for how in ("max", "min", "mul", "var", "std", "softmax", "powermean")
    },
    "sage_several": same("SAGEConv", aggr=["mean", "max", "std", "var"], normalize=True),
    "sage_project": same("SAGEConv", aggr="max", project=True),
    "sage_project_mean": same("SAGEConv", project=True, root_weight=False),
    "sage_learned_t": same("SAGEConv", aggr="softmax", aggr_kwargs={"learn": True, "channels": IN}),
    "sage_learned_p": same("SAGEConv", aggr="powermean", aggr_kwargs={"learn": True, "p": 2.0}),
    "sage_semi_grad": same("SAGEConv", aggr="softmax", aggr_kwargs={"t": 0.3, "semi_grad": True}),
    "sage_semi_grad_std": same("SAGEConv", aggr="std", aggr_kwargs={"semi_grad": True}),
    "graph": same("GraphConv"),
    "graph_mean": same("GraphConv", aggr="mean", bias=False),
    "graph_max": same("GraphConv", aggr="max"),
    "gen": same("GENConv", norm="layer"),
    "gen_learned": same("GENConv", norm=None, learn_t=True, msg_norm=True, learn_msg_scale=True, bias=True),
    "gen_power": same("GENConv", norm="layer", aggr="powermean", p=3.0, learn_p=True, num_layers=3),
    "gen_several": same("GENConv", norm=None, aggr=["max", "mean"], expansion=3),
    "gen_add": same("GENConv", norm=None, aggr="add", msg_norm=True),
    "gatv2": same("GATv2Conv"),
    "gatv2_heads": same("GATv2Conv", heads=3, negative_slope=0.1, residual=True),
    "gatv2_mean": same("GATv2Conv", heads=4, concat=False, share_weights=True, residual=True),
    "gatv2_no_loops": same("GATv2Conv", heads=2, add_self_loops=False, bias=False),
    "transformer": same("TransformerConv"),
    "transformer_heads": same("TransformerConv", heads=3, beta=True),
    "transformer_mean": same("TransformerConv", heads=4, concat=False, beta=True, bias=False),
    "transformer_no_root": same("TransformerConv", heads=2, root_weight=False),
    "pna": pna(FOUR, ["identity", "amplification", "attenuation"]),
    "pna_scalers": pna(["sum", "var"], ALL_SCALERS, train_norm=True),
    "pna_towers": pna(FOUR, ["identity"], towers=5, post_layers=2),
    "pna_divided": lambda: tuple(
        kind(6, 4, FOUR, ["linear", "identity"], DEG, towers=2, divide_input=True) for kind in (PNAConv, pyg.PNAConv)
    ),
    "pna_deep": pna(["mean", "max", "min", "std", "sum"], ["identity", "attenuation"], pre_layers=2, post_layers=3),
    "sgc": same("SGConv"),
    "sgc_hops": same("SGConv", K=3, add_self_loops=False, bias=False),
    "appnp": lambda: (APPNP(4, 0.1), pyg.APPNP(4, 0.1)),
    "appnp_plain": lambda: (APPNP(1, 0.3, normalize=False), pyg.APPNP(1, 0.3, normalize=False)),
    "appnp_no_loops": lambda: (APPNP(2, 0.0, add_self_loops=False), pyg.APPNP(2, 0.0, add_self_loops=False)),
    "sign": lambda: (SIGN(3), SignOracle(3)),
}
WEIGHTED = ("graph", "sgc", "appnp", "sign")


def pair(name):
    """Our layer and torch_geometric's with the same float64 parameters, biases random too."""
    torch.manual_seed(0)
    ours, theirs = (module.double() for module in LAYERS[name]())
    for key, parameter in ours.named_parameters():
        with torch.no_grad():
            parameter.add_(0.3 * torch.rand_like(parameter) if key.endswith((".p", "avg_deg_log")) else 0.3)
    theirs.load_state_dict(ours.state_dict())
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def oracle(name, theirs, graph, h):
    weights = {"edge_weight": graph.edge_weight()} if name.startswith(WEIGHTED) else {}
    return theirs(h, graph.edge_index, **weights)


def inputs(name, graph):
    """Some columns of whole numbers, zeros among them: their extrema tie."""
    h = features(graph).detach()
    h[:, :2] = h[:, :2].round()
    return h[:, : LAYERS[name]()[0].in_channels if name == "pna_divided" else IN].clone().requires_grad_()


@pytest.mark.parametrize("name", LAYERS)
def test_equals_torch_geometric(name, graph):
    ours, theirs = pair(name)
    h = inputs(name, graph)
    expected = oracle(name, theirs, graph, h)
    first = ours.expand()[0]
    for transform_first in {False, first.can_transform_first}:
        first.transform_first = transform_first
        for parts in (1, 4):
            check(ours, theirs, run(ours, graph, h, parts), expected, h)


@pytest.mark.parametrize("name", LAYERS)
def test_parameters_and_initialisation_are_torch_geometrics(name):
    samples = [{}, {}]
    for seed in range(20):
        torch.manual_seed(seed)
        for sample, module in zip(samples, LAYERS[name](), strict=True):
            for key, value in module.state_dict().items():
                sample.setdefault(key, []).append(value.flatten())
    assert list(samples[0]) == list(samples[1])
    for key in samples[0]:
        found, expected = (torch.cat(sample[key]) for sample in samples)
        assert len(found) == len(expected)
        if len(found) > 20 * 5 or expected.std() == 0:
            assert abs(found.abs().max() - expected.abs().max()) <= 0.1 * expected.abs().max(), key
            assert abs(found.std() - expected.std()) <= 0.15 * expected.std(), key


def test_declarations():
    """Which aggregates are cached, and which linear maps may move."""
    linear = {"sage_project_mean", "graph", "graph_mean", "gen_add", "sgc", "sgc_hops", "appnp", "appnp_plain"}
    linear |= {"appnp_no_loops", "sign"}
    moves = {"sage_project_mean", "graph", "graph_mean", "sgc", "sgc_hops"}
    for name, make in LAYERS.items():
        parts = make()[0].expand()
        assert {part.linear_aggregate for part in parts} == {name in linear}, name
        assert [part.can_transform_first for part in parts] == [name in moves] + [False] * (len(parts) - 1), name
        assert all(part.weighted == name.startswith(WEIGHTED) for part in parts if part.linear_aggregate), name


def test_a_copy_of_hops_is_a_model_of_its_own():
    """What a hop knows of its owner is the copy's."""
    graph, layer = weighted(), pair("sgc_hops")[0]
    h = features(graph)
    for again in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        with torch.no_grad():
            again.lin.weight.mul_(2)
        again.expand()[0].transform_first = True
        torch.testing.assert_close(run(again, graph, h), 2 * run(layer, graph, h))
        assert list(again.state_dict()) == ["lin.weight"]


@pytest.mark.parametrize(
    "layer", [GATv2Conv(IN, OUT, 2, dropout=0.5), TransformerConv(IN, OUT, dropout=0.5), APPNP(3, 0.2, 0.5)]
)
def test_edge_dropout_does_not_depend_on_the_blocks(layer):
    layer, h = layer.double(), features(hub())
    outputs = [run(layer, hub(), h, parts, RowContext(seed=3, epoch=2)) for parts in (1, 2, 6)]
    for output in outputs[1:]:
        torch.testing.assert_close(output, outputs[0], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(run(layer, hub(), h, 1, RowContext(seed=3, epoch=3)), outputs[0])


def test_edge_dropout_of_appnp_adds_up_as_torch_geometrics(monkeypatch):
    """With our masks in place of torch's random numbers; stored loops, repeated ones too, count as one."""
    graph, layer, theirs = loops(), APPNP(3, 0.1, dropout=0.4).double(), pyg.APPNP(3, 0.1, dropout=0.4)
    h = features(graph)
    out = run(layer, graph, h, 2, RowContext(seed=3, epoch=2))
    source, destination = graph.edge_index
    at = destination.argsort(stable=True).argsort()[source != destination]
    ids = (at, len(source) + torch.arange(graph.num_vertices))
    steps = iter(enumerate(layer.hops))

    def dropout(weight, p):
        step, hop = next(steps)
        keys = (dropout_key(3, 2, hop.edge_dropout.site, 2 * step + k) for k in (0, 1))
        kept = torch.cat([keep_mask(of, 1, key, p).flatten() for of, key in zip(ids, keys, strict=True)])
        return weight * kept / (1 - p)

    monkeypatch.setattr(pyg.conv.appnp, "F", SimpleNamespace(dropout=dropout))
    expected = theirs(h, graph.edge_index, graph.edge_weight())
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    found = torch.autograd.grad(out.square().sum(), h)
    torch.testing.assert_close(found, torch.autograd.grad(expected.square().sum(), h), rtol=1e-12, atol=1e-12)


def test_edge_weights_where_there_is_no_weighted_form():
    with pytest.raises(ValueError, match="'std' has no weighted form"):
        run(GraphConv(IN, OUT, aggr=aggr.StdAggregation()).double(), weighted(), features(weighted()))
    with pytest.raises(ValueError, match="'softmax' has no weighted form"):
        run(GraphConv(IN, OUT, aggr="softmax").double(), weighted(), features(weighted()))


@pytest.mark.parametrize(
    "make,found",
    [
        (lambda: SAGEConv(IN, OUT, aggr="lstm"), "aggr 'lstm'.*PyGLayer"),
        (lambda: SAGEConv(IN, OUT, aggr="max", aggr_kwargs={"t": 1}), "with options"),
        (lambda: SAGEConv(IN, OUT, aggr=[]), "0 aggrs"),
        (lambda: GraphConv(IN, OUT, aggr=["mean", "max"]), "one reduction"),
        (lambda: GENConv(IN, OUT, norm="instance"), "norm='instance'"),
        (lambda: aggr.SoftmaxAggregation(learn=True, semi_grad=True), "gradient"),
        (lambda: aggr.PowerMeanAggregation(channels=2), "learn=True"),
        (lambda: SGConv(IN, OUT, K=0), "torch.nn.Linear"),
        (lambda: APPNP(0, 0.1), "at least 1 step"),
        (lambda: APPNP(3, 1.5), "alpha=1.5"),
        (lambda: SIGN(0), "at least 1 hop"),
        (lambda: PNAConv(IN, OUT, ["median"], ["identity"], DEG), "median"),
        (lambda: PNAConv(IN, OUT, ["mean"], ["log"], DEG), "log"),
        (lambda: PNAConv(IN, OUT, ["mean"], ["identity"], torch.zeros(3)), "histogram"),
        (lambda: PNAConv(IN, OUT, ["mean"], ["identity"], DEG, towers=2), "2 towers"),
    ],
)
def test_what_is_refused(make, found):
    with pytest.raises(ValueError, match=found):
        make()


def test_degree_histogram(graph):
    in_edge_start, source, _ = by_destination(graph)
    found = degree_histogram(build_topology(1, [0, graph.num_vertices], in_edge_start, source))
    degree = torch.bincount(graph.edge_index[1], minlength=graph.num_vertices)
    assert found.dtype == torch.int64 and torch.equal(found, torch.bincount(degree))


def test_sign_is_torch_geometrics_transform():
    from torch_geometric.data import Data
    from torch_geometric.transforms import SIGN as Transform

    graph, h = loops(), features(loops()).detach().float()
    edges, weights = graph.edge_index.contiguous(), graph.edge_weight(torch.float32)
    data = Transform(2)(Data(x=h, edge_index=edges, edge_weight=weights))
    torch.testing.assert_close(run(SIGN(2), graph, h), torch.cat([data.x, data.x1, data.x2], dim=1))

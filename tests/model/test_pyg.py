"""torch_geometric's models as layers and back: equal outputs, equal weights, clear refusals."""

from __future__ import annotations

import copy
import functools
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
import torch_geometric.nn as pyg
import torch_geometric.utils
from torch_geometric.utils import add_self_loops, dropout_path, to_torch_csr_tensor

import hongtu
from hongtu.errors import InputError
from hongtu.nn import Dropout
from tests import graphs, problems, training


class Inner(torch.nn.Module):
    """A part with a convolution, and one without."""

    def __init__(self, width):
        super().__init__()
        self.conv, self.mlp = pyg.GATv2Conv(width, width), pyg.MLP([width, width, width])

    def forward(self, h, edge_index):
        return h + self.mlp(self.conv(h, edge_index).relu())


class Own(torch.nn.Module):
    """As people write them: skips, functions, a part twice, arguments that are not given."""

    def __init__(self, features, classes):
        super().__init__()
        self.first, self.inner = pyg.GCNConv(features, 8), torch.nn.ModuleList([Inner(8), Inner(8)])
        self.norm, self.last = torch.nn.BatchNorm1d(8), chain(16, torch.nn.BatchNorm1d(8), classes)

    def forward(self, x, edge_index, edge_weight=None):
        h = h0 = torch.nn.functional.dropout(self.first(x, edge_index), p=0.4, training=self.training)
        for part in (*self.inner, self.inner[0]):
            h = torch.nn.functional.leaky_relu(self.norm(part(h, edge_index)), 0.1)
        return self.last(torch.cat([h, 0.5 * h0], dim=-1))


class GCNII(torch.nn.Module):
    """Its first convolution takes one value twice."""

    def __init__(self, features, classes):
        super().__init__()
        self.first, self.last = torch.nn.Linear(features, 8), torch.nn.Linear(8, classes)
        self.convs = torch.nn.ModuleList(pyg.GCN2Conv(8, 0.1, 0.5, layer + 1, layer != 1) for layer in range(3))

    def forward(self, x, edge_index):
        x = x_0 = self.first(x).relu()
        for conv in self.convs:
            x = conv(x, x_0, edge_index).relu()
        return self.last(x)


class Named(torch.nn.Module):
    """Arguments by name and in another order, and sizes of what is reshaped."""

    def __init__(self, features, classes):
        super().__init__()
        self.conv, self.less = pyg.SAGEConv(features, 8), Less()
        self.act, self.last = torch.jit.script(torch.nn.ReLU()), torch.nn.Linear(8, classes)

    def forward(self, x, edge_index):
        x = self.conv(edge_index=edge_index, x=x)
        x = x.view(x.size(0), 2, -1).tanh().reshape(x.shape[0], 8)
        return self.last(self.less(b=self.act(x), a=x))


class Less(torch.nn.Module):
    def forward(self, a, b):
        return a - 3 * b


class Deeper(torch.nn.Module):
    """DeeperGCN: batch norms inside its convolutions, skips around them."""

    def __init__(self, features, classes):
        super().__init__()
        blocks = [
            pyg.GENConv(8, 8, learn_t=True, num_layers=3, bias=True),
            pyg.GENConv(8, 8, aggr=["max", "powermean"]),
        ]
        norm, act = torch.nn.LayerNorm(8), torch.nn.ReLU(inplace=True)
        self.first = pyg.GENConv(features, 8, msg_norm=True, learn_msg_scale=True)
        self.layers = torch.nn.ModuleList(pyg.DeepGCNLayer(conv, norm, act, dropout=0.1) for conv in blocks)
        self.lin = torch.nn.Linear(8, classes)

    def forward(self, x, edge_index):
        x = self.first(x, edge_index)
        for layer in self.layers:
            x = layer(x, edge_index)
        return self.lin(x)


def chain(features, between, columns):
    return torch.nn.Sequential(torch.nn.Linear(features, 8), between, torch.nn.ReLU(), torch.nn.Linear(8, columns))


MODELS = {
    "gcn": lambda f, c: pyg.GCN(f, 8, 2, c, dropout=0.5),
    "gcn 3 jk last": lambda f, c: pyg.GCN(f, 8, 3, c, act="elu", jk="last"),
    "gcn layer norm": lambda f, c: pyg.GCN(f, 8, 2, c, norm="layer_norm", norm_kwargs={"mode": "node"}, act_first=True),
    "gcn batch norm": lambda f, c: pyg.GCN(f, 8, 3, c, norm="batch_norm"),
    "sage": lambda f, c: pyg.GraphSAGE(f, 8, 2, c, act="leaky_relu"),
    "sage norm": lambda f, c: pyg.GraphSAGE(f, 8, 2, c, norm="layer_norm", act_first=True),
    "gin max": lambda f, c: pyg.GIN(f, 8, 2, c, aggr="max"),
    "sage max": lambda f, c: pyg.GraphSAGE(f, 8, 2, c, aggr="max"),
    "gin": lambda f, c: pyg.GIN(f, 8, 2, c, train_eps=True),
    "gin layer norm": lambda f, c: pyg.GIN(f, 8, 2, c, norm="layer_norm", norm_kwargs={"mode": "node"}),
    "gin batch norm": lambda f, c: pyg.GIN(f, 8, 2, c, norm="batch_norm", act="prelu"),
    "gin graph norm first": lambda f, c: pyg.GIN(f, 8, 2, c, norm="graph_norm", act_first=True, train_eps=True),
    "gin of sequentials": lambda f, c: pyg.Sequential("x, edge_index", [
        (pyg.GINConv(chain(f, torch.nn.BatchNorm1d(8), 8)), "x, edge_index -> x"), torch.nn.ReLU(),
        (pyg.GINConv(chain(8, torch.nn.Tanh(), c), eps=0.3), "x, edge_index -> x"),
    ]),
    "gin 1": lambda f, c: pyg.GIN(f, 8, 1, eps=0.2),
    "gat": lambda f, c: pyg.GAT(f, 8, 2, c, heads=4, dropout=0.3, act=torch.tanh),
    "sequential": lambda f, c: pyg.Sequential("x, edge_index", [
        (torch.nn.Dropout(0.5), "x -> x"), (pyg.GCNConv(f, 8), "x, edge_index -> x"), torch.nn.ReLU(),
        (pyg.GATv2Conv(8, 8), "x, edge_index -> x"), torch.nn.Linear(8, c),
    ]),
    "gat residual": lambda f, c: pyg.GAT(f, 8, 3, c, heads=2, residual=True, dropout=0.3),
    "gat v2": lambda f, c: pyg.GAT(f, 8, 2, c, heads=2, v2=True),
    "gcn jk cat": lambda f, c: pyg.GCN(f, 8, 3, c, jk="cat"),
    "sage jk max": lambda f, c: pyg.GraphSAGE(f, 8, 2, c, jk="max", norm="batch_norm"),
    "gcn jk lstm": lambda f, c: pyg.GCN(f, 8, 2, c, jk="lstm"),
    "sequential with a skip": lambda f, c: pyg.Sequential("x, edge_index", [
        (pyg.SAGEConv(f, 8), "x, edge_index -> x1"), (torch.nn.ReLU(), "x1 -> x1"),
        (pyg.TransformerConv(8, 4, heads=2), "x1, edge_index -> x2"), (lambda a, b: a + b, "x1, x2 -> x"),
        torch.nn.Linear(8, c),
    ]),
    "pna": lambda f, c: pyg.PNA(f, 8, 2, c, aggregators=["mean", "std", "max"], scalers=["identity", "amplification"],
        deg=torch.tensor([3, 20, 30, 9]), pre_layers=2, norm="batch_norm"),
    "gcnii": lambda f, c: GCNII(f, c),
    "hops": lambda f, c: pyg.Sequential("x, edge_index", [
        (pyg.SGConv(f, 8, K=2, cached=True), "x, edge_index -> x"), torch.nn.ReLU(), torch.nn.Linear(8, c),
        (pyg.APPNP(K=2, alpha=0.1, dropout=0.5), "x, edge_index -> x"),
        (pyg.LGConv(), "x, edge_index -> x"),
    ]),
    "polynomials": lambda f, c: pyg.Sequential("x, edge_index", [
        (pyg.TAGConv(f, 8, K=2), "x, edge_index -> x"), (pyg.SSGConv(8, 8, 0.3, K=3, bias=False), "x, edge_index -> x"),
        (pyg.MixHopConv(8, 4, powers=[0, 2, 1]), "x, edge_index -> x"),
        (pyg.TAGConv(12, c, K=1, bias=False, normalize=False), "x, edge_index -> x"),
    ]),
    "recurrent": lambda f, c: pyg.Sequential("x, edge_index", [
        (pyg.ARMAConv(f, 8, num_stacks=2, num_layers=3, dropout=0.4, act=None), "x, edge_index -> x"),
        (pyg.GatedGraphConv(11, 2, bias=False), "x, edge_index -> x"),
        (pyg.ARMAConv(11, c, num_stacks=3, num_layers=2, shared_weights=True, bias=False), "x, edge_index -> x"),
    ]),
    "sums and gates": lambda f, c: pyg.Sequential("x, edge_index", [
        (pyg.GraphConv(f, 8, aggr="mean"), "x, edge_index -> x"), torch.nn.ReLU(),
        (pyg.ResGatedGraphConv(8, 8), "x, edge_index -> x"), (pyg.GraphConv(8, c), "x, edge_index -> x"),
    ]),
    "named": lambda f, c: Named(f, c),
    "deeper": lambda f, c: Deeper(f, c),
    "checkpointed": lambda f, c: Checkpointed(f, c),
    "own module": lambda f, c: Own(f, c),
    "convolution": lambda f, c: pyg.SAGEConv(f, c, normalize=True),
}  # fmt: skip


def shaken(model):
    """The model with no parameter left at zero."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def both(name, problem):
    torch.manual_seed(1)
    model = shaken(MODELS[name](problem.width, problem.classes)).double()
    return model, hongtu.from_pyg(model)


def output(model, problem):
    with torch.no_grad():
        return model(torch.from_numpy(problem.features).double(), problem.edge_index)


@pytest.mark.parametrize("name", MODELS)
def test_round_trip(name):
    problem = problems.problem_of(graphs.Graph("plain", problems.awkward_graph().edges, None, 64))
    model, layers = both(name, problem)
    trainer = hongtu.Trainer(
        problems.prepare(problem, 2, 3), layers, loss=lambda out, _: out.sum(1), dtype=torch.float64
    )
    torch.testing.assert_close(trainer.predict(), output(model, problem), rtol=1e-9, atol=1e-9)
    trainer.train_epoch()
    before = copy.deepcopy(model.state_dict())
    assert hongtu.to_pyg(trainer.model, model) is model
    assert any(not torch.equal(value, before[key]) for key, value in model.state_dict().items()), "it was trained"
    torch.testing.assert_close(trainer.predict(), output(model, problem), rtol=1e-9, atol=1e-9)


def test_weights_of_float64_keep_their_digits():
    for kind in (pyg.SAGEConv(4, 3), pyg.GINConv(pyg.MLP([4, 3, 3]), eps=0.3), pyg.GENConv(4, 3)):
        model = kind.double()
        for value in filter(torch.is_floating_point, model.state_dict().values()):
            value.fill_(1 / 3)
        state = torch.nn.ModuleList(hongtu.from_pyg(model)).state_dict()
        assert all((value == 1 / 3).all() for value in state.values() if value.is_floating_point()), state


class Changes(torch.nn.Module):
    """What no list of layers does."""

    def __init__(self, kind):
        super().__init__()
        self.conv = pyg.GATConv(4, 4) if kind == "weights" else pyg.SAGEConv(4, 4)
        self.conv = pyg.DirGNNConv(self.conv) if kind == "directed" else self.conv
        self.kind, self.scale = kind, torch.nn.Parameter(torch.ones(4))

    def forward(self, x, edge_index):
        if self.kind == "loops":
            edge_index = edge_index.flip(0)
        if self.kind == "values" and x.sum() > 0:
            x = -x
        if self.kind == "weights":
            return self.conv(x, edge_index, return_attention_weights=True)[0]
        x = self.conv(x, edge_index)
        return x * self.scale if self.kind == "scale" else x


class OfData(torch.nn.Module):
    """As in torch_geometric's introduction."""

    def __init__(self, own):
        super().__init__()
        self.own = own

    def forward(self, data):
        x, edge_index = data.x, data.edge_index
        return torch.nn.functional.log_softmax(self.own(x, edge_index), dim=1)


def test_a_module_of_data_is_taken_apart():
    problem = problems.problem_of(graphs.Graph("plain", problems.awkward_graph().edges, None, 64))
    model = shaken(OfData(Own(problem.width, problem.classes))).double()
    trainer = hongtu.Trainer(problems.prepare(problem, 2, 3), hongtu.from_pyg(model), dtype=torch.float64)
    trainer.train_epoch()
    hongtu.to_pyg(trainer.model, model)
    expected = output(model.own, problem).log_softmax(1)
    torch.testing.assert_close(trainer.predict(), expected, rtol=1e-9, atol=1e-9)


class InPlace(torch.nn.Module):
    """Changes rows in place, in one of many ways."""

    def __init__(self, features, classes, change):
        super().__init__()
        self.first, self.second, self.last = pyg.GCNConv(features, 8), pyg.SAGEConv(8, 8), pyg.SAGEConv(8, classes)
        self.lin, self.act = torch.nn.Linear(features, 8), torch.nn.ReLU(inplace=True)
        self.shrink = torch.nn.Tanhshrink()
        self.halved, self.chain = Halved(), torch.nn.Sequential(torch.nn.Identity(), self.act, torch.nn.Tanh())
        self.change = change

    def forward(self, x, edge_index):
        h = self.first(x, edge_index)
        return self.last(self.change(self, h, x, edge_index), edge_index)


def adds_by_another_name(self, h, x, edges):
    kept = h
    h += self.lin(x)
    return h + kept


def leaves_what_it_gets(self, h, x, edges):
    torch.nn.functional.elu(h, inplace=True)
    self.act(h)
    h.mul_(2)
    torch.sigmoid_(h)
    return h


def before_and_after(self, h, x, edges):
    doubled = h * 2
    given = self.act(h)
    return given + h + doubled


def between_layers(self, h, x, edges):
    own = self.lin(x)
    z = self.second(h, edges)
    own *= 3
    z -= own
    z /= 2
    return z + own + h


def of_sizes(self, h, x, edges):
    count = h.size(0)
    other = count
    count *= 2
    return h.view(other, -1, 2).flatten(1).reshape(count // 2, 8)


def writes_zeros(self, h, x, edges):
    h.zero_()
    h.add_(self.lin(x))
    return h.clamp_(min=-0.1)


def writes_a_part(self, h, x, edges):
    small = h < 0
    h[small] = 0
    h[:, 1:3] = self.lin(x)[:, :2]
    return h + small


def sorts(self, h, x, edges):
    values, order = h.sort(1)
    return self.shrink(h.sort(1).values) + h.topk(8)[0] * order + values.T.mT


@pytest.mark.parametrize(
    "change",
    [adds_by_another_name, leaves_what_it_gets, before_and_after, between_layers, of_sizes, writes_zeros,
     writes_a_part, sorts],
)  # fmt: skip
def test_what_a_forward_changes_in_place_is_changed(change):
    problem = problems.problem_of(graphs.Graph("plain", problems.awkward_graph().edges, None, 64))
    model = shaken(InPlace(problem.width, problem.classes, change)).double()
    trainer = hongtu.Trainer(problems.prepare(problem, 2, 3), hongtu.from_pyg(model), dtype=torch.float64)
    trainer.train_epoch()
    hongtu.to_pyg(trainer.model, model)
    torch.testing.assert_close(trainer.predict(), output(model, problem), rtol=1e-9, atol=1e-9)


def changes_a_part(self, h, x, edges):
    h[:, :4].relu_()
    return h


class Halved(torch.nn.Module):
    def forward(self, x):
        x /= 2
        return x + 1


def calls_what_changes_it(self, h, x, edges):
    return self.halved(h) + h


def calls_a_chain_that_changes_it(self, h, x, edges):
    return self.chain(h) + h


def keeps_a_part(self, h, x, edges):
    part = h.t()
    h += 1
    return part.t()


class Edgy(torch.nn.Module):
    """Asks for what edges have."""

    def __init__(self):
        super().__init__()
        self.first, self.second = pyg.GATv2Conv(6, 4, edge_dim=3), pyg.RGCNConv(4, 3, 5)
        self.third, self.same = pyg.GENConv(3, 5, edge_dim=3), pyg.GENConv(5, 3)
        self.again, self.without = pyg.GENConv(3, 3), pyg.GENConv(3, 3)

    def forward(self, x, edge_index, edge_attr, edge_type):
        x = self.second(self.first(x, edge_index, edge_attr).relu(), edge_index, edge_type)
        x = self.same(self.third(x, edge_index, edge_attr), edge_index, None)
        return self.without(self.again(x, edge_index, edge_attr), edge_index)


def test_what_edges_have_is_the_artifacts():
    torch.manual_seed(2)
    model, rng = Edgy().double().eval(), np.random.default_rng(0)
    edges, features = rng.integers(0, 40, (2, 200)), rng.normal(size=(40, 6)).astype(np.float32)
    edges = edges[:, edges[0] != edges[1]]
    attr = rng.normal(size=(edges.shape[1], 3)).astype(np.float32)
    kind = rng.integers(0, 5, edges.shape[1])
    artifact = hongtu.preprocess_graph(
        edges, 40, problems.new_path(), features=features, labels="random:3", random_split=(1, 0, 0),
        edge_features=attr, edge_type=kind, partitions=2, chunks=3,
    )  # fmt: skip
    trainer = hongtu.Trainer(artifact, hongtu.from_pyg(model), dtype=torch.float64)
    with torch.no_grad():
        given = (torch.from_numpy(a).double() for a in (features, attr))
        x, e = given
        expected = model(x, torch.from_numpy(edges), e, torch.from_numpy(kind))
    torch.testing.assert_close(trainer.predict(), expected, rtol=1e-9, atol=1e-9)


class Encoded(torch.nn.Module):
    """Edge features go through maps of the model's own first: one of several layers, and one of each."""

    def __init__(self, kind=""):
        super().__init__()
        self.encoder, self.chain, self.kind = torch.nn.Linear(3, 6), chain(3, torch.nn.Identity(), 6), kind
        self.first, self.second = pyg.GENConv(6, 6, norm="layer"), pyg.GATv2Conv(6, 6, edge_dim=6)
        self.third, self.last = pyg.GINEConv(torch.nn.Linear(6, 3)), pyg.TransformerConv(3, 3, edge_dim=3)

    def forward(self, x, edge_index, edge_attr):
        encoded = self.encoder(edge_attr)
        x = self.second(self.first(x, edge_index, encoded).relu(), edge_index, edge_attr=torch.tanh(encoded))
        if self.kind == "twice":
            x = self.second(x, edge_index, encoded)
        e = (
            self.chain(edge_attr)
            if self.kind != "drops"
            else torch.nn.functional.dropout(self.chain(edge_attr), 0.2, self.training)
        )
        return self.last(self.third(x, edge_index, e), edge_index, edge_attr.abs())


def test_edge_features_through_an_encoder():
    torch.manual_seed(2)
    model, rng = Encoded().double(), np.random.default_rng(0)
    edges, features = rng.integers(0, 40, (2, 200)), rng.normal(size=(40, 6)).astype(np.float32)
    edges = edges[:, edges[0] != edges[1]]
    attr, labels = rng.normal(size=(edges.shape[1], 3)).astype(np.float32), rng.integers(0, 3, 40)
    artifact = hongtu.preprocess_graph(
        edges, 40, problems.new_path(), features=features, labels=labels, masks={"train": np.ones(40, bool)},
        edge_features=attr, partitions=2, chunks=3,
    )  # fmt: skip
    options = {"dtype": torch.float64, "optimizer": lambda p: torch.optim.SGD(p, lr=0.1), "device_memory": "75%"}
    trainer = hongtu.Trainer(artifact, hongtu.from_pyg(model), **options)
    records = trainer.fit(2)
    assert records[-1].bytes == trainer.plan.bytes
    assert records[-1].peak_bytes["device 0"] <= trainer.plan.peak_bytes["device 0"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = torch.from_numpy(features).double(), torch.from_numpy(edges), torch.from_numpy(attr).double()
    for record in records:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(*given), torch.from_numpy(labels))
        assert record.loss == pytest.approx(loss.item(), rel=1e-12)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        torch.testing.assert_close(trainer.predict(), model(*given), rtol=1e-9, atol=1e-9)
        again = hongtu.to_pyg(trainer.model, Encoded().double())
        torch.testing.assert_close(again(*given), model(*given), rtol=1e-9, atol=1e-9)


class MayWeigh(torch.nn.Module):
    """One of its convolutions is given weights, where there are some."""

    def __init__(self, conv):
        super().__init__()
        self.first, self.second = pyg.GraphConv(6, 6), conv

    def forward(self, x, edge_index, edge_weight):
        return self.second(self.first(x, edge_index, edge_weight), edge_index)


def test_weights_that_a_model_leaves_out_are_not_used():
    problem = problems.awkward()
    assert problem.weights is not None
    artifact = problems.prepare(problem)
    x, weight = torch.from_numpy(problem.features).double(), problem.edge_weight(torch.float64)
    for conv in (pyg.GCNConv(6, 4), pyg.GraphConv(6, 4), pyg.GraphConv(6, 4, aggr="median"), pyg.SAGEConv(6, 4)):
        model = MayWeigh(conv).double()
        trainer = hongtu.Trainer(artifact, hongtu.from_pyg(model), dtype=torch.float64)
        with torch.no_grad():
            expected = model(x, problem.edge_index, weight)
        torch.testing.assert_close(trainer.predict(), expected, rtol=1e-9, atol=1e-9)
    hongtu.Trainer(artifact, hongtu.from_pyg(pyg.GCN(6, 8, 2, 4)))  # which may be given some


class FromTheTutorial(pyg.MessagePassing):
    """As torch_geometric's first own convolution: with self-loops of its own."""

    def __init__(self):
        super().__init__(aggr="add")
        self.lin = torch.nn.Linear(6, 3)

    def forward(self, x, edge_index):
        edge_index, _ = add_self_loops(edge_index, num_nodes=x.size(0))
        return self.propagate(edge_index, x=self.lin(x))


class OwnLinear(torch.nn.Module):
    """Called as torch_geometric's, and not the same."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((4,), 2.0))

    def forward(self, x):
        return x * self.weight


def test_a_module_of_ones_own_stays_whatever_it_is_called():
    OwnLinear.__name__ = "Linear"
    model = pyg.Sequential("x, edge_index", [(pyg.GCNConv(6, 4), "x, edge_index -> x"), OwnLinear()])
    assert type(hongtu.from_pyg(model)[1]) is OwnLinear


def test_parameters_that_are_no_leaves_are_named():
    scripted = torch.jit.script(torch.nn.Linear(4, 3))  # torch copies these into parameters that are no leaves
    model = pyg.Sequential("x, edge_index", [(pyg.GCNConv(6, 4), "x, edge_index -> x"), scripted])
    with pytest.raises(InputError, match=r"1\.weight is computed of others"):
        hongtu.Trainer(problems.prepare(problems.awkward(), 2, 3), hongtu.from_pyg(model))


def test_what_is_frozen_stays_so():
    model = pyg.GCN(6, 4, 2, 3)
    model.convs[0].requires_grad_(False)
    first, *_, last = hongtu.from_pyg(model)
    assert not any(p.requires_grad for p in first.parameters()) and all(p.requires_grad for p in last.parameters())


class LeavesEdgesOut(torch.nn.Module):
    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self, x, edge_index):
        return self.conv(x, edge_index)


class AsksForMore(LeavesEdgesOut):
    def __init__(self):
        super().__init__(pyg.SAGEConv(4, 4))

    def forward(self, x, edge_index, batch):
        return self.conv(x, edge_index)


@pytest.mark.parametrize("conv", [pyg.GENConv(6, 4, edge_dim=3), pyg.GATConv(6, 4, edge_dim=3)], ids=["gen", "gat"])
def test_edge_features_that_a_model_leaves_out_are_not_read(conv):
    with pytest.raises(InputError, match="edge_dim and is called without edge_attr"):
        hongtu.from_pyg(LeavesEdgesOut(conv))


def test_a_convolution_without_edge_features_is_given_none():
    """Its graph may have some."""
    problem = problems.with_edge_data(problems.awkward())
    features = problem.features.shape[1]
    model = LeavesEdgesOut(pyg.GeneralConv(features, 3))
    trainer = hongtu.Trainer(problems.prepare(problem, 2, 3), hongtu.from_pyg(model), dtype=torch.float64)
    expected = model.double()(torch.from_numpy(problem.features).double(), problem.edge_index)
    torch.testing.assert_close(trainer.predict(), expected.detach(), rtol=1e-12, atol=1e-12)


class Maps:
    """No convolution itself: torch_geometric takes over the messages' arguments of a convolution that another one is
    derived from."""

    def __init__(self, columns, out, aggr="mean"):
        super().__init__(aggr=aggr)
        self.lin, self.root = torch.nn.Linear(columns, out), torch.nn.Linear(columns, out)


class Means(Maps, pyg.MessagePassing):
    """As people write them: maps rows, and then passes them on."""

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=self.lin(x)) + self.root(x)


class Updated(Maps, pyg.MessagePassing):
    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_j):
        return self.lin(x_j).relu()

    def update(self, aggregated, x):
        return aggregated + self.root(x)


class Attends(Maps, pyg.MessagePassing):
    def forward(self, x, edge_index, edge_attr):
        return self.propagate(edge_index, x=self.lin(x), edge_attr=edge_attr)

    def message(self, x_i, x_j, edge_attr, index, ptr, size_i):
        score = (x_i * x_j).sum(1, keepdim=True).tanh() + edge_attr.sum(1, keepdim=True)
        return x_j * torch_geometric.utils.softmax(score, index, ptr, size_i)


class Weighs(Maps, pyg.MessagePassing):
    def forward(self, x, edge_index, edge_weight):
        return self.propagate(edge_index, x=self.lin(x), edge_weight=edge_weight)

    def message(self, x_j, edge_weight):
        return x_j * edge_weight.view(-1, 1)


class Net(torch.nn.Module):
    def __init__(self, first, last):
        super().__init__()
        self.first, self.last = first, last

    def forward(self, x, edge_index):
        return self.last(self.first(x, edge_index).relu(), edge_index)


class NetOfEdges(Net):
    def forward(self, x, edge_index, edge_attr):
        return self.last(self.first(x, edge_index, edge_attr).relu(), edge_index, edge_attr)


class NetOfWeights(Net):
    def forward(self, x, edge_index, edge_weight):
        return self.last(self.first(x, edge_index, edge_weight).relu(), edge_index, edge_weight)


TAKE_ONE = {
    "mapped first": lambda: Net(Means(6, 8), Means(8, 3, "max")),
    "an update": lambda: Net(Updated(6, 8), Updated(8, 3)),
    "edge features": lambda: NetOfEdges(Attends(6, 8, "add"), Attends(8, 3, "add")),
    "weights": lambda: NetOfWeights(Weighs(6, 8, "add"), Weighs(8, 3)),
    "torch_geometric's": lambda: Net(pyg.ClusterGCNConv(6, 6), pyg.AGNNConv()),
    "self-loops": lambda: Net(Means(6, 6), FromTheTutorial()),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKE_ONE)
def test_convolutions_that_take_no_pair_get_one_tensor(name):
    torch.manual_seed(0)
    problem = problems.edge_data()
    problem = problem if name == "weights" else replace(problem, weights=None)
    if name == "torch_geometric's":
        problem = replace(problem, labels=problem.labels % 3)
    model = TAKE_ONE[name]().double()
    given = [x for key, x in problem.edge_data().items() if key in model.forward.__code__.co_varnames]
    trainer = hongtu.Trainer(
        problems.prepare(problem, 2, 3), hongtu.from_pyg(copy.deepcopy(model)), dtype=torch.float64,
        optimizer=training.sgd,
    )  # fmt: skip
    x, mask = torch.from_numpy(problem.features).double(), torch.from_numpy(problem.masks["train"])
    loss = torch.nn.functional.cross_entropy(
        model(x, problem.edge_index, *given)[mask], torch.from_numpy(problem.labels)[mask]
    )
    loss.backward()
    record = trainer.train_epoch()
    training.assert_counted(trainer, record)
    assert record.loss == pytest.approx(float(loss.detach()), rel=1e-10)
    found = trainer.gradients()
    for key, p in model.last.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(found[f"2.conv.{key}"], p.grad, rtol=1e-9, atol=1e-12)


class BySources(Means):
    """Divided by out-degrees."""

    def forward(self, x, edge_index):
        out = torch_geometric.utils.degree(edge_index[0], x.size(0), dtype=x.dtype).clamp(min=1)
        return self.propagate(edge_index, x=self.lin(x) / out.unsqueeze(1))


class Centred(Means):
    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=self.lin(x - x.mean(0)))


class Twice(Means):
    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=self.propagate(edge_index, x=self.lin(x)))


@pytest.mark.parametrize("grain", [(1, 1), (2, 3)])
@pytest.mark.parametrize("make", [BySources, Centred, Twice])
def test_convolutions_that_want_more_than_in_edges_are_refused(make, grain):
    with pytest.raises(InputError, match=r"depends on more than its in-edges and their sources.* hongtu.nn.Layer"):
        hongtu.Trainer(problems.prepare(problems.awkward(), *grain), hongtu.from_pyg(make(6, 3)))


def test_a_convolution_that_takes_no_rows_is_refused():
    class Wants(Means):
        def forward(self, x, edge_index):
            return self.propagate(edge_index, x=self.lin(x.rows))

    with pytest.raises(InputError, match=r"PyGLayer\(Wants\): its forward takes neither rows nor a pair.*no attribute"):
        hongtu.Trainer(problems.prepare(problems.awkward()), hongtu.from_pyg(Wants(6, 3)))


class Counts(pyg.MessagePassing):
    """Fails where some vertex has no in-edges."""

    def forward(self, x, edge_index):
        count = torch.bincount(edge_index[1], minlength=len(x[1]))
        if not count.all():
            raise RuntimeError("a vertex without neighbours")
        return self.propagate(edge_index, x=x)


ONE_EDGE = graphs.Graph("one edge", np.array([[0], [1]]), None, 9)
TWO_EDGES = graphs.Graph("two edges", np.array([[1, 2], [0, 0]]), None, 9)
WEIGHTED = graphs.Graph("few edges", np.array([[0, 0, 2, 1, 3], [0, 0, 0, 2, 9]]), np.array([1, 2, 0.5, 1, 3.0]), 12)


@pytest.mark.parametrize("graph", [TWO_EDGES, WEIGHTED], ids=lambda graph: graph.name)
@pytest.mark.parametrize(
    "make", [
        lambda c: pyg.SAGEConv(6, c, aggr="median"), lambda c: pyg.GraphConv(6, c, aggr=pyg.QuantileAggregation(0.3)),
        lambda c: pyg.SAGEConv(6, c, aggr=["max", "median"]),
    ],
)  # fmt: skip
def test_what_fails_on_no_edges_runs_in_chunks_without_any(make, graph):
    problem = problems.problem_of(graph)
    model = LeavesEdgesOut(make(problem.classes)).double()
    trainer = hongtu.Trainer(
        problems.prepare(problem, 3, 3), hongtu.from_pyg(model), loss=lambda out, _: out.square().sum(1),
        dtype=torch.float64,
    )  # fmt: skip
    torch.testing.assert_close(trainer.predict(), output(model, problem), rtol=1e-9, atol=1e-9)
    trainer.train_epoch()
    out = model(torch.from_numpy(problem.features).double(), problem.edge_index)[problem.masks["train"]]
    out.square().sum(1).mean().backward()
    expected = {f"0.conv.{name}": p.grad for name, p in model.conv.named_parameters()}
    for name, found in trainer.gradients().items():
        torch.testing.assert_close(found, expected[name], rtol=1e-9, atol=1e-12)


class Ties(torch.nn.Module):
    """Medians of rows of which many are equal."""

    def __init__(self, aggr):
        super().__init__()
        self.first, self.last = pyg.SAGEConv(6, 8, aggr=aggr), pyg.SAGEConv(8, 3, aggr=aggr)

    def forward(self, x, edge_index):
        return self.last(self.first(x, edge_index).relu(), edge_index)


@pytest.mark.parametrize(
    "make", [lambda: "median", lambda: pyg.MedianAggregation(), lambda: pyg.QuantileAggregation(0.3)]
)
@pytest.mark.parametrize("chunks", [(1, 1), (2, 3)])
def test_medians_of_equal_numbers(make, chunks):
    problem = problems.awkward()
    model = Ties(make()).double()
    trainer = hongtu.Trainer(problems.prepare(problem, *chunks), hongtu.from_pyg(model), dtype=torch.float64)
    torch.testing.assert_close(trainer.predict(), output(model, problem), rtol=1e-9, atol=1e-9)
    trainer.train_epoch()
    out = model(torch.from_numpy(problem.features).double(), problem.edge_index)
    mask = problem.masks["train"]
    torch.nn.functional.cross_entropy(out[mask], torch.from_numpy(problem.labels)[mask]).backward()
    for (_, p), found in zip(model.named_parameters(), trainer.gradients().values(), strict=True):
        torch.testing.assert_close(found, p.grad, rtol=1e-9, atol=1e-12)


def test_a_convolution_that_fails_without_edges_is_named():
    with pytest.raises(
        InputError, match=r"PyGLayer\(Counts\): fails on a chunk where . of . vertices have no in-edges"
    ):
        hongtu.Trainer(problems.prepare(problems.problem_of(ONE_EDGE), 3, 3), [hongtu.nn.PyGLayer(Counts())]).fit(1)


class Keeps(torch.nn.Module):
    """Has parameters, a buffer and constants of its own."""

    def __init__(self, features=4, classes=3, kind=""):
        super().__init__()
        self.first, self.second, self.last = pyg.GCNConv(features, 8), pyg.SAGEConv(8, 8), pyg.SAGEConv(8, classes)
        self.lin, self.kind = torch.nn.Linear(8, 8), kind
        self.shares, self.scale = torch.nn.Parameter(torch.rand(2)), torch.nn.Parameter(torch.rand(8))
        self.register_buffer("order", torch.randperm(8))
        self.rows = torch.nn.ParameterList([torch.nn.Parameter(torch.rand(64 if kind == "vertices" else 1, 8))])

    def forward(self, x, edge_index):
        h = self.first(x, edge_index)
        parts, shares = [h, self.second(h, edge_index)], self.shares.softmax(0)
        h = sum(shares[k] * part for k, part in enumerate(parts))[:, self.order]
        if self.kind == "weight":
            h = self.lin(h) @ self.lin.weight
        if self.kind == "vertices":
            h = h + self.rows[0]
        if self.kind == "drops":
            h = h * torch.nn.functional.dropout(self.scale, training=self.training)
        if self.kind == "draws":
            h = h[:, torch.randperm(8)]
        if self.kind == "counts":
            self.order.add_(1)
        if self.kind == "halves":
            self.scale.data.mul_(0.5)
        return self.last(torch.nn.functional.elu(h * self.scale + torch.arange(8) / 8) + self.rows[0][:1], edge_index)


def test_a_models_own_parameters_are_trained():
    problem = problems.problem_of(graphs.Graph("plain", problems.awkward_graph().edges, None, 64))
    model = Keeps(problem.width, problem.classes).double()
    trainer = hongtu.Trainer(
        problems.prepare(problem, 2, 3), hongtu.from_pyg(model), dtype=torch.float64, device_memory="100%",
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
    )  # fmt: skip
    optimizer, mask = torch.optim.SGD(model.parameters(), lr=0.1), problem.masks["train"]
    for record in trainer.fit(3):
        optimizer.zero_grad()
        out = model(torch.from_numpy(problem.features).double(), problem.edge_index)
        loss = torch.nn.functional.cross_entropy(out[mask], torch.from_numpy(problem.labels)[mask])
        assert record.loss == pytest.approx(loss.item(), rel=1e-12)
        loss.backward()
        optimizer.step()
        assert record.bytes == trainer.plan.bytes
        assert record.peak_bytes["device 0"] <= trainer.plan.peak_bytes["device 0"]
    trained = hongtu.to_pyg(trainer.model, Keeps(problem.width, problem.classes).double())
    torch.testing.assert_close(trained.scale, model.scale, rtol=1e-12, atol=0)
    torch.testing.assert_close(trained.shares, model.shares, rtol=1e-12, atol=0)
    torch.testing.assert_close(trained.rows[0], model.rows[0], rtol=1e-12, atol=0)
    layers = hongtu.from_pyg(Keeps(problem.width, problem.classes, "vertices"))
    with pytest.raises(
        InputError, match=r"rows, and .*rows.0.* of the model: The size .*features='embedding:D' are learned"
    ):
        hongtu.Trainer(problems.prepare(problem, 2, 3), layers)


class AsksData(LeavesEdgesOut):
    def __init__(self):
        super().__init__(pyg.SAGEConv(4, 3))

    def forward(self, data):
        return self.conv(data.x + data.pos, data.adj_t)


class Modes(torch.nn.Module):
    """Does in evaluation something else than in training, or drops in neither."""

    def __init__(self, kind, features=4, classes=3):
        super().__init__()
        self.kind, self.conv, self.last = kind, pyg.SAGEConv(features, 8), pyg.SAGEConv(8, classes)

    def forward(self, x, edge_index=None):
        h = self.conv(x, edge_index)
        if self.kind == "halves":
            h = h if self.training else h / 2
        elif self.kind == "alpha":
            h = torch.nn.functional.alpha_dropout(h, 0.5, self.training)
        else:
            h = torch.nn.functional.dropout(h, 0.5, **({} if self.kind == "always" else {"training": False}))
        return self.last(h, edge_index)


def test_dropout_that_is_off_drops_nothing():
    problem = problems.awkward()
    model = Modes("off", problem.width, problem.classes).eval()
    trainer = hongtu.Trainer(problems.prepare(problem), hongtu.from_pyg(model))
    trainer.model.train()
    assert not any(part.p for part in trainer.model.modules() if isinstance(part, Dropout))
    assert not model.training  # as it was before


class MadeInForward(torch.nn.Module):
    """Makes modules where it calls them."""

    def __init__(self, make):
        super().__init__()
        self.make, self.first, self.last = make, pyg.SAGEConv(6, 8), pyg.SAGEConv(8, 3)

    def forward(self, x, edge_index):
        h = self.make(self)(self.first(x, edge_index))
        return self.last(torch.nn.Sequential(torch.nn.Identity(), torch.nn.ReLU())(h), edge_index)


@pytest.mark.parametrize(
    "make", [
        lambda self: torch.nn.ReLU(), lambda self: torch.nn.LeakyReLU(0.3, inplace=True),
        lambda self: torch.nn.Softmax(1),
        lambda self: torch.nn.BatchNorm1d(8, affine=False, track_running_stats=False), lambda self: torch.nn.Dropout(0),
    ],
)  # fmt: skip
def test_modules_without_weights_that_a_forward_makes(make):
    problem, model = problems.awkward(), MadeInForward(make).double()
    trainer = hongtu.Trainer(problems.prepare(problem, 2, 3), hongtu.from_pyg(model), dtype=torch.float64)
    x, train = torch.from_numpy(problem.features).double(), torch.from_numpy(problem.masks["train"])
    loss = torch.nn.functional.cross_entropy(
        model(x, problem.edge_index)[train], torch.from_numpy(problem.labels)[train]
    )
    assert abs(trainer.train_epoch().loss - loss.item()) < 1e-12
    hongtu.to_pyg(trainer.model, model)
    torch.testing.assert_close(trainer.predict(), output(model, problem), rtol=1e-9, atol=1e-9)


REFUSED = {
    "aggregation of GCN": (lambda: pyg.GCN(4, 8, 2, 3, aggr="max"), r"GCN.convs\[0\] has aggr='max'"),
    "flow": (lambda: pyg.GCN(4, 8, 2, 3, flow="target_to_source"), "flow='target_to_source'"),
    "edges alone": (lambda: pyg.LINKX(64, 4, 8, 3, 1), r"SparseLinear\): its forward takes edges and no rows, .*embed"),
    "lazy": (lambda: pyg.GCN(-1, 8, 2, 3), r"GCN.convs.0.lin.weight is lazy, .*in_channels"),
    "a lazy module": (
        lambda: pyg.Sequential("x, e", [(torch.nn.LazyLinear(4), "x -> x"), (pyg.SAGEConv(4, 3), "x, e -> x")]),
        "weight is lazy, .*run the model once first",
    ),
    "a compiled convolution": (
        lambda: LeavesEdgesOut(torch.compile(pyg.SAGEConv(4, 4))), "conv is a convolution that torch.compile wraps"
    ),
    "edges that are drawn": (lambda: OfEdges("drawn"), r"calls dropout_path, .*utils.dropout_edge\(edge_index, p,"),
    "edges dropped by a module's name": (lambda: OfEdges("by name"), "and GCNConv normalises by degrees: of edges"),
    "edges that are added": (lambda: OfEdges("added"), r"calls add_self_loops on edges; change edges before"),
    "edges that are chosen": (lambda: OfEdges("chosen"), r"calls edge_index\[...\] on edges; .*edge_index\[:, ..."),
    "edges turned round": (lambda: OfEdges("turned"), r"turns edges round \(getitem\); .* with edge_type 0 and 1, and"),
    "two sets of edges": (lambda: TwoSets(), "asks for 'other', a second set of edges, .* with edge_type 0 and 1, and"),
    "not pyg": (lambda: torch.nn.Linear(2, 3), "got Linear of torch"),
    "edges that change": (lambda: Changes("loops"), r"turns edges round \(flip\); .*before hongtu.preprocess"),
    "values that decide": (lambda: Changes("values"), r"cannot be traced .*in line \d+: if .* and x.sum\(\) > 0\)"),
    "a pooled graph": (lambda: Pools(), r"cannot be traced .*in line \d+: return pyg.global_mean_pool\(h, batch\)"),
    "another argument": (lambda: AsksForMore(), "AsksForMore.forward asks for 'batch', expected rows, edges and some"),
    "a plain value": (lambda: Changes("weights"), "Changes.forward calls conv with return_attention_weights=True"),
    "encoders that differ": (lambda: Encoded("twice"), "calls second with edge features in two forms"),
    "edges that drop": (lambda: Encoded("drops"), r"Encoded.third takes edge features from which a dropout"),
    "a part that is written": (lambda: InPlace(4, 3, changes_a_part), r"changes rows in place \(relu_\) that it"),
    "a part that is kept": (lambda: InPlace(4, 3, keeps_a_part), r"changes rows in place \(iadd\) that it"),
    "a module that writes": (lambda: InPlace(4, 3, calls_what_changes_it), r"changes rows in place \(Halved\) that it"),
    "a chain that writes": (lambda: InPlace(4, 3, calls_a_chain_that_changes_it), r"in place \(Sequential\) that it"),
    "evaluation": (lambda: Modes("halves"), r"Modes.forward does something else in evaluation \(self.training, h"),
    "other dropout": (lambda: Modes("alpha"), r"Modes.forward does something else in evaluation \(self.training, h"),
    "labels": (lambda: pyg.LabelPropagation(2, 0.5), r"nothing to learn; call hongtu\.LabelPropagation"),
    "edges both ways": (lambda: Changes("directed"), "DirGNNConv, which adds up out-edges, .*RGCNConv"),
    "a wrapped convolution": (lambda: LeavesEdgesOut(hongtu.nn.PyGLayer(pyg.SAGEConv(4, 4))), "stands in a list"),
    "dropout that never ends": (lambda: Modes("always"), r"drops in evaluation, too; pass training=self.training"),
    "another field of Data": (lambda: AsksData(), r"\(it asks for 'pos'\); there are x, .*put what else vert"),
    "no rows": (lambda: pyg.LightGCN(9, 4, 2), r"takes no rows; .*features='embedding:D'"),
    "one row of weights for each vertex": (lambda: OfNone(), r"takes no rows; have it take x .* x is the identity"),
    "no rows, and a matrix": (lambda: OfNone(by="matrix"), r"takes no rows; have it take x .* x is the identity"),
    "no rows, and weights": (lambda: OfNone(by="weights"), r"takes no rows; have it take x .* x is the identity"),
    "a weight of a module": (lambda: Keeps(kind="weight"), r"uses lin.weight, a weight of a module that it"),
    "a parameter that drops": (lambda: Keeps(kind="drops"), r"calls dropout with a parameter or buffer"),
    "numbers of each call": (lambda: Keeps(kind="draws"), "draws random numbers that are not made of rows"),
    "a buffer that changes": (lambda: Keeps(kind="counts"), r"changes a buffer of its own"),
    "a module with weights": (
        lambda: MadeInForward(lambda self: torch.nn.Linear(8, 8)), "makes a Linear, whose weights are new in every call"
    ),
    "a module with buffers": (lambda: MadeInForward(lambda self: torch.nn.BatchNorm1d(8)), "makes a BatchNorm1d"),
    "a dropout": (lambda: MadeInForward(lambda self: torch.nn.Dropout(0.3)), "a Dropout, which drops in evaluation"),
    "modules that differ": (
        lambda: MadeInForward(lambda self: torch.nn.LeakyReLU(0.1 + self.training)), "something else in evaluation"
    ),
    "a parameter that changes": (lambda: Keeps(kind="halves"), r"changes a parameter of its own"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    make, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        hongtu.from_pyg(make())


class OfKinds(torch.nn.Module):
    """A vector for each kind of vertex, beside columns that are numbers."""

    def __init__(self, how):
        super().__init__()
        self.kind, self.other = torch.nn.Embedding(7, 4, padding_idx=2), torch.nn.Embedding(5, 4)
        self.conv, self.lin, self.how = pyg.GCNConv(4, 3), torch.nn.Linear(2, 4), how

    def forward(self, x, edge_index):
        if self.how == "whole":
            return self.conv(self.kind(x.long()).sum(1), edge_index)
        if self.how == "one column":
            return self.conv(self.kind(x.squeeze(-1).long()).relu(), edge_index)
        if self.how == "changed":
            return self.conv(self.kind(self.lin(x)), edge_index)
        h = self.kind(x[:, 0].long()) + self.other(x[:, 1].to(torch.long))  # as ogb's encoders
        if self.how == "twice":
            h = h + self.kind(x[:, 1].long())
        return self.conv(h + self.lin(x[:, 2:] * 0.5), edge_index)


def kinds_of(how):
    rng = np.random.default_rng(3)
    columns = {"whole": [7, 7, 7], "one column": [7]}.get(how, [7, 5, 9, 9])
    rows = np.stack([rng.integers(0, most, 64) for most in columns], axis=1)
    return replace(problems.awkward(), features=rows.astype(np.float32), weights=None)


@pytest.mark.long
@pytest.mark.parametrize("how", ["several", "twice", "whole", "one column"])
def test_kinds_of_vertices(how):
    """Integer columns go through an Embedding: losses, weights and predictions are those of the whole graph."""
    torch.manual_seed(4)
    problem, model = kinds_of(how), OfKinds(how).double()
    mask, labels = torch.from_numpy(problem.masks["train"]), torch.from_numpy(problem.labels)
    layers, x = hongtu.from_pyg(model), torch.from_numpy(problem.features).double()
    make = functools.partial(training.smallest_budget, problems.prepare(problem, 2, 3), lambda: copy.deepcopy(layers))
    options = {"optimizer": training.sgd, "dtype": torch.float64}
    trainer = hongtu.Trainer(problems.prepare(problem, 2, 3), layers, device_memory=make(**options), **options)
    optimizer = training.sgd(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x, problem.edge_index)[mask], labels[mask])
        loss.backward()
        optimizer.step()
        record = trainer.train_epoch()
        assert record.loss == pytest.approx(float(loss.detach()), rel=1e-9)
        training.assert_counted(trainer, record)
    torch.testing.assert_close(trainer.predict(), model(x, problem.edge_index).detach())
    again = hongtu.to_pyg(trainer.model, OfKinds(how).double())
    torch.testing.assert_close(again.kind.weight, model.kind.weight)


def test_what_is_no_kind_is_refused():
    with pytest.raises(InputError, match="calls kind, an Embedding, with rows that a module has changed"):
        hongtu.from_pyg(OfKinds("changed"))
    for spoil in (7, -1, 0.5, 3e9):
        problem = kinds_of("one column")
        problem.features[11] = spoil
        message = r"layers\[0\] \(kind.weight\): features of vertex 11 are no whole number from 0 to 6"
        with pytest.raises(InputError, match=message):
            hongtu.Trainer(problems.prepare(problem, 2, 3), hongtu.from_pyg(Whole()))
    learned = hongtu.preprocess_graph(
        problem.edges, 64, problems.new_path(), features="embedding:1", labels=problem.labels, masks=problem.masks,
        partitions=1, chunks=1,
    )  # fmt: skip
    with pytest.raises(InputError, match="an Embedding looks up what dense features say"):
        hongtu.Trainer(learned, hongtu.from_pyg(OfKinds("one column")))
    for made in (torch.nn.Embedding(7, 4, sparse=True), torch.nn.Embedding(7, 4, max_norm=1.0)):
        model = OfKinds("one column")
        model.kind = made
        with pytest.raises(InputError, match="kind has sparse=True or max_norm"):
            hongtu.from_pyg(model)


class Whole(torch.nn.Module):
    """An Embedding of the column as it is."""

    def __init__(self):
        super().__init__()
        self.kind, self.conv = torch.nn.Embedding(7, 4), pyg.GCNConv(4, 3)

    def forward(self, x, edge_index):
        return self.conv(self.kind(x[:, 0]), edge_index)


class Kinds(torch.nn.Module):
    """Adds up what it looks up of all columns, as OGB's encoders."""

    def __init__(self):
        super().__init__()
        self.kinds = torch.nn.ModuleList([torch.nn.Embedding(7, 4), torch.nn.Embedding(5, 4)])

    def forward(self, x):
        return sum(kind(x[:, k]) for k, kind in enumerate(self.kinds))


class LooksUp(torch.nn.Module):
    def __init__(self, change):
        super().__init__()
        self.encoder, self.conv, self.change = Kinds(), pyg.GCNConv(4, 3), change

    def forward(self, x, edge_index):
        return self.conv(self.encoder(self.change(x)), edge_index)


def looked_up_in_forward(self, x, edge_index):
    h = 0
    for k in range(x.shape[1]):
        h += self.encoder.kinds[k](x[:, k])
    return self.conv(h, edge_index)


ENCODERS = {
    "module": None, "long": lambda self, x, e: self.conv(self.encoder(x.long()), e), "loop": looked_up_in_forward,
    "columns": lambda self, x, e: self.conv(self.encoder(x[:, -2:]), e),
    "zip": lambda self, x, e: self.conv(sum(f(x[:, k]) for k, f in zip(range(x.size(1)), self.encoder.kinds)), e),
}  # fmt: skip


@pytest.mark.parametrize("how", ENCODERS)
def test_encoders_of_columns_take_whole_numbers(how):
    """As OGB's, in a module or in forward: each Embedding is given integers, all of which are seen to be there."""
    problem, forward = problems.awkward(), ENCODERS[how] or LooksUp.forward
    x = torch.randint(5, (problem.num_vertices, 2))
    model = type("OfColumns", (LooksUp,), {"forward": forward})(lambda x: x).double()
    graph = problems.prepare(replace(problem, features=x.numpy().astype(np.float32)), 2, 3)
    found = hongtu.Trainer(graph, hongtu.from_pyg(model), dtype=torch.float64)
    torch.testing.assert_close(found.predict(), model(x, torch.from_numpy(problem.edges)).detach())
    loss = torch.nn.functional.cross_entropy(
        model(x, torch.from_numpy(problem.edges))[problem.masks["train"]],
        torch.from_numpy(problem.labels)[problem.masks["train"]],
    )
    assert found.train_epoch().loss == pytest.approx(float(loss.detach()), rel=1e-9)
    for spoil in (7,) if how == "long" else (7, 0.5):  # long() cuts off
        x = x.float()
        x[11, 0] = spoil
        graph = problems.prepare(replace(problem, features=x.numpy()), 2, 3)
        with pytest.raises(InputError, match="features of vertex 11 are no whole number from 0 to 6"):
            hongtu.Trainer(graph, hongtu.from_pyg(model))
    graph = problems.prepare(replace(problem, features=np.zeros((problem.num_vertices, 1), np.float32)), 2, 3)
    if how in ("loop", "zip"):
        with pytest.raises(InputError, match="columns of x, which was 2 when from_pyg traced it, and is 1"):
            hongtu.Trainer(graph, hongtu.from_pyg(model))


def test_kinds_that_float32_rounds_are_told(monkeypatch):
    monkeypatch.setattr("hongtu.model.expression.EXACT", 4)
    problem = kinds_of("one column")
    problem.features[:] = 3
    problem.features[11] = 4
    with pytest.raises(InputError, match="vertex 11 are no whole number from 0 to 3, beyond which the float32 of an"):
        hongtu.Trainer(problems.prepare(problem, 2, 3), hongtu.from_pyg(Whole()))


class LinearOfEachColumn(torch.nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.lins, self.conv = torch.nn.ModuleList([torch.nn.Linear(1, 2) for _ in range(columns)]), pyg.GCNConv(2, 3)

    def forward(self, x, edge_index):
        return self.conv(sum(self.lins[k](x[:, k : k + 1]) for k in range(x.size(1))), edge_index)


def test_a_linear_of_each_column():
    problem = problems.awkward()
    model, x = LinearOfEachColumn(problem.width).double(), torch.from_numpy(problem.features).double()
    found = hongtu.Trainer(problems.prepare(problem, 2, 3), hongtu.from_pyg(model), dtype=torch.float64).predict()
    torch.testing.assert_close(found, model(x, torch.from_numpy(problem.edges)).detach())


class Chebyshev(torch.nn.Module):
    """Every normalisation, with the largest eigenvalue left out and given."""

    def __init__(self, f, c):
        super().__init__()
        self.a, self.b = pyg.ChebConv(f, 8, K=3), pyg.ChebConv(8, 8, K=2, normalization="rw")
        self.c = pyg.ChebConv(8, c, K=4, normalization=None)

    def forward(self, x, edge_index, edge_weight=None):
        h = self.b(self.a(x, edge_index, edge_weight).relu(), edge_index, None, None, 2.5)
        return self.c(h, edge_index, edge_weight, lambda_max=40)


@pytest.mark.parametrize("weights", ["none", "positive", "some negative"])
def test_chebyshev_polynomials(weights):
    """Of a directed graph with loops and isolated vertices, by layers with and without weights."""
    torch.manual_seed(4)
    problem, rng = problems.awkward(), np.random.default_rng(7)
    numbers = rng.random(problem.edges.shape[1]).astype(np.float32) + 1
    numbers[:5] = -0.25 if weights == "some negative" else 0.25
    problem = replace(problem, weights=None if weights == "none" else numbers)
    model = Chebyshev(problem.width, problem.classes).double()
    layers, x, mask = hongtu.from_pyg(model), torch.from_numpy(problem.features).double(), problem.masks["train"]
    for normalization in ("sym", None):  # whose largest number is not on the diagonal of "some negative"
        model.c.normalization = layers[-1].normalization = normalization
        trainer = hongtu.Trainer(problems.prepare(problem, 2, 3), copy.deepcopy(layers), dtype=torch.float64)
        out = model(x, problem.edge_index, problem.edge_weight())
        loss = torch.nn.functional.cross_entropy(out[mask], torch.from_numpy(problem.labels)[mask])
        torch.testing.assert_close(trainer.predict(), out.detach(), rtol=1e-9, atol=1e-9)
        assert trainer.train_epoch().loss == pytest.approx(loss.item(), rel=1e-9)


def test_chebyshev_polynomials_of_two_graphs():
    """Each run has its own graph's largest eigenvalue."""
    problem = problems.awkward()
    other = replace(problem, edges=np.stack([np.arange(64), np.arange(64)[::-1]]), weights=None)
    model = pyg.ChebConv(problem.width, 3, K=2, normalization=None).double()
    layers = hongtu.from_pyg(model)
    both = replace(problem, weights=None), other
    trainers = [hongtu.Trainer(problems.prepare(one, 2, 3), layers, dtype=torch.float64) for one in both]
    for one, trainer in [*zip(both, trainers, strict=True)] * 2:
        expected = model(torch.from_numpy(one.features).double(), one.edge_index).detach()
        torch.testing.assert_close(trainer.predict(), expected, rtol=1e-9, atol=1e-9)


class GivenEigenvalue(torch.nn.Module):
    def __init__(self, number):
        super().__init__()
        self.conv, self.number = pyg.ChebConv(6, 3, K=2), number
        self.register_buffer("largest", torch.tensor(2.5))

    def forward(self, x, edge_index):
        return self.conv(x, edge_index, lambda_max=float(self.largest) if self.number else self.largest)


def test_the_largest_eigenvalue_as_a_tensor():
    """What the refusal advises is taken."""
    with pytest.raises(InputError, match=r"calls conv with lambda_max=model_largest, expected a number, as float\("):
        hongtu.from_pyg(GivenEigenvalue(number=False))
    (layer,) = hongtu.from_pyg(GivenEigenvalue(number=True))
    assert layer.lambda_max == 2.5


def test_chebyshev_polynomials_that_are_called_in_two_ways_are_refused():
    model = Chebyshev(4, 3)
    model.b = model.c
    with pytest.raises(InputError, match="calls b with lambda_max 40 and with another; make two of them"):
        hongtu.from_pyg(model)


class OfNone(torch.nn.Module):
    """Without features: the first convolution has a row of weights for each vertex."""

    def __init__(self, by="types"):
        super().__init__()
        self.a, self.b = pyg.RGCNConv(9, 4, 2), pyg.RGCNConv(4, 3, 2)
        self.forward = {"types": self.by_types, "matrix": self.by_matrix, "weights": self.by_weights}[by]

    def by_types(self, edge_index, edge_type):
        return self.b(self.a(None, edge_index, edge_type).relu(), edge_index, edge_type)

    def by_matrix(self, adj_t):
        return self.b(self.a(None, adj_t).relu(), adj_t)

    def by_weights(self, edge_index, edge_weight, edge_type):
        return self.by_types(edge_index, edge_type)


class Pools(torch.nn.Module):
    """One row for each graph of a batch."""

    def __init__(self):
        super().__init__()
        self.conv = pyg.SAGEConv(4, 3)

    def forward(self, x, edge_index):
        h, batch = self.conv(x, edge_index), torch.zeros(5, dtype=torch.long)
        return pyg.global_mean_pool(h, batch)


class OfEdges(torch.nn.Module):
    """Changes edges in forward."""

    def __init__(self, kind):
        super().__init__()
        self.conv, self.kind = pyg.GCNConv(4, 3), kind

    def forward(self, x, edge_index):
        if self.kind == "drawn":
            edge_index, _ = dropout_path(edge_index, p=0.2, training=self.training)
        elif self.kind == "by name":
            edge_index = torch_geometric.utils.dropout_edge(edge_index, p=0.2, training=self.training)[0]
        elif self.kind == "added":
            edge_index = add_self_loops(edge_index, num_nodes=x.size(0))[0]
        else:
            edge_index = edge_index[[1, 0]] if self.kind == "turned" else edge_index[:, :5]
        return self.conv(x, edge_index)


class TwoSets(OfEdges):
    def __init__(self):
        super().__init__("two")

    def forward(self, x, edge_index, other):
        return self.conv(x, edge_index) + self.conv(x, edge_index=other)


def test_what_two_sets_of_edges_are_advised_to_be_is_the_same():
    """The advice of the refusals: one graph, with a type for each set."""
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.randint(0, 30, (2, 90), generator=generator) for _ in range(2))
    x, first, second = torch.randn(30, 6, generator=generator), pyg.SAGEConv(6, 3), pyg.SAGEConv(6, 3)
    kind = torch.arange(2).repeat_interleave(90)
    artifact = hongtu.preprocess_graph(
        torch.cat([one, other], dim=1), 30, problems.new_path(), features=x, labels="random:3", edge_type=kind,
        random_split=(1, 0, 0), partitions=2, chunks=3,
    )  # fmt: skip
    layer = hongtu.nn.RGCNConv(6, 3, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.stack([first.lin_l.weight.t(), second.lin_l.weight.t()]))
        layer.root.copy_((first.lin_r.weight + second.lin_r.weight).t())
        layer.bias.copy_(first.lin_l.bias + second.lin_l.bias)
        expected = first(x, one) + second(x, other)
    torch.testing.assert_close(hongtu.Trainer(artifact, [layer]).predict(), expected, rtol=1e-5, atol=1e-5)


class Checkpointed(torch.nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.lin, self.last = torch.nn.Linear(features, 8), pyg.SAGEConv(8, classes)
        conv = pyg.GENConv(8, 8, learn_t=True, norm="layer")
        self.layer = pyg.DeepGCNLayer(conv, torch.nn.LayerNorm(8), torch.nn.ReLU(), dropout=0.1, ckpt_grad=True)

    def forward(self, x, edge_index):
        h = self.layer(self.lin(x), edge_index)
        return torch.utils.checkpoint.checkpoint(self.last, h, edge_index, use_reentrant=False)


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last, self.gru = pyg.SAGEConv(6, 8), torch.nn.Linear(8, 3), torch.nn.GRU(8, 8)

    def forward(self, x, edge_index):
        return self.last(torch.cat(self.gru(self.first(x, edge_index).unsqueeze(0)))[0])


def test_a_module_that_gives_a_pair_is_named():
    with pytest.raises(InputError, match=r"GRU\) gives a tuple, expected the rows of one tensor"):
        hongtu.Trainer(problems.prepare(problems.awkward()), hongtu.from_pyg(Recurrent()))


def test_a_module_in_two_places_keeps_one_set_of_weights():
    problem = problems.problem_of(graphs.Graph("plain", problems.awkward_graph().edges, None, 64))
    conv, lin = pyg.GCNConv(8, 8), torch.nn.Linear(8, 8)
    steps = [(m, "x, edge_index -> x") if m is conv else m for m in (conv, lin, conv, lin)]
    first, last = (pyg.SAGEConv(problem.width, 8), "x, edge_index -> x"), torch.nn.Linear(8, problem.classes)
    model = shaken(pyg.Sequential("x, edge_index", [first, *steps, last])).double()
    trainer = hongtu.Trainer(problems.prepare(problem, 2, 3), hongtu.from_pyg(model), dtype=torch.float64)
    assert trainer.model[1] is trainer.model[3] and trainer.model[2] is trainer.model[4]
    trainer.train_epoch()
    hongtu.to_pyg(trainer.model, model)
    torch.testing.assert_close(trainer.predict(), output(model, problem), rtol=1e-9, atol=1e-9)


class Still(torch.nn.Module):
    """Keeps a normalisation and dropouts in evaluation whatever the model does."""

    def __init__(self):
        super().__init__()
        self.first, self.second = pyg.GATConv(6, 8, dropout=0.5), pyg.SAGEConv(8, 3)
        self.norm, self.dropout = torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5)
        self.norm.running_mean.fill_(0.5)
        self.train()

    def train(self, mode=True):
        super().train(mode)
        for part in (self.first, self.norm, self.dropout):
            part.eval()
        return self

    def forward(self, x, edge_index):
        return self.second(self.dropout(self.norm(self.first(x, edge_index))), edge_index)


@pytest.mark.parametrize("mode", [True, False])
def test_a_part_that_evaluates_goes_on(mode):
    problem, model = problems.awkward(), Still().double().train(mode)
    trainer = hongtu.Trainer(problems.prepare(problem, 2, 3), hongtu.from_pyg(model), dtype=torch.float64)
    out = model(torch.from_numpy(problem.features).double(), problem.edge_index)[problem.masks["train"]]
    loss = torch.nn.functional.cross_entropy(out, torch.from_numpy(problem.labels)[problem.masks["train"]])
    assert abs(trainer.train_epoch().loss - loss.item()) < 1e-12
    assert model.training is mode, "the model itself stays as it was"


class Twice(torch.nn.Module):
    """Two convolutions, and a linear map between them."""

    def __init__(self, first, second):
        super().__init__()
        self.first, self.between, self.second = first, torch.nn.Linear(8, 8), second

    def forward(self, x, edge_index):
        return self.second(self.between(self.first(x, edge_index)).relu(), edge_index)


def scaled(model):
    model.first.register_forward_hook(lambda module, given, found: 3 * found)


def scaled_messages(model):
    model.first.register_message_forward_hook(lambda module, given, found: 3 * found)


def squares(model):
    model.first.lin_l.register_forward_pre_hook(lambda module, given: given[0].square())


def weight_norm(model):
    torch.nn.utils.parametrizations.weight_norm(model.first.lin_l)


def network(model):
    model.first.lin_l = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh())


def aggregation(model):
    model.first.aggr_module = pyg.MaxAggregation()


def own_message(model):
    model.first.message = lambda x_j: x_j.square()


def tied(model):
    model.second.lin_r.weight = model.between.weight
    model.second.lin_l.weight = model.between.weight


@pytest.mark.parametrize(
    "change", [scaled, scaled_messages, squares, weight_norm, network, aggregation, own_message, tied]
)
def test_what_is_changed_in_a_convolution_stays_so(change):
    problem, model = problems.awkward(), Twice(pyg.SAGEConv(6, 8), pyg.SAGEConv(8, 8)).double()
    change(model)
    model.double()
    layers = hongtu.from_pyg(model)
    trainer = hongtu.Trainer(
        problems.prepare(problem, 2, 3), layers, dtype=torch.float64, optimizer=lambda p: torch.optim.SGD(p, lr=0.1)
    )
    x, optimizer = torch.from_numpy(problem.features).double(), torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        train = problem.masks["train"]
        loss = torch.nn.functional.cross_entropy(
            model(x, problem.edge_index)[train], torch.from_numpy(problem.labels)[train]
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert abs(trainer.train_epoch().loss - loss.item()) < 1e-12
    trained = {name: value.clone() for name, value in model.state_dict().items()}
    hongtu.to_pyg(trainer.model, model)
    assert all(torch.allclose(value, trained[name], atol=1e-12) for name, value in model.state_dict().items())


def parametrized():
    conv = pyg.GCNConv(6, 8)
    torch.nn.utils.parametrizations.spectral_norm(conv.lin)
    return conv


def hooked():
    conv = pyg.SAGEConv(6, 8)
    conv.lin_l.weight.register_hook(lambda grad: grad.clamp(-1, 1))
    return conv


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (parametrized, "GCNConv: its lin is a ParametrizedLinear, which hongtu.nn.GCNConv does not have"),
        (hooked, r"SAGEConv.lin_l.weight has hooks, which copies have not; register them on what is trained"),
    ],
)
def test_what_cannot_be_changed_in_a_convolution_is_named(make, message):
    with pytest.raises(InputError, match=message):
        hongtu.from_pyg(make())


def test_a_function_that_mixes_rows_is_refused_behind_a_layer_that_makes_them_equal():
    model = pyg.GCN(6, 8, 2, 4, act=lambda h: h - h.mean(0))
    problem = problems.awkward()
    with pytest.raises(InputError, match="mixes the rows"):
        hongtu.Trainer(problems.prepare(problem), hongtu.from_pyg(pyg.GCN(problem.width, 8, 2, 4, act=model.act)))


def test_edge_features_keep_their_weights():
    model = shaken(pyg.GAT(4, 8, 2, 3, edge_dim=2, fill_value=0.5))
    layers = hongtu.from_pyg(model)
    assert layers[0].uses_edge_features
    blank = hongtu.to_pyg(layers, pyg.GAT(4, 8, 2, 3, edge_dim=2))
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in blank.state_dict().items())


def test_layers_of_ones_own_have_the_names_of_torch_geometric():
    layers = [hongtu.nn.GATv2Conv(4, 4, 2, activation="elu"), hongtu.nn.GATv2Conv(8, 3, 2, concat=False)]
    loaded = hongtu.to_pyg(layers, pyg.GAT(4, 8, 2, 3, heads=2, v2=True)).state_dict()
    assert torch.equal(loaded["convs.0.att"], layers[0].att) and torch.equal(loaded["convs.1.bias"], layers[1].bias)


def test_what_a_model_never_calls_stays_as_it_is():
    model = LeavesEdgesOut(pyg.SAGEConv(4, 3))
    model.spare = torch.nn.Linear(3, 3)
    layers, before = hongtu.from_pyg(model), copy.deepcopy(model.spare.state_dict())
    with torch.no_grad():
        layers[0].lin_r.weight.fill_(7)
    hongtu.to_pyg(layers, model)
    assert (model.conv.lin_r.weight == 7).all() and torch.equal(model.spare.weight, before["weight"])
    other = LeavesEdgesOut(pyg.SAGEConv(4, 3, bias=False))
    with pytest.raises(InputError, match="the model has nothing of that name"):
        hongtu.to_pyg(layers, other)


def test_weights_that_do_not_fit_are_named():
    layers = hongtu.from_pyg(pyg.GCN(4, 8, 2, 3))
    with pytest.raises(InputError, match=r"GCN.convs.0.bias: the layers have shape \(8,\), the model has shape \(9,\)"):
        hongtu.to_pyg(layers, pyg.GCN(4, 9, 2, 3))
    with pytest.raises(InputError, match=r"Sequential\.convs\.0\.bias: .*the model has nothing of that name"):
        hongtu.to_pyg(layers[:2], pyg.Sequential("x, e", [(pyg.GCNConv(4, 8), "x, e -> x")]))


@pytest.mark.long
@pytest.mark.parametrize("name", ["gcn", "sage", "gin", "gat"])
def test_round_trip_on_a_real_graph(name, data_graph, tmp_path_factory):
    """float64, 1e-6 of the largest output; coauthor-physics: ``python -m tests.model.test_pyg DATA``."""
    path = tmp_path_factory.getbasetemp() / "real"
    assert real_round_trip(name, data_graph("planetoid-cora"), path) <= 1e-6


def real_round_trip(name, folder, path):
    """The largest difference between both libraries' outputs, as a share of the largest output."""
    import scipy.sparse

    if not path.exists():
        features = scipy.sparse.load_npz(folder / "features.npz")
        hongtu.preprocess_graph(
            np.load(folder / "edges.npy"), features.shape[0], path, features=features,
            labels=np.load(folder / "labels.npy"), random_split=(0.6, 0.2, 0.2), partitions=2, chunks=16,
            normalize_features=True,
        )  # fmt: skip
    artifact = hongtu.open_artifact(path)
    assert artifact.sparse_features is not None and json.loads((path / "manifest.json").read_text())["sparse_numbers"]
    torch.manual_seed(1)
    model = shaken(MODELS[name](artifact.feature_width, artifact.num_classes)).double()
    trainer = hongtu.Trainer(artifact, hongtu.from_pyg(model), device_memory="1GiB", dtype=torch.float64)
    again = hongtu.to_pyg(trainer.model, copy.deepcopy(model))
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in again.state_dict().items())
    rows = torch.from_numpy(artifact.sparse_features.dense()).double()
    ordered = torch.empty_like(rows)
    ordered[torch.from_numpy(np.array(artifact.original_id)).long()] = rows
    edges = torch.from_numpy(np.load(folder / "edges.npy")).long()
    if name in ("sage", "gin"):  # they aggregate the features themselves, of every edge unless given a matrix
        edges = to_torch_csr_tensor(edges.flip(0), torch.ones(edges.shape[1]).double(), size=(len(rows), len(rows)))
    with torch.no_grad():
        expected = model(ordered, edges)
    return float((trainer.predict() - expected).abs().max() / expected.abs().max())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        for graph in ("planetoid-cora", "coauthor-physics"):
            for kind in ("gcn", "sage", "gin", "gat"):
                share = real_round_trip(kind, Path(sys.argv[1]) / graph, Path(scratch) / graph)
                print(f"{graph} {kind}: outputs differ by {share:.1e} of the largest", flush=True)


class Shares(pyg.MessagePassing):
    """Rows, and what each edge had of them."""

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.propagate(edge_index, x=x), x[edge_index[0]]


class TakesApart(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = pyg.PANConv(6, 3, 2)

    def forward(self, x, edge_index):
        x, _ = self.conv(x, edge_index)
        return x


@pytest.mark.parametrize("model", [pyg.PANConv(6, 3, 2), TakesApart(), Shares()], ids=lambda m: type(m).__name__)
def test_a_convolution_that_gives_more_than_rows_is_named(model):
    with pytest.raises(InputError, match=r"its forward returns a .*[tT]uple\[.*expected the rows of one tensor"):
        hongtu.from_pyg(model)

"""Models that drop edges train as torch_geometric's do, with the same edges dropped."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import torch_geometric
import torch_geometric.nn as pyg

import hongtu
from hongtu.errors import InputError
from hongtu.nn import EdgeDropout, GATConv, SAGEConv, TransformerConv
from hongtu.nn.dropout import dropout_key
from tests import problems, staged, training
from tests.layer_oracle import keep_mask
from tests.problems import EDGE_COLUMNS as P
from tests.ranks.turns import run_ranks

SEED = 5


class OneDraw(torch.nn.Module):
    """Both convolutions get the same edges, and what lies beside them."""

    def __init__(self, make, features, classes):
        super().__init__()
        self.first, self.last = make(features, 8), make(8, classes)
        self.encoder = torch.nn.Linear(P, P)

    def forward(self, x, edge_index, edge_attr):
        edge_index, mask = torch_geometric.utils.dropout_edge(edge_index, p=0.4, training=self.training)
        given = {"edge_attr": self.encoder(edge_attr[mask])} if getattr(self.first, "edge_dim", None) else {}
        return self.last(self.first(x, edge_index, **given).relu(), edge_index, **given)


class TwoDraws(OneDraw):
    """Each convolution draws its own."""

    def forward(self, x, edge_index):
        drop = torch_geometric.utils.dropout_edge
        h = self.first(x, drop(edge_index, training=self.training)[0]).relu()
        return self.last(h, drop(edge_index, 0.2, False, self.training)[0]) + 0.1 * h.sum(1, keepdim=True)


class Weighted(OneDraw):
    def forward(self, x, edge_index, edge_weight):
        kept, mask = torch_geometric.utils.dropout_edge(edge_index, p=0.4, training=self.training)
        h = self.first(x, kept, edge_weight[mask]).relu()
        return self.last(h, edge_index, edge_weight)


def gin(f, c):
    return pyg.GINConv(torch.nn.Linear(f, c))


MODELS = {
    "sage": (OneDraw, pyg.SAGEConv),
    "sage twice": (TwoDraws, pyg.SAGEConv),
    "max": (OneDraw, lambda f, c: pyg.SAGEConv(f, c, aggr="max")),
    "gin": (TwoDraws, gin),
    "weights": (Weighted, pyg.GraphConv),
    "weights of a norm": (Weighted, lambda f, c: pyg.GCNConv(f, c, normalize=False)),
    "gat": (TwoDraws, pyg.GATConv),
    "gat of features": (OneDraw, lambda f, c: pyg.GATConv(f, c, edge_dim=P)),
    "transformer": (OneDraw, lambda f, c: pyg.TransformerConv(f, c, edge_dim=P)),
    "wrapped": (OneDraw, lambda f, c: pyg.SAGEConv(f, c, aggr="median")),
    "hops": (OneDraw, lambda f, c: pyg.TAGConv(f, c, K=2, normalize=False)),
}


def expected(model, problem, sites, epochs=2):
    """Losses of torch_geometric, where ``dropout_edge`` gives hongtu's edges."""
    ids = torch.empty(problem.edges.shape[1], dtype=torch.long)
    ids[problem.edge_index[1].argsort(stable=True)] = torch.arange(len(ids))
    beside = {"edge_attr": problem.edge_data()["edge_attr"], "edge_weight": problem.edge_weight()}
    given = [beside[name] for name in ("edge_attr", "edge_weight") if name in model.forward.__code__.co_varnames]
    mask, labels = torch.from_numpy(problem.masks["train"]), torch.from_numpy(problem.labels)
    optimizer, losses = training.sgd(model.parameters()), []
    for epoch in range(epochs):
        left = iter(sites)

        def drop(edge_index, p=0.5, force_undirected=False, training=True, left=left, epoch=epoch):
            kept = keep_mask(ids, 1, dropout_key(SEED, epoch, next(left), 0), p).squeeze(1)
            return edge_index[:, kept], kept

        optimizer.zero_grad()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch_geometric.utils, "dropout_edge", drop)
            out = model(torch.from_numpy(problem.features).double(), problem.edge_index, *given)
        loss = torch.nn.functional.cross_entropy(out[mask], labels[mask])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    rows = model.eval()(torch.from_numpy(problem.features).double(), problem.edge_index, *given)
    return losses, rows.detach()


def made(name):
    torch.manual_seed(0)
    kind, make = MODELS[name]
    problem = problems.edge_data()
    model = kind(make, problem.width, problem.classes).double()
    return problem, model, hongtu.from_pyg(model)


def sites_of(trainer):
    return dict.fromkeys(layer.drop_edges.site for layer in trainer.model if hasattr(layer, "drop_edges"))


OTHER_RUNS = [(name, run) for name in ("sage", "gat") for run in ("in memory", "paper", "gpu", "one chunk")]


@pytest.mark.most(9)
@pytest.mark.long
@pytest.mark.parametrize(("name", "run"), [(name, "smallest") for name in MODELS] + OTHER_RUNS)
def test_the_same_edges_are_dropped_as_there(name, run):
    problem, model, layers = made(name)
    options = {"optimizer": training.sgd, "dtype": torch.float64, "seed": SEED}
    options |= {"strategy": "paper"} if run == "paper" else {"device": staged.simulated()} if run == "gpu" else {}
    artifact = problems.prepare(problem, *((1, 1) if run == "one chunk" else (2, 3)))
    if run in ("smallest", "gpu"):
        least = training.smallest_budget(artifact, lambda: copy.deepcopy(layers), **options)
        options["device_memory"] = least
    trainer = hongtu.Trainer(artifact, copy.deepcopy(layers), **options)
    found = training.train(trainer, 2).losses
    losses, rows = expected(model, problem, sites_of(trainer))
    assert found == pytest.approx(losses, rel=1e-9)
    torch.testing.assert_close(trainer.predict(), rows, rtol=1e-8, atol=1e-8)


@pytest.mark.long
@pytest.mark.parametrize("name", ["sage twice", "gat"])
def test_ranks_and_pruned_graphs_drop_the_same(name):
    """Vertices that several ranks compute lose the same edges."""
    problem, _, layers = made(name)
    mask = problem.masks["train"]
    few = mask & (mask.cumsum() <= 2)
    artifact = problems.prepare(replace(problem, masks=problem.masks | {"train": few}), 2, 3)
    options = {"optimizer": training.sgd, "dtype": torch.float64, "seed": SEED}
    alone = hongtu.Trainer(artifact, copy.deepcopy(layers), **options)
    losses = training.train(alone, 2).losses
    assert alone.plan.choice.fields

    def of_rank(group):
        trainer = hongtu.Trainer(artifact, copy.deepcopy(layers), ranks=group, dependencies="cache", **options)
        return training.train(trainer, 2).losses

    for found in run_ranks(2, of_rank):
        assert found == pytest.approx(losses, rel=1e-9)


def test_a_layer_in_a_list_drops_edges():
    """New ones in every epoch, all of them where p is 1, and none in evaluation; a constant aggregate is none then."""
    problem = problems.edge_data()
    artifact = problems.prepare(problem, 2, 3)
    layer = SAGEConv(problem.width, problem.classes)
    layer.drop_edges = EdgeDropout(0.5)
    trainer = hongtu.Trainer(artifact, [layer], optimizer=lambda p: torch.optim.SGD(p, lr=0.0), dtype=torch.float64)
    before = trainer.predict()
    assert len({trainer.train_epoch().loss for _ in range(3)}) == 3 and torch.equal(trainer.predict(), before)
    layer.drop_edges.p = 1.0
    own = torch.nn.functional.linear(torch.from_numpy(problem.features).double(), layer.lin_r.weight, layer.lin_l.bias)
    mask, labels = torch.from_numpy(problem.masks["train"]), torch.from_numpy(problem.labels)
    loss = torch.nn.functional.cross_entropy(own[mask], labels[mask])
    assert trainer.train_epoch().loss == pytest.approx(loss.item(), rel=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("make", [SAGEConv, GATConv, TransformerConv])
def test_memory_is_planned_for_an_epoch_that_keeps_all_edges(make):
    problem, planned = problems.edge_data(), []
    for p in (1e-12, 0.95):
        layer = make(problem.width, problem.classes)
        layer.drop_edges = EdgeDropout(p)
        artifact = problems.prepare(problem, 2, 3)
        planned.append(training.smallest_budget(artifact, lambda layer=layer: [copy.deepcopy(layer)]))
    assert planned[0] == planned[1]


class Wrong(torch.nn.Module):
    def __init__(self, how):
        super().__init__()
        self.conv, self.gcn, self.how = pyg.GraphConv(4, 3), pyg.GCNConv(4, 3), how

    def forward(self, x, edge_index, edge_weight):
        drop = torch_geometric.utils.dropout_edge
        kept, mask = drop(edge_index, p=0.3, force_undirected=self.how == "pairs", training=self.training)
        if self.how == "branch" and self.training:
            return self.conv(x, drop(edge_index)[0])
        if self.how == "GCN":
            return self.gcn(x, kept)
        if self.how == "twice":
            return self.conv(x, drop(kept, training=self.training)[0])
        if self.how == "always":
            return self.conv(x, drop(edge_index)[0])
        if self.how == "two ways":
            return self.conv(self.conv(x, kept)[:, :1].expand(-1, 4), edge_index)
        if self.how == "count":
            return self.conv(x, kept) * mask.sum()
        weight = edge_weight[mask]
        if self.how == "changed":
            weight = weight / weight.max()
        return self.conv(x, kept, edge_weight if self.how == "all weights" else weight)


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ("GCN", "calls gcn with edges of dropout_edge, and GCNConv normalises by degrees: .* needs in-edges alone"),
        ("branch", "than in training; only .* and torch_geometric.utils.dropout_edge may, called with training=self"),
        ("twice", "calls dropout_edge on getitem, expected the edge_index that it takes"),
        ("always", "calls dropout_edge so that it drops in evaluation, too; pass training=self.training"),
        ("pairs", "force_undirected=True, and an edge does not know its reverse"),
        ("two ways", "calls conv with edges in two forms"),
        ("count", "calls sum with the mask that dropout_edge returns, which may only"),
        ("changed", "calls max with what dropout_edge has left of the edges' values; do that first"),
        ("all weights", "with what all edges have, or with those of two calls; pick by its mask"),
    ],
)
def test_what_cannot_be_done_to_edges_that_are_left_is_refused(how, found):
    with pytest.raises(InputError, match=found):
        hongtu.from_pyg(Wrong(how))


def test_a_layer_in_a_list_that_normalises_is_refused():
    layer = hongtu.nn.SGConv(6, 3, K=2)
    layer.drop_edges = EdgeDropout(0.5)
    with pytest.raises(InputError, match=r"layers\[0\] \(SGConv\) normalises by degrees"):
        hongtu.Trainer(problems.prepare(problems.edge_data(), 2, 3), [layer])

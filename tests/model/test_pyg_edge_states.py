"""from_pyg of models that hand what edges have from layer to layer."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn
from torch_geometric.utils import dropout_edge, scatter

import hongtu
from hongtu.errors import InputError
from tests import problems
from tests.models import H
from tests.ranks.turns import run_ranks
from tests.training import sgd

P = problems.EDGE_COLUMNS


def net(columns, out):
    return nn.Sequential(nn.Linear(columns, H), nn.ReLU(), nn.Linear(H, out))


class EdgeModel(nn.Module):
    def __init__(self, columns, edges, out):
        super().__init__()
        self.mlp = net(2 * columns + edges, out)

    def forward(self, src, dst, edge_attr, u, batch):
        return self.mlp(torch.cat([src, dst, edge_attr], dim=1))


class NodeModel(nn.Module):
    def __init__(self, columns, edges, out, reduce):
        super().__init__()
        self.before, self.behind, self.reduce = net(columns + edges, H), net(columns + H, out), reduce

    def forward(self, x, edge_index, edge_attr, u, batch):
        row, col = edge_index
        rows = self.before(torch.cat([x[row], edge_attr], dim=1))
        if self.reduce == "index_add":
            rows = x.new_zeros(x.size(0), H).index_add(0, col, rows)
        else:
            rows = scatter(rows, col, dim=0, dim_size=x.size(0), reduce=self.reduce)
        return self.behind(torch.cat([x, rows], dim=1))


def meta(columns, edges, out, reduce="mean"):
    return pyg.MetaLayer(EdgeModel(columns, edges, H), NodeModel(columns, H, out, reduce))


class Metas(nn.Module):
    """As torch_geometric's example, in a loop that hands u on."""

    def __init__(self, f, c):
        super().__init__()
        self.steps = nn.ModuleList([meta(f, P, H), meta(H, H, H, "max"), meta(H, H, c, "index_add")])

    def forward(self, x, edge_index, edge_attr, u=None, batch=None):
        for step in self.steps:
            x, edge_attr, u = step(x, edge_index, edge_attr, u, batch)
        return x


class Processor(nn.Module):
    """Encoders, the same step several times with residuals of both, and a decoder."""

    def __init__(self, f, c):
        super().__init__()
        self.of_x, self.of_e = net(f, H), net(P, H)
        self.step, self.norm, self.decoder = meta(H, H, H, "sum"), nn.LayerNorm(H), nn.Linear(H, c)

    def forward(self, x, edge_index, edge_attr):
        x, e = self.of_x(x), torch.tanh(self.of_e(edge_attr) * 2)
        for _ in range(3):
            moved, changed, _ = self.step(x, edge_index, e)
            x, e = x + moved, self.norm(e + changed)
        return self.decoder(x)


class Conv(pyg.MessagePassing):
    """A user's, which gives both."""

    def __init__(self, columns, edges, out):
        super().__init__(aggr="add")
        self.edge, self.lin = nn.Linear(2 * columns + edges, out), nn.Linear(columns, out)

    def forward(self, x, edge_index, edge_attr):
        row, col = edge_index
        edge_attr = self.edge(torch.cat([x[row], x[col], edge_attr], dim=1)).relu()
        return self.propagate(edge_index, x=self.lin(x), edge_attr=edge_attr), edge_attr

    def message(self, x_j, edge_attr):
        return x_j * edge_attr


class Convs(nn.Module):
    def __init__(self, f, c):
        super().__init__()
        self.first, self.second, self.third = Conv(f, P, H), Conv(H, H, H), pyg.GINEConv(nn.Linear(H, c), edge_dim=H)

    def forward(self, x, edge_index, edge_attr):
        x, edge_attr = self.first(x, edge_index, edge_attr)
        x, edge_attr = self.second(x.relu(), edge_index, edge_attr)
        return self.third(x, edge_index, edge_attr)


class Dropping(nn.Module):
    """In the models of its steps, of edges and of vertices, and before messages of somebody's own."""

    def __init__(self, f, c):
        super().__init__()
        self.first, self.second, self.third = meta(f, P, H), Conv(H, H, H), meta(H, H, c, "sum")
        for step in (self.first, self.third):
            step.edge_model.mlp.append(nn.Dropout(0.4))
            step.node_model.before.insert(1, nn.Dropout(0.3))
            step.node_model.behind = DropsBehind(step.node_model.behind)
        self.second.edge = DropsBehind(self.second.edge)

    def forward(self, x, edge_index, edge_attr):
        x, edge_attr, _ = self.first(x, edge_index, edge_attr)
        x, edge_attr = self.second(x.relu(), edge_index, edge_attr)
        x, _, _ = self.third(x.relu(), edge_index, edge_attr)
        return x


class DropsBehind(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, rows):
        return nn.functional.dropout(self.module(rows), 0.2, self.training)


def made(kind, problem):
    torch.manual_seed(3)
    return kind(problem.width, problem.classes).double()


@pytest.mark.long
@pytest.mark.parametrize("kind", [Metas, Processor, Convs])
def test_as_the_model_itself(kind):
    problem = problems.edge_data()
    model = made(kind, problem)
    mask, labels = torch.from_numpy(problem.masks["train"]), torch.from_numpy(problem.labels)
    x, e = torch.from_numpy(problem.features).double(), torch.from_numpy(problem.edge_features).double()
    out = model(x, problem.edge_index, e)
    loss = nn.functional.cross_entropy(out[mask], labels[mask])
    loss.backward()
    for grain, options in (((1, 1), {}), ((2, 3), {"device_memory": 250_000})):
        artifact, layers = problems.prepare(problem, *grain), hongtu.from_pyg(model)
        trainer = hongtu.Trainer(artifact, layers, dtype=torch.float64, optimizer=sgd, **options)
        torch.testing.assert_close(trainer.predict(), out.detach(), rtol=1e-9, atol=1e-9)
        assert trainer.train_epoch().loss == pytest.approx(loss.item(), rel=1e-9)
        assert trainer.record.bytes == trainer.plan.bytes
        trained = made(kind, problem)
        hongtu.to_pyg(trainer.model, trained)
        for (name, before), now in zip(model.named_parameters(), trained.parameters(), strict=True):
            expected = before.detach() - 0.3 * (0 if before.grad is None else before.grad)
            torch.testing.assert_close(now.detach(), expected, rtol=1e-9, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")


def ring():
    """Of whose edges there are as many as sources, and as destinations."""
    problem = problems.edge_data()
    vertices = np.arange(problem.num_vertices)
    edges, features = np.stack([vertices, np.roll(vertices, 1)]), problem.edge_features[: len(vertices)]
    return dataclasses.replace(problem, edges=edges, weights=None, edge_features=features, edge_type=None)


@pytest.mark.parametrize("problem", [problems.edge_data, ring])
def test_dropout_is_drawn_by_edge_and_by_vertex(problem):
    """The same losses for every cut of the graph, in a budget and on ranks."""
    problem = problem()
    model = made(Dropping, problem)

    def losses(grain, **options):
        layers = hongtu.from_pyg(copy.deepcopy(model))
        trainer = hongtu.Trainer(problems.prepare(problem, *grain), layers, dtype=torch.float64, seed=3, **options)
        return [trainer.train_epoch().loss for _ in range(3)]

    expected = losses((1, 1))
    for grain, options in (((1, 4), {}), ((2, 3), {"device_memory": 250_000}), ((4, 2), {"strategy": "paper"})):
        assert losses(grain, **options) == pytest.approx(expected, rel=1e-10), grain
    for found in run_ranks(2, lambda group: losses((4, 3), ranks=group)):
        assert found == pytest.approx(expected, rel=1e-10)


def test_refusals():
    problem = problems.edge_data()
    whole = pyg.MetaLayer(EdgeModel(6, P, H), NodeModel(6, H, H, "sum"), nn.Linear(1, 1))
    with pytest.raises(InputError, match="global_model takes all vertices and edges"):
        hongtu.from_pyg(whole)

    class Global(NodeModel):
        def forward(self, x, edge_index, edge_attr, u, batch):
            return super().forward(x - x.mean(0), edge_index, edge_attr, u, batch)

    mixing = pyg.MetaLayer(EdgeModel(6, P, H), Global(6, H, 3, "sum"))
    with pytest.raises(InputError, match=r"depends on more than its in-edges|mixes the rows"):
        hongtu.Trainer(problems.prepare(problem), hongtu.from_pyg(mixing))

    class OfEdges(EdgeModel):
        def forward(self, src, dst, edge_attr, u, batch):
            return super().forward(src, dst, edge_attr - edge_attr.mean(0), u, batch)

    mixing = pyg.MetaLayer(OfEdges(6, P, H), NodeModel(6, H, 3, "sum"))
    with pytest.raises(InputError, match=r"depends on more than its in-edges|mixes the rows"):
        hongtu.Trainer(problems.prepare(problem), hongtu.from_pyg(mixing))


class OfTheGraph(nn.Module):
    """A step that is given something of the whole graph, or another value of vertices."""

    def __init__(self, given):
        super().__init__()
        self.step, self.again, self.given = meta(6, P, H), meta(H, H, 3), given

    def forward(self, x, edge_index, edge_attr):
        x, e, _ = self.step(x, edge_index, edge_attr)
        return self.again(x, edge_index, e, u=self.given(x))[0]


@pytest.mark.parametrize("given", [lambda x: x.mean(0, keepdim=True), torch.tanh])
def test_what_a_convolution_is_given_besides_is_refused(given):
    with pytest.raises(InputError, match=r"calls again with u, and a convolution .* leave that out"):
        hongtu.Trainer(problems.prepare(problems.edge_data()), hongtu.from_pyg(OfTheGraph(given)))


OTHER_EDGES = {
    "made of rows": (
        lambda x, edges, e, training: (x, (torch.cdist(x, x) < 0.5).nonzero().T, torch.ones(5, H)),
        "in place of edges, .* made once, before hongtu.preprocess_graph",
    ),
    "left of them": (
        lambda x, edges, e, training: (x, dropout_edge(edges, training=training)[0], e),
        "drops edges that have states",
    ),
    "taken apart": (
        lambda x, edges, e, training: (x + scatter(e, edges[1], 0, dim_size=x.size(0)), edges, e),
        r"takes edges apart \(edge_index\[1\]\)",
    ),
}


@pytest.mark.parametrize("name", OTHER_EDGES)
def test_edges_that_a_forward_makes_or_removes_are_refused(name):
    class Model(Metas):
        def forward(self, x, edge_index, edge_attr):
            x, e, _ = self.steps[0](x, edge_index, edge_attr)
            return self.steps[1](*OTHER_EDGES[name][0](x, edge_index, e, self.training))[0]

    with pytest.raises(InputError, match=OTHER_EDGES[name][1]):
        hongtu.Trainer(problems.prepare(problems.edge_data()), hongtu.from_pyg(Model(6, 3)))


def test_states_of_some_edges_are_refused():
    class Model(Metas):
        def forward(self, x, edge_index, edge_attr):
            edges, mask = dropout_edge(edge_index, training=self.training)
            return self.steps[0](x, edges, edge_attr[mask])[0]

    with pytest.raises(InputError, match="edges whose values a layer updates, as a MetaLayer does, stay as they are"):
        hongtu.from_pyg(Model(P, 3))

"""Learned embeddings in place of features: exact against torch's own Embedding in front of torch_geometric's layers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

import hongtu
from hongtu import nn as hnn
from tests import problems, training
from tests.training import GRAINS, STRATEGIES

WIDTH, HIDDEN = 5, 6
MODELS = {
    "gcn": (
        lambda c: [hnn.GCNConv(WIDTH, HIDDEN, activation="relu"), hnn.GCNConv(HIDDEN, c)],
        lambda c: [pyg.GCNConv(WIDTH, HIDDEN), pyg.GCNConv(HIDDEN, c)],
    ),
    "sage": (
        lambda c: [hnn.SAGEConv(WIDTH, HIDDEN, activation="relu"), hnn.SAGEConv(HIDDEN, c)],
        lambda c: [pyg.SAGEConv(WIDTH, HIDDEN), pyg.SAGEConv(HIDDEN, c)],
    ),
    "gat": (
        lambda c: [hnn.GATConv(WIDTH, HIDDEN, activation="relu"), hnn.GATConv(HIDDEN, c)],
        lambda c: [pyg.GATConv(WIDTH, HIDDEN), pyg.GATConv(HIDDEN, c)],
    ),
}
OPTIMIZERS = {"Adam": torch.optim.Adam, "Adagrad": torch.optim.Adagrad, "SGD": torch.optim.SGD}


def artifact(grain):
    problem = problems.awkward()
    m, n = grain
    return problem, hongtu.preprocess_graph(
        problem.edges, problem.num_vertices, problems.new_path(), features=f"embedding:{WIDTH}", labels=problem.labels,
        masks=problem.masks, edge_weight=problem.weights, partitions=m, chunks=n,
    )  # fmt: skip


def reference(problem, modules, rows, make_optimizer, epochs):
    """Losses, and gradients of the embeddings, of the same model on the whole graph."""
    embedding = nn.Embedding.from_pretrained(rows.clone(), freeze=False)
    optimizers = make_optimizer(modules.parameters()), make_optimizer(embedding.parameters())
    mask = torch.from_numpy(problem.masks["train"])
    target = torch.from_numpy(problem.labels)[mask]
    weight = {} if problem.weights is None else {"edge_weight": problem.edge_weight()}
    losses, gradients = [], []
    for _ in range(epochs):
        for optimizer in optimizers:
            optimizer.zero_grad()
        h = embedding.weight
        for index, layer in enumerate(modules):
            h = layer(h, problem.edge_index, **(weight if isinstance(layer, pyg.GCNConv) else {}))
            h = h.relu() if index == 0 else h
        loss = nn.functional.cross_entropy(h[mask], target)
        loss.backward()
        losses.append(float(loss.detach()))
        gradients.append(embedding.weight.grad.clone())
        for optimizer in optimizers:
            optimizer.step()
    return losses, gradients, embedding.weight.detach()


@pytest.mark.every
@pytest.mark.parametrize("grain", GRAINS, ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", MODELS)
def test_equals_torch(name, strategy, grain):
    problem, graph = artifact(grain)
    kind = list(OPTIMIZERS.values())[(len(name) + grain[1]) % 3]
    make = lambda parameters: kind(parameters, lr=0.1)  # noqa: E731
    ours, theirs = MODELS[name]
    for budget in (None, "smallest"):
        torch.manual_seed(3)
        layers = ours(problem.classes)
        options = {"optimizer": make, "dtype": torch.float64, "strategy": strategy}
        if budget == "smallest":
            budget = training.smallest_budget(graph, lambda: ours(problem.classes), **options)
        trainer = hongtu.Trainer(graph, layers, device_memory=budget, **options)
        modules = nn.ModuleList(theirs(problem.classes)).double()
        modules.load_state_dict(trainer.model.state_dict())
        rows = trainer.embedding.ordered(trainer.embedding.weight.detach())
        losses, gradients, last = reference(problem, modules, rows, make, 3)
        for loss, gradient in zip(losses, gradients, strict=True):
            record = trainer.train_epoch()
            assert record.loss == pytest.approx(loss, rel=1e-9)
            found = trainer.gradients()["embedding.weight"]
            assert float((found - gradient).abs().max()) <= 1e-9 * float(gradient.abs().max())
            assert record.bytes == trainer.plan.bytes and record.rows == trainer.plan.rows
        assert record.arena_bytes == trainer.plan.arena_bytes
        torch.testing.assert_close(trainer.embedding.ordered(trainer.embedding.weight.detach()), last)


def test_savings_that_need_constant_features_are_off():
    _, graph = artifact((2, 3))
    plan = hongtu.Trainer(graph, MODELS["sage"][0](3)).plan
    assert not plan.passes.setup and "grad features" in plan.passes.width
    there, back = (sum(plan.bytes[link] for link in links) for links in (("load", "read"), ("flush", "write")))
    assert there > 0 and back > 0, "the rows live on the host, on whichever side of the exchange their linear map is"
    assert not plan.resident & {"features", "grad features"}


def test_first_rows_do_not_depend_on_the_partitioning_and_snapshots_hold_them(tmp_path):
    make = MODELS["gcn"][0]
    first, second = (hongtu.Trainer(artifact(grain)[1], make(3), seed=4) for grain in ((1, 1), (4, 8)))
    assert torch.equal(*(t.embedding.ordered(t.embedding.weight.detach()) for t in (first, second)))
    first.train_epoch()
    first.save(tmp_path / "snapshot.pt")
    again = hongtu.Trainer(first.artifact, make(3), seed=9)
    again.load(tmp_path / "snapshot.pt")
    assert torch.equal(again.embedding.weight, first.embedding.weight)
    assert again.train_epoch().loss == first.train_epoch().loss
    assert torch.equal(again.embedding.weight, first.embedding.weight)
    assert np.isfinite(again.evaluate()["train"])

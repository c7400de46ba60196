"""The recipes are the published models, and run."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import hongtu
from experiments.recipes import __main__ as recipes
from experiments.recipes import generated, models
from experiments.recipes.table import GRAPHS, RECIPES
from hongtu.model.wiring import as_modules
from tests import problems

PUBLISHED = {name: recipe for name, recipe in RECIPES.items() if recipe.parameters is not None}


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["recipes", *map(str, arguments)])
    return recipes.main()


@pytest.mark.parametrize("name", PUBLISHED)
def test_models_have_as_many_parameters_as_published(name):
    graph = GRAPHS[RECIPES[name].graph]
    artifact = SimpleNamespace(
        feature_width=graph.features, num_classes=graph.classes, edge_feature_width=graph.edge_features,
        num_vertices=1, masks={"train": np.zeros(1, bool)}, original_id=np.zeros(1, int), labels=np.zeros(1, int),
    )  # fmt: skip
    made = as_modules(getattr(models, RECIPES[name].run["model"].split(":")[1])(artifact))
    assert sum(p.numel() for p in made.parameters()) == RECIPES[name].parameters


@pytest.mark.long
@pytest.mark.parametrize("name", ["arxiv-linear-cs", "arxiv-gat-cs", "arxiv-propagation", "proteins-sage", "cora-gcn"])
def test_stand_ins_train(name, tmp_path, monkeypatch, capsys):
    out = tmp_path / "results.jsonl"
    assert run(monkeypatch, name, "--stand-in", "--epochs", 2, "--work", tmp_path, "--out", out) == 0
    assert f"{name} on a stand-in: test 0." in capsys.readouterr().out
    (row,) = map(json.loads, out.read_text().splitlines())
    assert 0 < row["test"][0] < 1 and row["stand_in"]


def test_what_there_is_and_what_is_missing(tmp_path, monkeypatch, capsys):
    assert run(monkeypatch) == 0 and "cora-gcn              0.815" in capsys.readouterr().out
    assert run(monkeypatch, "arxiv-gat", "--print", "arxiv") == 0
    assert 'loss = "experiments.recipes.models:of_hidden"' in capsys.readouterr().out
    assert run(monkeypatch, "arxiv-gcn", "--data", tmp_path) == 2
    assert "ogbn_arxiv: not in" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("model", ["mesh", "hgt", "sage"])
def test_generated_graphs(model, tmp_path):
    """Both sides lose the same, and hongtu's bytes are those of its plan."""
    sizes = {"scale": 4e-4, "hidden": 8, "steps": 3, "features": 6, "chunks": 6, "epochs": 1}
    options = SimpleNamespace(model=model, work=tmp_path, budget=None, **sizes)
    generated.prepare(options)
    whole, plain = generated.ours(options), generated.plain(options)
    options.budget = "90%"
    within = generated.ours(options)
    for side in (whole, within):
        assert side["losses"][0] == pytest.approx(plain["losses"][0], rel=1e-4)
    assert within["counted"] == within["predicted"] and within["device"] < whole["device"]


def test_normalized_attention_is_that_of_dense_matrices():
    problem = problems.awkward()
    artifact = problems.prepare(problem, 2, 3)
    layer = models.NormalizedGATConv(problem.width, 3, 2, mean=False, edge_drop=0.5).double()
    trainer = hongtu.Trainer(artifact, [layer], dtype=torch.float64, device_memory="64KiB")
    x = torch.from_numpy(problem.features).double()
    source, destination = torch.from_numpy(problem.edges)
    none, weights = torch.zeros(len(x), len(x), dtype=torch.float64), torch.from_numpy(problem.weights).double()
    count = none.index_put((destination, source), torch.ones_like(weights), accumulate=True)
    degree = none.index_put((destination, source), weights, accumulate=True).sum(1, keepdim=True).clamp(min=1)
    z = (layer.lin(x) / degree.sqrt()).view(-1, 2, 3)
    shares = count.unsqueeze(2) * torch.nn.functional.leaky_relu((z * layer.att).sum(2), 0.2).exp()
    shares = shares / shares.sum(1, keepdim=True).clamp(min=1e-300)
    expected = torch.einsum("dsh,shk->dhk", shares, z).flatten(1) * degree.sqrt() + layer.residual(x)
    torch.testing.assert_close(trainer.predict(), expected.detach(), rtol=1e-12, atol=1e-12)


def test_labels_that_are_asked_for_are_hidden():
    """Half of them, others in each epoch; all are shown in evaluation."""
    problem, seen = problems.awkward(), []
    artifact = problems.prepare(problem, 2, 3)

    def loss(out, target):
        seen.append((out.detach(), target))
        return models.of_hidden(out, target)

    width, classes = problem.width, problem.classes
    layers = [models.Labels(artifact), torch.nn.Linear(width + classes + 1, width + classes + 1, bias=False)]
    torch.nn.init.eye_(layers[1].weight)
    trainer = hongtu.Trainer(artifact, layers, loss=loss, optimizer=lambda p: torch.optim.SGD(p, lr=0.0))
    shown = []
    for _ in range(2):
        seen.clear()
        trainer.train_epoch()
        out, target = (torch.cat(parts) for parts in zip(*seen, strict=True))
        own = torch.nn.functional.one_hot(target, classes)
        assert torch.equal(out[:, width:-1], own * out[:, -1:])
        shown.append(out[:, -1])
        assert torch.equal(models.of_hidden(out, target) == 0, out[:, -1] == 1)
    assert 0 < shown[0].mean() < 1 and not torch.equal(*shown)
    out = trainer.predict()
    train = torch.from_numpy(problem.masks["train"])
    assert torch.equal(out[train, width:-1].argmax(1), torch.from_numpy(problem.labels)[train])
    assert not out[~train, width:-1].any()

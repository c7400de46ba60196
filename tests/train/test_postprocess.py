"""Label propagation and Correct and Smooth equal torch_geometric's on the whole graph in float64, in any budget."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from torch_geometric.nn.conv.gcn_conv import gcn_norm

import hongtu
from hongtu.cli.main import main
from hongtu.config import PreprocessConfig
from hongtu.errors import BudgetError, InputError
from hongtu.preprocess.entry import preprocess_directory
from tests import problems
from tests.training import GRAINS, STRATEGIES

EXACT = 1e-9
LAYERS = 7


def edges_and_weights(problem, normalize):
    """P of torch_geometric: edge_index, edge_weight."""
    edge_index, weight = problem.edge_index, problem.edge_weight()
    weight = torch.ones(edge_index.shape[1], dtype=torch.float64) if weight is None else weight
    if normalize == "symmetric":
        return gcn_norm(edge_index, weight, problem.num_vertices, add_self_loops=False, dtype=torch.float64)
    degree = torch.zeros(problem.num_vertices, dtype=torch.float64).index_add(0, edge_index[1], weight)
    inverse = degree.pow(-1).masked_fill(degree == 0, 0)
    end = {"source": 0, "destination": 1}.get(normalize)
    return edge_index, weight if end is None else weight * inverse[edge_index[end]]


def smallest_budget(artifact, **options):
    with pytest.raises(BudgetError) as caught:
        hongtu.Propagation(artifact, device_memory=1, **options)
    named = re.search(r"smallest that works is (\d+)", str(caught.value))
    return int(named[1])


def make(problem, grain, *, budget="smallest", columns=None, **options):
    options = {"dtype": torch.float64, "columns": columns or problem.classes} | options
    artifact = problems.prepare(problem, *grain)
    limit = smallest_budget(artifact, **options) if budget == "smallest" else budget
    return hongtu.Propagation(artifact, device_memory=limit, **options)


def assert_counted(propagation):
    plan, record = propagation.plan, propagation.record
    assert (record.bytes, record.rows) == (plan.bytes, plan.rows)
    assert record.arena_bytes == plan.arena_bytes
    if plan.workspace:  # probed where there is a budget
        assert all(record.peak_bytes[name] <= peak for name, peak in plan.peak_bytes.items())


def train_mask(problem):
    return torch.from_numpy(problem.masks["train"])


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("grain", GRAINS, ids=str)
def test_label_propagation(grain, strategy):
    for problem in (problems.awkward(), problems.directed_weighted()):
        propagation = make(problem, grain, strategy=strategy)
        y, mask = torch.from_numpy(problem.labels), train_mask(problem)
        found = hongtu.LabelPropagation(LAYERS, 0.8)(propagation, y, mask)
        edge_index, weight = edges_and_weights(problem, "symmetric")
        one_hot = torch.nn.functional.one_hot(y).double()
        expected = pyg.LabelPropagation(LAYERS, 0.8)(one_hot, edge_index, mask, weight)
        torch.testing.assert_close(found, expected, rtol=EXACT, atol=EXACT)
        assert_counted(propagation)


@pytest.mark.parametrize("normalize", ["source", "destination", "none"])
def test_other_normalisations_and_a_step_of_ones_own(normalize):
    problem = problems.directed_weighted()
    values = torch.from_numpy(np.random.default_rng(0).normal(size=(problem.num_vertices, 5)))
    fixed = torch.arange(problem.num_vertices) % 3 == 0

    def post_step(y):
        y[fixed] = values[fixed]
        return y / (1 + y.abs())

    edge_index, weight = edges_and_weights(problem, normalize)
    expected = pyg.LabelPropagation(LAYERS, 0.6)(values, edge_index, None, weight, post_step)
    for budget in ("smallest", None):
        propagation = make(problem, (2, 3), normalize=normalize, columns=5, budget=budget)
        found = hongtu.LabelPropagation(LAYERS, 0.6)(propagation, values, post_step=post_step)
        torch.testing.assert_close(found, expected, rtol=EXACT, atol=EXACT)
        assert_counted(propagation)


@pytest.mark.parametrize("autoscale", [True, False])
@pytest.mark.parametrize("grain", GRAINS, ids=str)
def test_correct_and_smooth(grain, autoscale):
    problem = problems.awkward()
    propagation = make(problem, grain)
    y, mask = torch.from_numpy(problem.labels), train_mask(problem)
    soft = torch.from_numpy(np.random.default_rng(1).normal(size=(problem.num_vertices, 3))).softmax(1)
    options = {"autoscale": autoscale, "scale": 0.7}
    ours = hongtu.CorrectAndSmooth(LAYERS, 0.9, LAYERS - 2, 0.8, **options)
    theirs = pyg.CorrectAndSmooth(LAYERS, 0.9, LAYERS - 2, 0.8, **options)
    edge_index, weight = edges_and_weights(problem, "symmetric")
    expected = theirs.correct(soft, y[mask], mask, edge_index, weight)
    torch.testing.assert_close(ours.correct(propagation, soft, y, mask), expected, rtol=EXACT, atol=EXACT)
    expected = theirs.smooth(expected, y[mask], mask, edge_index, weight)
    torch.testing.assert_close(ours(propagation, soft, y, mask), expected, rtol=EXACT, atol=EXACT)
    assert_counted(propagation)


def test_the_command(capsys):
    graph = problems.prepare(problems.awkward(), 2, 3)
    command = ["propagate", str(graph.path), "--alpha", "0.8", "--steps", "7", "--device-memory", "1MiB"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    propagation = hongtu.Propagation(graph, 3, device_memory="1MiB")
    problem = problems.awkward()
    y, mask = torch.from_numpy(problem.labels), train_mask(problem)
    hit = hongtu.LabelPropagation(7, 0.8)(propagation, y, mask).argmax(1) == y
    for split in ("val", "test"):
        assert found[split] == pytest.approx(float(hit[torch.from_numpy(problem.masks[split])].double().mean()))
    assert found["bytes"] == propagation.plan.bytes and found["steps"] == 7
    assert main(command) == 0 and f"test {found['test']:.4f}" in capsys.readouterr().out
    assert main([*command, "--alpha", "2"]) == 2
    assert "--alpha 2.0: expected 0 to 1" in capsys.readouterr().err


@pytest.mark.long
def test_ogbn_arxiv(data_graph, tmp_path):
    """The accuracies of label propagation in torch_geometric, alpha 0.868, 50 steps of A D^-1, undirected."""
    config = PreprocessConfig(
        partitions=2, chunks=16, partitioner="streaming", order="input", undirected=True, features="degree"
    )
    artifact = preprocess_directory(data_graph("ogbn-arxiv"), tmp_path / "artifact", config)
    propagation = hongtu.Propagation(artifact, 40, normalize="source", device_memory="32MiB")
    y, masks = np.empty(artifact.num_vertices, np.int64), {}
    y[artifact.original_id] = artifact.labels
    for split, mask in artifact.masks.items():
        masks[split] = np.empty(len(y), bool)
        masks[split][artifact.original_id] = mask
    out = hongtu.LabelPropagation(50, 0.868)(propagation, torch.from_numpy(y), masks["train"])
    hit = out.argmax(1).numpy() == y
    assert hit[masks["val"]].mean() == pytest.approx(0.7008, abs=0.001)
    assert hit[masks["test"]].mean() == pytest.approx(0.6834, abs=0.001)
    assert_counted(propagation)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(64, 2), None), r"expected classes int64 \(64,\) or values \(64, 3\)"),
        ((torch.full((64,), 3), None), "classes from 3 to 3, expected 0 to 2"),
        ((torch.zeros(64, 3), torch.zeros(64, dtype=torch.bool)), "expected bool .* not empty"),
        ((torch.zeros(64, 3), torch.zeros(64)), r"mask torch.float32"),
    ],
)
def test_what_is_not_labels_is_refused(arguments, message):
    propagation = make(problems.awkward(), (2, 3), budget=None)
    with pytest.raises(InputError, match=message):
        hongtu.LabelPropagation(2, 0.5)(propagation, *arguments)


@pytest.mark.parametrize("form", [lambda y: y.numpy()[:, None], lambda y: y.int()])
def test_classes_as_preprocessing_takes_them(form):
    propagation, problem = make(problems.awkward(), (2, 3), budget=None), problems.awkward()
    y, mask = torch.from_numpy(problem.labels), train_mask(problem)
    found = [hongtu.LabelPropagation(2, 0.5)(propagation, labels, mask) for labels in (y, form(y))]
    assert torch.equal(*found)


def test_ranks_do_not_propagate(monkeypatch):
    monkeypatch.setattr("hongtu.train.propagation.current", lambda: SimpleNamespace(size=2))
    with pytest.raises(InputError, match="Propagation: runs in one process, and the process group has 2; start one"):
        hongtu.Propagation(problems.prepare(problems.awkward(), 2, 3), 3)


def test_other_options_are_refused():
    for options, message in (({"normalize": "rows"}, "'rows'"), ({"columns": 0}, "at least 1")):
        with pytest.raises(InputError, match=message):
            hongtu.Propagation(problems.prepare(problems.awkward(), 2, 3), **({"columns": 3} | options))

"""Losses are exact: value and gradients equal those of the same torch loss on the whole graph in float64."""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest
import torch
from torch import nn

import hongtu
from hongtu.cli.main import main
from hongtu.errors import InputError
from hongtu.losses import LossTerm, balanced_weights
from hongtu.models import build_layers
from tests import training
from tests.training import SIX, STRATEGIES

EXACT = 1e-9
GCN, GAT = SIX[0], SIX[4]
THREE = torch.tensor([0.5, 2.0, 0.25])
FOUR = torch.tensor([0.5, 2.0, 0.25, 3.0])
TWO = torch.tensor([0.5, 3.0])


def artifact_of(problem, grain):
    config = {"task": "regression"} if problem is training.regression() else {}
    return training.prepare(problem, *grain, **config)


def on_mask(module):
    """The loss of the whole output as the torch module computes it on the train rows."""

    def loss(out, target, masks):
        exact = module.double()  # weights, too
        return exact(out[masks["train"]], target[masks["train"]])

    return loss


def whole_graph(model, problem, loss, epochs):
    modules = model.build_reference(problem)
    optimizer = training.sgd(modules.parameters())
    masks = {split: torch.from_numpy(mask) for split, mask in problem.masks.items()}
    target = torch.from_numpy(problem.labels)
    target = target.double() if target.is_floating_point() else target
    outcome = training.Outcome()
    for _ in range(epochs):
        optimizer.zero_grad()
        value = loss(model.run_reference(modules, problem), target, masks)
        value.backward()
        outcome.losses.append(float(value.detach()))
        outcome.gradients.append({name: p.grad.clone() for name, p in modules.named_parameters()})
        optimizer.step()
    return outcome


def check(loss, reference, problem, grain, *, model=GCN, epochs=2, device_memory="smallest", **options):
    options = {"optimizer": training.sgd, "dtype": torch.float64, "loss": loss} | options
    artifact = artifact_of(problem, grain)
    if device_memory == "smallest":
        device_memory = training.smallest_budget(artifact, lambda: model.build(problem), **options)
    trainer = hongtu.Trainer(artifact, model.build(problem), device_memory=device_memory, **options)
    expected = whole_graph(model, problem, reference, epochs)
    training.assert_same(training.train(trainer, epochs), expected, EXACT)
    return trainer


def modules():
    """A torch loss, and the problem whose labels it fits."""
    classes, many, numbers = training.awkward, training.multi_label, training.regression
    return {
        "class weights": (nn.CrossEntropyLoss(THREE), classes),
        "smoothing": (nn.CrossEntropyLoss(label_smoothing=0.2), classes),
        "weights and smoothing": (nn.CrossEntropyLoss(THREE, label_smoothing=0.1), classes),
        "sum of weights and smoothing": (nn.CrossEntropyLoss(THREE, label_smoothing=0.1, reduction="sum"), classes),
        "a class that does not count": (nn.CrossEntropyLoss(THREE, ignore_index=1), classes),
        "positive weights": (nn.BCEWithLogitsLoss(pos_weight=FOUR), many),
        "weights of labels": (nn.BCEWithLogitsLoss(FOUR, pos_weight=2 * FOUR, reduction="sum"), many),
        "classes with probabilities": (nn.CrossEntropyLoss(FOUR), many),
        "mse": (nn.MSELoss(), numbers),
        "sum of l1": (nn.L1Loss(reduction="sum"), numbers),
        "huber": (nn.HuberLoss(delta=0.3), numbers),
        "smooth l1": (nn.SmoothL1Loss(beta=0.4), numbers),
    }


@pytest.mark.parametrize(("k", "name"), list(enumerate(modules())))
def test_torch_losses(k, name):
    loss, problem = modules()[name]
    trainer = check(loss, on_mask(loss), problem(), (2, 3), strategy=STRATEGIES[k % 3])
    assert trainer.train_epoch().bytes == trainer.plan.bytes


@pytest.mark.parametrize("name", ["weights and smoothing", "positive weights", "huber"])
def test_torch_losses_on_many_chunks_and_on_one(name):
    loss, problem = modules()[name]
    check(loss, on_mask(loss), problem(), (4, 8))
    check(loss, on_mask(loss), problem(), (1, 1), device_memory=None, model=GAT)


@pytest.mark.parametrize("name", ["l1", "huber"])
def test_names_of_regression_losses(name):
    module = {"l1": nn.L1Loss, "huber": nn.HuberLoss}[name]()
    check(name, on_mask(module), training.regression(), (2, 3))


def entropy(out, target):
    """A loss that needs no label."""
    return -(out.log_softmax(1) * out.softmax(1)).sum(1)


@functools.cache
def vertex_weights():
    weights = np.random.default_rng(5).uniform(0, 3, training.awkward().num_vertices)
    weights[::7] = 0
    return weights


@functools.cache
def own_mask():
    return np.random.default_rng(6).random(training.awkward().num_vertices) < 0.3


def several():
    """Terms over the train mask, the validation mask and one of its own, and the same in torch."""
    weights, mask = vertex_weights(), own_mask()
    loss = [
        nn.CrossEntropyLoss(THREE, label_smoothing=0.1),
        LossTerm(entropy, weight=0.3, mask="val"),
        LossTerm("cross_entropy", weight=0.5, vertex_weight=weights),
        LossTerm(nn.CrossEntropyLoss(THREE), weight=-0.2, mask=mask, vertex_weight=weights[::-1]),
        LossTerm(entropy, weight=0.1, mask=mask),
    ]

    def weighed(out, target, chosen, weight, of_class=None):
        weight = torch.from_numpy(weight.copy())[chosen]
        losses = nn.functional.cross_entropy(out[chosen], target[chosen], reduction="none", weight=of_class)
        counts = weight if of_class is None else weight * of_class[target[chosen]]
        return (losses * weight).sum() / counts.sum()

    def reference(out, target, masks):
        train, own = masks["train"], torch.from_numpy(mask)
        first = nn.functional.cross_entropy(out[train], target[train], THREE.double(), label_smoothing=0.1)
        second = entropy(out[masks["val"]], None).mean()
        third = weighed(out, target, train, weights)
        fourth = weighed(out, target, own, weights[::-1], THREE.double())
        return first + 0.3 * second + 0.5 * third - 0.2 * fourth + 0.1 * entropy(out[own], None).mean()

    return loss, reference


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_weighted_sum_of_losses_over_masks(strategy):
    trainer = check(*several(), training.awkward(), (4, 8) if strategy == "full" else (2, 3), strategy=strategy)
    assert trainer.train_epoch().bytes == trainer.plan.bytes
    assert trainer.train_epoch().arena_bytes == trainer.plan.arena_bytes


def test_vertices_without_a_loss_are_pruned():
    """Only the union of the terms' masks counts."""
    chosen = np.zeros((2, training.awkward().num_vertices), dtype=bool)
    chosen[0, 2] = chosen[1, 40] = True
    loss = [LossTerm("cross_entropy", mask=chosen[0]), LossTerm(entropy, mask=chosen[1])]

    def reference(out, target, masks):
        return nn.functional.cross_entropy(out[[2]], target[[2]]) + entropy(out[[40]], None).mean()

    trainer = check(loss, reference, training.awkward(), (2, 3), device_memory=None)
    assert trainer.plan.choice.fields


def test_scores_of_regression():
    problem = training.regression()
    trainer = hongtu.Trainer(artifact_of(problem, (2, 3)), GCN.build(problem), loss="mse", dtype=torch.float64)
    trainer.fit(3, eval_every=3)
    found, out = trainer.evaluate(), trainer.predict().numpy()
    for split, mask in problem.masks.items():
        error, true = (out - problem.labels)[mask], problem.labels[mask].astype(np.float64)
        r2 = 1 - (error**2).sum() / ((true - true.mean(axis=0)) ** 2).sum()
        assert found[split] == pytest.approx(r2)
        assert found[f"{split}_mae"] == pytest.approx(np.abs(error).mean())
        assert found[f"{split}_rmse"] == pytest.approx(np.sqrt((error**2).mean()))


def test_balanced_weights_are_those_of_scikit_learn():
    sklearn = pytest.importorskip("sklearn.utils.class_weight")
    labels, mask = np.random.default_rng(0).integers(0, 4, 50), np.arange(50) < 40
    expected = sklearn.compute_class_weight("balanced", classes=np.arange(4), y=labels[mask])
    np.testing.assert_allclose(balanced_weights(labels, mask, 4), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("problem", "loss", "message"),
    [
        (training.awkward, "hinge", "'smooth_l1', a torch loss or a callable"),
        (training.awkward, "mse", r"one class per vertex\): use loss='cross_entropy'"),
        (training.awkward, nn.MSELoss(), "CrossEntropyLoss"),
        (training.regression, "bce_with_logits", r"numbers\): use loss='mse'"),
        (training.multi_label, "mse", r"multi-label\): use loss='bce_with_logits'"),
        (training.awkward, nn.CrossEntropyLoss(FOUR), "weight has 4 numbers.* 3 columns"),
        (training.awkward, [], "list of 0 losses"),
        (training.awkward, 3, "LossTerm or a list"),
        (training.awkward, LossTerm("cross_entropy", mask="valid"), "mask 'valid'"),
        (training.awkward, LossTerm("cross_entropy", mask=np.ones(3, bool)), r"bool \(64,\)"),
        (training.awkward, LossTerm("cross_entropy", mask=np.zeros(64, bool)), "empty"),
        (training.awkward, LossTerm("cross_entropy", vertex_weight=-np.ones(64)), "at least 0"),
        (training.awkward, LossTerm("cross_entropy", vertex_weight=np.zeros(64)), "add up to 0"),
    ],
)
def test_wrong_losses_are_refused(problem, loss, message):
    problem = problem()
    with pytest.raises(InputError, match=message):
        hongtu.Trainer(artifact_of(problem, (2, 3)), GCN.build(problem), loss=loss)


def test_a_mask_over_vertices_without_a_label_is_refused():
    problem = training.awkward()
    labels = np.where(np.arange(64) == 9, -1, problem.labels)
    masks = {"train": np.arange(64) == 3}
    artifact = hongtu.preprocess_graph(
        problem.edges, 64, training.new_path(), features=problem.features, labels=labels, masks=masks, chunks=2
    )
    with pytest.raises(InputError, match=r"vertex 9 \(and 0 more\) without a label"):
        hongtu.Trainer(artifact, GCN.build(problem), loss=LossTerm("cross_entropy", mask=np.arange(64) < 12))


def train(graph, capsys, *arguments):
    """``hongtu train --json`` on an artifact: exit code, what it printed, what it said."""
    code = main(["train", str(graph.path), "--hidden", "5", "--epochs", "2", "--json", *arguments])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else None, err


def test_the_command_weighs_classes(capsys):
    problem = training.awkward()
    graph = training.prepare(problem, 2, 3)
    arguments = ["--class-weights", "balanced", "--label-smoothing", "0.1", "--clip-grad-norm", "0.01"]
    _, found, _ = train(graph, capsys, *arguments)
    torch.manual_seed(0)
    weight = balanced_weights(problem.labels, problem.masks["train"], 3)
    loss = nn.CrossEntropyLoss(weight, label_smoothing=0.1)
    trainer = hongtu.Trainer(graph, build_layers("gcn", 6, 5, 3, 2), loss=loss, clip_grad_norm=0.01)
    assert found["loss"] == trainer.fit(2)[-1].loss


def test_the_command_regresses(capsys):
    graph = artifact_of(training.regression(), (2, 3))
    code, found, _ = train(graph, capsys, "--loss", "huber")
    assert code == 0 and found["val_rmse"] > 0 and found["train"] < 1
    code, _, err = train(graph, capsys, "--class-weights", "balanced")
    assert code == 2 and "one class per vertex" in err and err.count("\n") == 1

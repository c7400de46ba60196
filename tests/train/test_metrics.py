"""Named metrics are scikit-learn's, written out by hand: of one output, of two classes, of labels with holes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import hongtu
from hongtu import nn as hnn
from hongtu.errors import InputError
from hongtu.ranks.together import Alone
from hongtu.train import evaluators
from hongtu.train.evaluators import Evaluation, accuracy, auc, f1, macro_f1, scores
from tests import problems
from tests.training import sgd

RNG = np.random.default_rng(4)


def f1_of(chosen, true):
    hits = (chosen & true).sum()
    return 2 * hits / max(chosen.sum() + true.sum(), 1)


def auc_of(score, true):
    """The share of pairs in the right order; equal ones count half."""
    pairs = score[true][:, None] - score[~true][None]
    return ((pairs > 0) + 0.5 * (pairs == 0)).mean()


@pytest.mark.parametrize("columns", [1, 2])
def test_two_classes(columns):
    """F1 is that of class 1, as scikit-learn's default is; one column is a logit, two are compared."""
    out, target = RNG.normal(size=(50, columns)).round(1), RNG.random(50) < 0.3
    chosen = out[:, 0] > 0 if columns == 1 else out[:, 1] > out[:, 0]
    given = torch.from_numpy(out), torch.from_numpy(target).long()
    assert accuracy(*given) == pytest.approx((chosen == target).mean())
    assert f1(*given) == pytest.approx(f1_of(chosen, target))
    assert macro_f1(*given) == pytest.approx((f1_of(chosen, target) + f1_of(~chosen, ~target)) / 2)
    assert auc(*given) == pytest.approx(auc_of(out[:, 0] if columns == 1 else out[:, 1] - out[:, 0], target))
    default = scores(*given, {"val": torch.ones(50, dtype=torch.bool)}, "multiclass")
    assert default == {"val": accuracy(*given)}


def test_classes_that_are_neither_there_nor_chosen():
    """scikit-learn's macro average leaves them out: such as a label that no mask holds."""
    out, target = torch.eye(5)[[0, 0, 1, 1, 4]], torch.tensor([0, 1, 1, 1, 4])
    assert macro_f1(out, target) == pytest.approx(np.mean([2 / 3, 4 / 5, 1]))
    assert f1(out, target) == accuracy(out, target) == pytest.approx(4 / 5)


def test_many_labels_with_holes():
    out, true = RNG.normal(size=(60, 4)).round(1), RNG.random((60, 4)) < 0.4
    known = RNG.random((60, 4)) < 0.7
    target = torch.from_numpy(np.where(known, true, np.nan).astype(np.float32))
    given = torch.from_numpy(out), target
    chosen = out > 0
    assert accuracy(*given) == pytest.approx((chosen == true)[known].mean())
    assert f1(*given) == pytest.approx(f1_of(chosen[known], true[known]))
    columns = [(out[known[:, k], k], true[known[:, k], k]) for k in range(4)]
    assert macro_f1(*given) == pytest.approx(np.mean([f1_of(score > 0, is_true) for score, is_true in columns]))
    assert auc(*given) == pytest.approx(np.mean([auc_of(*column) for column in columns]))
    default = scores(*given, {"val": torch.ones(60, dtype=torch.bool)}, "multilabel")
    assert default == {"val": pytest.approx(f1(*given))}


def test_numbers_with_holes():
    """R2, MAE and RMSE over the numbers that are there, around each column's mean."""
    out, true = RNG.normal(size=(2, 60, 3))
    known = RNG.random((60, 3)) < 0.6
    target = torch.from_numpy(np.where(known, true, np.nan))
    found = scores(torch.from_numpy(out), target, {"val": torch.ones(60, dtype=torch.bool)}, "regression")
    error = (out - true)[known]
    far = sum(((true[known[:, k], k] - true[known[:, k], k].mean()) ** 2).sum() for k in range(3))
    assert found["val"] == pytest.approx(1 - (error**2).sum() / far)
    assert found["val_mae"] == pytest.approx(np.abs(error).mean())
    assert found["val_rmse"] == pytest.approx(np.sqrt((error**2).mean()))


@pytest.mark.parametrize("metric", [None, "accuracy", "f1", "macro-f1"])
@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
def test_the_threshold_of_probabilities(task, metric):
    logits = torch.from_numpy(RNG.normal(size=(30, 1 if task == "multiclass" else 3)))
    target = torch.from_numpy((RNG.random(logits.shape) < 0.4).astype(np.float32))
    target = target[:, 0].long() if task == "multiclass" else target
    masks = {"val": torch.ones(30, dtype=torch.bool)}
    of_logits, of_probabilities = Evaluation(metric, task), Evaluation(metric, task)
    of_probabilities.threshold = 0.5
    expected = of_logits(logits, target, masks, Alone())
    assert of_probabilities(logits.sigmoid(), target, masks, Alone()) == expected
    assert of_logits(logits.sigmoid(), target, masks, Alone()) != expected


def test_a_model_of_probabilities():
    """With BCELoss a yes is above one half, for multi-label and for one output of two classes."""
    problem = problems.multi_label()
    trainer = hongtu.Trainer(
        problems.prepare(problem, 2, 3), [hnn.GCNConv(6, 4), nn.Sigmoid()], loss=nn.BCELoss(), optimizer=sgd,
        dtype=torch.float64,
    )  # fmt: skip
    trainer.fit(2)
    out, mask = trainer.predict().numpy(), problem.masks["val"]
    assert trainer.evaluate()["val"] == pytest.approx(f1_of(out[mask] > 0.5, problem.labels[mask] > 0.5))


@pytest.mark.parametrize("task", [None, "regression"])
def test_training_on_targets_with_holes(task):
    """The loss over those that are there, whatever the chunks, the budget and the strategy; and the scores."""
    problem = problems.multi_label() if task is None else problems.regression()
    labels = problem.labels.copy()
    labels[np.random.default_rng(2).random(labels.shape) < 0.3] = np.nan
    masks = {split: mask & ~np.isnan(labels).all(axis=1) for split, mask in problem.masks.items()}
    loss = nn.BCEWithLogitsLoss() if task is None else nn.MSELoss()
    target = torch.from_numpy(labels).double()
    known = ~target.isnan()
    for grain, options in (((1, 1), {}), ((2, 3), {"strategy": "paper"}), ((2, 3), {})):
        artifact = hongtu.preprocess_graph(
            problem.edges, problem.num_vertices, problems.new_path(), features=problem.features, labels=labels,
            edge_weight=problem.weights, masks=masks, task=task, partitions=grain[0], chunks=grain[1],
        )  # fmt: skip
        torch.manual_seed(0)
        layers = [hnn.GCNConv(6, labels.shape[1])]
        trainer = hongtu.Trainer(artifact, layers, loss=loss, dtype=torch.float64, optimizer=sgd, **options)
        out = trainer.predict()
        for split, mask in masks.items():
            chosen = known & torch.from_numpy(mask).unsqueeze(1)
            if split == "train":
                expected = float(loss(out[chosen], target[chosen]))
            elif task is None:
                score = f1_of((out[chosen] > 0).numpy(), (target[chosen] > 0.5).numpy())
                assert trainer.evaluate()[split] == pytest.approx(score)
            else:
                assert trainer.evaluate()[f"{split}_mae"] == pytest.approx(float((out - target)[chosen].abs().mean()))
        assert trainer.train_epoch().loss == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("columns", (1, 4))
@pytest.mark.parametrize("splits", ((), ("train",), ("train", "val", "test")))
def test_a_large_output_is_read_where_splits_have_vertices(columns, splits, monkeypatch):
    draw = torch.Generator().manual_seed(0)
    out, labels = torch.randn(500, columns, generator=draw), torch.randint(max(columns, 2), (500,), generator=draw)
    masks = {split: torch.rand(500, generator=draw) < 0.3 for split in splits}
    expected = scores(out, labels, masks, "multiclass")
    monkeypatch.setattr(evaluators, "AT_ONCE", 64)
    choose, read = evaluators._chosen_class, []
    monkeypatch.setattr(evaluators, "_chosen_class", lambda out, above: read.append(len(out)) or choose(out, above))
    outside = torch.ones(500, dtype=torch.bool)
    for mask in masks.values():
        outside &= ~mask
    out[outside] = torch.nan
    assert scores(out, labels, masks, "multiclass") == expected
    assert not splits or (sum(read) == int((~outside).sum()) and max(read) * columns <= 64)


@pytest.mark.parametrize("task", ["multilabel", "regression"])
@pytest.mark.parametrize("metric", [
    nn.BCEWithLogitsLoss(), nn.functional.binary_cross_entropy_with_logits, nn.MSELoss(reduction="sum"), nn.HuberLoss(),
])  # fmt: skip
def test_losses_of_torch_get_targets_in_their_own_kind_of_numbers(metric, task):
    """Also where all are 0 or 1, which metrics of multi-label tasks take as integers."""
    out, target = torch.from_numpy(RNG.normal(size=(20, 3))), torch.from_numpy(RNG.integers(0, 2, (20, 3))).double()
    found = Evaluation(metric, task)(out, target, {"val": torch.ones(20, dtype=torch.bool)}, Alone())
    assert found == {"val": pytest.approx(float(metric(out, target)))}


def dice(out, target):  # as those of torchmetrics do
    if out.shape != target.shape or target.is_floating_point():
        raise ValueError("Predictions and targets are expected to have the same shape, and targets to be integers")
    return 2 * ((out > 0) & (target > 0)).sum() / ((out > 0).sum() + target.sum())


@pytest.mark.parametrize("metric, columns, remedy", [
    (dice, 1, r"float64 \(20, 1\) and targets int64 \(20,\); .* lambda out, target: metric\(out\[:, 0\], target\)"),
    (lambda out, target: out[:, 3].mean(), 2, r"float64 \(20, 2\) and targets int64 \(20,\); .* in a function"),
    (lambda out, target: out + target.view(3, 7), 2, r"metric: shape .* called with outputs"),
    (lambda out, target: target.score(), 2, r"no attribute 'score'; it is called with outputs"),
])  # fmt: skip
def test_metrics_that_fail(metric, columns, remedy):
    """What they are called with is said, and bringing it to their form mends that."""
    given = torch.from_numpy(RNG.normal(size=(20, columns))), torch.from_numpy(RNG.integers(0, 2, 20))
    masks = {"val": torch.ones(20, dtype=torch.bool)}
    with pytest.raises(InputError, match=remedy):
        Evaluation(metric, "multiclass")(*given, masks, Alone())
    if columns == 1:
        mended = Evaluation(lambda out, target: metric(out[:, 0], target), "multiclass")(*given, masks, Alone())
        assert mended["val"] == pytest.approx(f1_of((given[0][:, 0] > 0).numpy(), given[1].numpy() > 0))


class Both(dict):
    """As a MetricCollection: it gives what each of its metrics gives."""

    def __call__(self, out, target):
        return {name: metric(out, target) for name, metric in self.items()}


@pytest.mark.parametrize("metrics", [{"a": f1, "b": auc}, {"only": accuracy}, {"dice": dice, "f1": macro_f1}])
def test_metrics_that_give_several(metrics):
    given = torch.from_numpy(RNG.normal(size=(20, 3))), torch.from_numpy(RNG.integers(0, 2, (20, 3)))
    masks = {"val": torch.ones(20, dtype=torch.bool)}
    both = Both(metrics)
    with pytest.raises(InputError, match=r"expected one number \(several are .* dict\(metric\) of a MetricCollection"):
        Evaluation(lambda out, target: both(out, target), "multilabel")(*given, masks, Alone())
    found = Evaluation(dict(both), "multilabel")(*given, masks, Alone())
    assert [*found.values()] == [pytest.approx(float(metric(*given))) for metric in metrics.values()]

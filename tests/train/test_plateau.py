"""ReduceLROnPlateau and ``patience`` look at what their direction means: a score that grows, or a loss that falls."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
import torchmetrics
from torch import nn
from torch.optim import lr_scheduler

import hongtu
from hongtu import nn as hnn
from hongtu.errors import InputError
from hongtu.train.evaluators import Evaluation
from tests import problems
from tests.trainers import artifact, gcn

WEIGHT = torch.tensor([1.0, 5.0, 0.2])


class Seen(lr_scheduler.ReduceLROnPlateau):
    """Remembers what it was stepped with."""

    def step(self, metrics, epoch=None):
        self.seen = [*getattr(self, "seen", []), metrics]
        super().step(metrics, epoch)


def make(mode, **options):
    return hongtu.Trainer(artifact(), gcn(), scheduler=lambda o: Seen(o, mode=mode), dtype=torch.float64, **options)


def entropy(out, target):
    return -(out.log_softmax(1) * out.softmax(1)).sum(1)


@pytest.mark.parametrize(
    ("loss", "whole"),
    [
        ("cross_entropy", nn.CrossEntropyLoss()),
        (nn.CrossEntropyLoss(WEIGHT, label_smoothing=0.1), nn.CrossEntropyLoss(WEIGHT.double(), label_smoothing=0.1)),
        (nn.CrossEntropyLoss(reduction="sum"), nn.CrossEntropyLoss(reduction="sum")),
        ([hongtu.LossTerm(nn.CrossEntropyLoss(), weight=2.0), hongtu.LossTerm(entropy, mask="val")],
         lambda out, y: 2 * nn.functional.cross_entropy(out, y)),
    ],
)  # fmt: skip
def test_mode_min_is_stepped_with_the_validation_loss(loss, whole):
    """What ``scheduler.step(criterion(out[val_mask], y[val_mask]))`` of a script is given."""
    trainer, problem = make("min", loss=loss), problems.awkward()
    mask, expected = torch.from_numpy(problem.masks["val"]), []

    def see(record):
        if record.metrics:
            out, y = trainer.predict()[mask], torch.from_numpy(problem.labels)[mask]
            expected.append(float(whole(out, y)))

    records = trainer.fit(4, eval_every=2, on_epoch=see)
    assert trainer.scheduler.seen == pytest.approx(expected, rel=1e-12) and len(expected) == 2
    assert [record.metrics["val_loss"] for record in records if record.metrics] == trainer.scheduler.seen


@pytest.mark.parametrize(
    ("mode", "metric", "key"),
    [
        ("max", None, "val"),
        ("max", "auc", "val"),
        ("min", nn.CrossEntropyLoss(), "val"),
        ("min", "macro-f1", "val_loss"),
    ],
)
def test_a_score_is_given_to_the_mode_of_its_direction(mode, metric, key):
    trainer = make(mode, metric=metric)
    records = trainer.fit(2, eval_every=1)
    assert trainer.scheduler.seen == [record.metrics[key] for record in records]


def test_the_rate_stays_while_the_validation_loss_falls():
    rates = {}
    for mode in ("min", "max"):
        trainer = hongtu.Trainer(
            artifact(), gcn(), scheduler=lambda o, mode=mode: lr_scheduler.ReduceLROnPlateau(o, mode=mode, patience=2)
        )
        scores = iter([0.1 * k for k in range(12)])
        trainer.evaluate = lambda scores=scores: {"val": (x := next(scores)), "val_loss": 2 - x}
        trainer.fit(12, eval_every=1)
        rates[mode] = trainer.optimizer.param_groups[0]["lr"]
    assert rates == {"min": 0.01, "max": 0.01}


@pytest.mark.parametrize("options", [{}, {"eval_every": 1}])
def test_without_a_validation_score_only_mode_min_has_something(options):
    """The training loss, in every epoch."""
    problem = problems.awkward()
    given = artifact()
    if options:
        masks = {"train": problem.masks["train"]}
        given = hongtu.preprocess_graph(
            problem.edges, 64, problems.new_path(), features=problem.features, labels=problem.labels, masks=masks
        )
    for mode in ("min", "max"):
        trainer = hongtu.Trainer(given, gcn(), scheduler=lambda o, mode=mode: Seen(o, mode=mode))
        if mode == "max":
            with pytest.raises(InputError, match=r"mode='max', and fit has no validation score.*eval_every=1"):
                trainer.fit(2, **options)
            assert trainer.epoch == 0
        else:
            records = trainer.fit(2, **options)
            assert trainer.scheduler.seen == [record.loss for record in records]


def test_a_mode_against_the_scores_direction_is_refused():
    with pytest.raises(InputError, match=r"the better the smaller it is; make it with mode='min'"):
        make("max", metric=nn.CrossEntropyLoss()).fit(2, eval_every=1)
    links = hongtu.LinkLoss(edges=[[0, 1], [1, 2]], val_edges=[[2], [3]])
    with pytest.raises(InputError, match=r"the better the higher it is; make it with mode='max'"):
        make("min", loss=links).fit(2, eval_every=1)


def test_a_scheduler_that_fit_cannot_step_is_refused():
    own = type("Own", (), {"step": lambda self, score: None})()
    with pytest.raises(InputError, match="step of a Own takes arguments, and fit gives none"):
        hongtu.Trainer(artifact(), gcn(), scheduler=lambda o: own)


def mean_squared_error(y_true, y_pred):
    """As scikit-learn calls it."""
    return float(((y_true - y_pred) ** 2).mean())


def rmse(out, target):
    return float((out - target).square().mean().sqrt())


class Lower:
    higher_is_better = False

    def __call__(self, out, target):
        return rmse(out, target)


@pytest.mark.parametrize(
    ("metric", "higher"),
    [
        (None, True), ("auc", True), (nn.MSELoss(), False), (nn.functional.l1_loss, False), (rmse, False),
        (functools.partial(nn.functional.huber_loss, delta=0.5), False), (Lower(), False),
        ({"mae": Lower().__call__}, False),
        (lambda out, target: 1.0, True), ({"acc": lambda out, target: 1.0, "rmse": rmse}, True),
        (mean_squared_error, False), (torchmetrics.MeanSquaredError(), False), (torchmetrics.R2Score(), True),
    ],
)  # fmt: skip
def test_directions(metric, higher):
    assert Evaluation(metric, "multilabel").higher_is_better is higher


def test_the_best_epoch_of_an_error_is_that_of_the_least(tmp_path):
    """``patience`` and ``restore_best`` under a metric that falls."""
    problem = problems.regression()
    trainer = hongtu.Trainer(problems.prepare(problem, 2, 3), [hnn.GCNConv(6, 2)], loss="mse", metric=rmse)
    real, weights = iter([3.0, 1.0, 2.0, 2.5, 0.5]), []
    trainer.evaluate = lambda: {"val": next(real)}
    see = lambda record: weights.append(trainer.model[0].lin.weight.detach().clone())  # noqa: E731
    records = trainer.fit(9, eval_every=1, patience=2, restore_best=True, on_epoch=see)
    assert len(records) == 4 and torch.equal(trainer.model[0].lin.weight, weights[1])


@pytest.mark.parametrize("before", (0, 3))
def test_a_cycle_that_ends_before_the_last_epoch_is_refused(before):
    def cycle(optimizer):
        return lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=5)

    trainer = hongtu.Trainer(artifact(), gcn(), scheduler=cycle)
    for _ in range(before // 3):
        trainer.fit(3)
    with pytest.raises(InputError, match=r"total_steps=5, and fit .* 6 times in all; make it with total_steps=6, or"):
        trainer.fit(6 - before)
    assert trainer.epoch == before
    assert len(trainer.fit(5 - before)) == 5 - before


def test_a_validation_loss_over_nothing_is_nan_as_torch_has_it():
    problem = problems.awkward()
    weight = np.where(problem.masks["val"], 0.0, 1.0)
    trainer = make("min", loss=hongtu.LossTerm("cross_entropy", vertex_weight=weight))
    trainer.fit(2, eval_every=1)
    assert np.isnan(trainer.scheduler.seen).all() and len(trainer.scheduler.seen) == 2
    refused = hongtu.LossTerm("cross_entropy", vertex_weight=weight, mask="val")
    with pytest.raises(InputError, match="weights of the vertices in its mask add up to 0"):
        make("min", loss=refused)

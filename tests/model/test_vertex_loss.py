"""Losses are exact: value and gradients equal those of the same torch loss on the whole graph in float64."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import hongtu
from hongtu.cli.main import main
from hongtu.errors import InputError
from hongtu.model.loss_terms import LossTerm, balanced_weights, check_alone
from hongtu.model.named import build_layers
from hongtu.model.random_state import draws_since, random_state, seed_generators
from tests import additions, problems
from tests.models import SIX
from tests.training import STRATEGIES, check

GCN = SIX[0]
LEARNED = nn.Parameter(torch.ones(4, 3))


def of_names(name, module):
    """The model whose loss is a name, and the torch module that it stands for."""
    return additions.with_loss(name, name, additions.masked(module))


@pytest.mark.long
@pytest.mark.parametrize(("k", "name"), list(enumerate(additions.LOSSES)))
def test_torch_losses(k, name):
    """Each alone; together they are on the whole grid of ``test_additions``."""
    loss, problem = additions.LOSSES[name]
    model = additions.with_loss(name, loss, additions.masked(loss))
    check(model, problem(), (2, 3), epochs=2, strategy=STRATEGIES[k % 3], device_memory="smallest")


@pytest.mark.parametrize("name", ["l1", "huber"])
def test_names_of_regression_losses(name):
    module = {"l1": nn.L1Loss, "huber": nn.HuberLoss}[name]()
    check(of_names(name, module), problems.regression(), (2, 3), epochs=2)


def test_vertices_without_a_loss_are_pruned():
    """Only the union of the terms' masks counts."""
    chosen = np.zeros((2, problems.awkward().num_vertices), dtype=bool)
    chosen[0, 2] = chosen[1, 40] = True
    loss = [LossTerm("cross_entropy", mask=chosen[0]), LossTerm(additions.entropy, mask=chosen[1])]

    def whole(out, problem, epoch):
        target = torch.from_numpy(problem.labels)
        return nn.functional.cross_entropy(out[[2]], target[[2]]) + additions.entropy(out[[40]], None).mean()

    trainer = check(additions.with_loss("two", loss, whole), problems.awkward(), (2, 3), epochs=2)
    assert trainer.plan.choice.fields


def test_scores_of_regression():
    problem = problems.regression()
    trainer = hongtu.Trainer(problems.prepare(problem, 2, 3), GCN.build(problem), loss="mse", dtype=torch.float64)
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
        (problems.awkward, "hinge", "'smooth_l1', a torch loss or a callable"),
        (problems.awkward, "mse", r"one class per vertex\): use loss='cross_entropy'"),
        (problems.awkward, nn.MSELoss(), "CrossEntropyLoss"),
        (problems.regression, "bce_with_logits", r"numbers\): use loss='mse'"),
        (problems.multi_label, "mse", r"multi-label\): use loss='bce_with_logits'"),
        (problems.awkward, nn.CrossEntropyLoss(additions.FOUR), "weight has 4 numbers.* 3 columns"),
        (problems.awkward, [], "list of 0 losses"),
        (problems.awkward, 3, "LossTerm or a list"),
        (problems.awkward, LossTerm("cross_entropy", mask="valid"), "mask 'valid'"),
        (problems.awkward, LossTerm("cross_entropy", mask=np.ones(3, bool)), r"bool \(64,\)"),
        (problems.awkward, LossTerm("cross_entropy", mask=np.zeros(64, bool)), "empty"),
        (problems.awkward, LossTerm("cross_entropy", vertex_weight=-np.ones(64)), "at least 0"),
        (problems.awkward, LossTerm("cross_entropy", vertex_weight=np.zeros(64)), "add up to 0"),
        (
            problems.awkward,
            lambda o, t: o.square().sum(1) + LEARNED.square().sum(),
            r"of shape \(4, 3\), .*weight_decay",
        ),
        (problems.multi_label, lambda o, t: o.square().sum(1) * LEARNED.exp()[0, 0], "a module of the model trains"),
    ],
)
def test_wrong_losses_are_refused(problem, loss, message):
    problem = problem()
    with pytest.raises(InputError, match=message):
        hongtu.Trainer(problems.prepare(problem, 2, 3), GCN.build(problem), loss=loss)


def one_column():
    problem = problems.regression()
    return replace(problem, labels=problem.labels[:, :1])


@pytest.mark.parametrize(
    ("loss", "message", "mended"),
    [
        (
            lambda out, target: (out.view(-1) - target).square(),
            r"\(\d+, 1\) it gives (\d+) x \1; .*out.view\(-1\) and target.view\(-1\)",
            lambda out, target: (out.view(-1) - target.view(-1)).square(),
        ),
        (
            lambda out, target: functional.mse_loss(out.squeeze(), target.squeeze(), reduction="none"),
            r"of one row, .* returns shape \(\), .*as out.squeeze\(1\)",
            lambda out, target: functional.mse_loss(out.squeeze(1), target.squeeze(1), reduction="none"),
        ),
        (
            lambda out, target: functional.binary_cross_entropy_with_logits(
                out.squeeze(), target[:, 0], reduction="none"
            ),
            r"of one row, .* fails \(Target size .*as out.squeeze\(1\)",
            lambda out, target: functional.binary_cross_entropy_with_logits(
                out.squeeze(1), target[:, 0], reduction="none"
            ),
        ),
    ],
)
def test_dimensions_that_a_loss_spreads_or_loses_are_named(loss, message, mended):
    problem = one_column()
    artifact, layers = problems.prepare(problem, 2, 3), [hongtu.nn.GCNConv(problem.features.shape[1], 1)]
    with pytest.raises(InputError, match=message):
        hongtu.Trainer(artifact, layers, loss=loss)
    assert hongtu.Trainer(artifact, layers, loss=mended).train_epoch().loss > 0


def centred(out, target):
    return nn.functional.cross_entropy(out - out.mean(0), target, reduction="none")


def per_chunk(out, target):
    return nn.functional.cross_entropy(out, target, reduction="none") / len(target)


def noisy(out, target):
    return nn.functional.cross_entropy(nn.functional.dropout(out), target, reduction="none")


def hard(out, target):
    losses = nn.functional.cross_entropy(out, target, reduction="none")
    return losses * (losses > losses.mean())


def near_own_class(out, target):
    centres = torch.stack([out[target == k].mean(0) if bool((target == k).any()) else out[0] * 0 for k in range(3)])
    return (out - centres[target]).square().sum(1)


def weighed_by_place(out, target):
    return nn.functional.cross_entropy(out, target, reduction="none") * torch.arange(40)[: len(out)]


@pytest.mark.parametrize(
    "loss",
    [
        centred,
        [LossTerm("cross_entropy"), LossTerm(per_chunk, mask="val")],
        hard,
        near_own_class,
        weighed_by_place,
    ],
)
def test_losses_that_mix_vertices_are_refused(loss):
    problem = problems.awkward()
    with pytest.raises(InputError, match=r"loss \w+: mixes the rows"):
        hongtu.Trainer(problems.prepare(problem, 2, 3), GCN.build(problem), loss=loss)


class Growing(nn.Module):
    calls = 0

    def forward(self, out, target):
        self.calls += 1
        return nn.functional.cross_entropy(out, target, reduction="none") * self.calls


class Moving(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, out, target):
        self.mean = self.mean * 0.9 + out.detach().mean(0) * 0.1
        return nn.functional.cross_entropy(out - self.mean, target, reduction="none")


@pytest.mark.parametrize("loss", [Growing, Moving])
def test_losses_that_change_with_their_calls_are_refused(loss):
    problem = problems.awkward()
    with pytest.raises(InputError, match="gives something else when it is called again"):
        hongtu.Trainer(problems.prepare(problem, 2, 3), GCN.build(problem), loss=loss())


def smooth(make):
    """A loss that has what is made of rows so many places away beside it."""
    return lambda lag: (
        lambda out, target: functional.cross_entropy(out, target, reduction="none") + make(out, target, lag)
    )


@pytest.mark.parametrize("lag", [7, 10, 24, 98, 2000])
@pytest.mark.parametrize(
    "loss",
    [
        smooth(lambda out, target, lag: (out - torch.cat([out[:lag], out[:-lag]])).square().mean(1)),
        smooth(lambda out, target, lag: (out - out.roll(lag, 0)).square().mean(1)),
        smooth(lambda out, target, lag: (target == target.roll(lag, 0)) * out[:, 0]),
        smooth(lambda out, target, lag: out[:, 0] / (1 + (torch.arange(len(out)) % lag).bincount()[0])),
        smooth(lambda out, target, lag: (out[:, 0] - out[:, 0].roll(lag, 0)).detach() * 0.1),
    ],
)
def test_losses_of_rows_that_are_far_away_are_refused(loss, lag):
    with pytest.raises(InputError, match="mixes the rows that it is given"):
        check_alone("loss", loss(lag), torch.eye(7, 3), torch.arange(7) % 3)


def scaled(draw):
    return lambda out, target: functional.cross_entropy(out, target, reduction="none") * draw(out)


@pytest.mark.parametrize(
    "draw",
    [
        lambda out: np.random.rand(),
        lambda out: random.random(),
        lambda out: float(np.random.rand(1)[0]) + torch.from_numpy(np.random.rand(len(out))).to(out.dtype),
        lambda out: random.choice([0.5, 2.0]),
        lambda out: torch.rand(1),
        lambda out: torch.rand(len(out)) * np.random.rand(),
        lambda out: torch.randn_like(out[:, 0]) + random.random(),
        lambda out: torch.bernoulli(torch.full((len(out),), 0.5)) * random.choice([0.5, 2.0, 3.0]),
        lambda out: functional.dropout(out[:, 0], 0.5) * float(np.random.beta(1, 1)),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_numbers_that_all_rows_of_a_loss_share_are_refused(draw, seed):
    seed_generators(seed)
    with pytest.raises(InputError, match="draws random numbers that are not those of one row"):
        check_alone("loss", scaled(draw), torch.eye(7, 3), torch.arange(7) % 3)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("beside", [0.0, 1.0])
def test_permuted_rows_are_refused_whatever_is_drawn(beside, seed):
    def mixed(out, target):
        own = functional.cross_entropy(out, target, reduction="none")
        return beside * own + functional.cross_entropy(out, target[torch.randperm(len(out))], reduction="none")

    torch.manual_seed(seed)
    with pytest.raises(InputError, match=r"mixes the rows.*at random, as by torch\.randperm"):
        check_alone("loss", mixed, torch.eye(7, 3), torch.arange(7) % 3)


CHOICES = {
    "order": lambda count: torch.randperm(count),
    "first of an order": lambda count: torch.randperm(count)[:4],
    "again and again": lambda count: torch.randint(count, (5,)),
    "mask": lambda count: torch.rand(count) < 0.5,
    "numpy": lambda count: torch.from_numpy(np.random.choice(count, 4)),
    "Python": lambda count: random.sample(range(count), 3),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_vertices_chosen_at_random_are_named_so(choice):
    problem = problems.awkward()
    artifact = problems.prepare(problem, 2, 3)

    def loss(out, target):
        chosen = CHOICES[choice](len(out))
        return functional.cross_entropy(out[chosen], target[chosen])

    before = random_state()
    with pytest.raises(InputError, match=r"rows that it chooses or orders at random, .*; draw a number for each"):
        hongtu.Trainer(artifact, GCN.build(problem), loss=loss)
    assert not draws_since(before)


DRAWN = {
    "dropout": lambda out: functional.dropout(out, 0.3),
    "noise": lambda out: out + 0.1 * torch.randn_like(out),
    "gumbel": lambda out: functional.gumbel_softmax(out),
}


@pytest.mark.parametrize("drawn", DRAWN)
def test_a_mean_of_what_is_drawn_is_asked_for_losses_of_vertices(drawn):
    """No vertex is chosen there: without a mean it is taken, as the message says first."""
    problem = problems.awkward()
    artifact = problems.prepare(problem, 2, 3)

    def loss(out, target, reduction="mean"):
        return functional.cross_entropy(DRAWN[drawn](out), target, reduction=reduction)

    with pytest.raises(InputError, match=r"\(\), expected .*; return losses per vertex, .* of reduction='none'"):
        hongtu.Trainer(artifact, GCN.build(problem), loss=loss)
    hongtu.Trainer(artifact, GCN.build(problem), loss=partial(loss, reduction="none")).train_epoch()


def test_a_number_for_each_vertex_takes_half_of_them():
    """As the message for those that are chosen at random advises: what is expected is the loss of all."""
    problem = problems.awkward()
    artifact = problems.prepare(problem, 2, 3)

    def loss(out, target):
        losses = functional.cross_entropy(out, target, reduction="none")
        return losses * (torch.rand(len(out)) < 0.5) / 0.5

    layers = GCN.build(problem)
    still = {"optimizer": lambda p: torch.optim.SGD(p, lr=0.0)}
    whole = hongtu.Trainer(artifact, copy.deepcopy(layers), **still).train_epoch().loss
    trainer = hongtu.Trainer(artifact, layers, loss=loss, **still)
    found = [trainer.train_epoch().loss for _ in range(200)]
    assert len({*found}) > 100 and abs(np.mean(found) / whole - 1) < 0.05


@pytest.mark.parametrize(
    "draw",
    [
        lambda out: torch.from_numpy(np.random.rand(len(out))).to(out.dtype),
        lambda out: torch.tensor([random.random() for _ in out]),
        lambda out: torch.from_numpy(np.random.randn(len(out))).to(out.dtype),
        lambda out: torch.rand(len(out)) * torch.randn(len(out)),
        lambda out: torch.rand(len(out)) * torch.from_numpy(np.random.rand(len(out))).to(out.dtype),
        lambda out: torch.rand(len(out)) * torch.tensor([random.random() for _ in out]),
    ],
)
def test_numbers_of_each_row_of_a_loss_are_taken(draw):
    check_alone("loss", scaled(draw), torch.eye(7, 3), torch.arange(7) % 3)


@pytest.mark.parametrize(
    "draw",
    [
        lambda out: (torch.manual_seed(3), torch.rand(len(out)))[1],
        lambda out: (np.random.seed(3), torch.from_numpy(np.random.rand(len(out))).to(out.dtype))[1],
        lambda out: (random.seed(3), torch.tensor([random.random() for _ in out]))[1],
    ],
)
def test_a_loss_that_seeds_generators_goes_by_where_a_row_is(draw):
    with pytest.raises(InputError, match="must not depend on the others, or on its place"):
        check_alone("loss", scaled(draw), torch.eye(7, 3), torch.arange(7) % 3)


def test_random_numbers_of_a_loss_are_no_mixing_of_vertices():
    problem = problems.awkward()
    hongtu.Trainer(problems.prepare(problem, 2, 3), GCN.build(problem), loss=noisy)
    for seed in range(100):  # some draw the same twice
        torch.manual_seed(seed)
        check_alone("loss", noisy, torch.eye(7, 3), torch.arange(7) % 3)


def test_a_mask_over_vertices_without_a_label_is_refused():
    problem = problems.awkward()
    labels = np.where(np.arange(64) == 9, -1, problem.labels)
    masks = {"train": np.arange(64) == 3}
    artifact = hongtu.preprocess_graph(
        problem.edges, 64, problems.new_path(), features=problem.features, labels=labels, masks=masks, chunks=2
    )
    with pytest.raises(InputError, match=r"vertex 9 \(and 0 more\) without a label"):
        hongtu.Trainer(artifact, GCN.build(problem), loss=LossTerm("cross_entropy", mask=np.arange(64) < 12))


def train(graph, capsys, *arguments):
    """``hongtu train --json`` on an artifact: exit code, what it printed, what it said."""
    code = main(["train", str(graph.path), "--hidden", "5", "--epochs", "2", "--json", *arguments])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else None, err


def test_the_command_weighs_classes(capsys):
    problem = problems.awkward()
    graph = problems.prepare(problem, 2, 3)
    arguments = ["--class-weights", "balanced", "--label-smoothing", "0.1", "--clip-grad-norm", "0.01"]
    _, found, _ = train(graph, capsys, *arguments)
    torch.manual_seed(0)
    weight = balanced_weights(problem.labels, problem.masks["train"], 3)
    loss = nn.CrossEntropyLoss(weight, label_smoothing=0.1)
    trainer = hongtu.Trainer(graph, build_layers("gcn", 6, 5, 3, 2), loss=loss, clip_grad_norm=0.01)
    assert found["loss"] == trainer.fit(2)[-1].loss


def test_the_command_regresses(capsys):
    graph = problems.prepare(problems.regression(), 2, 3)
    code, found, _ = train(graph, capsys, "--loss", "huber")
    assert code == 0 and found["val_rmse"] > 0 and found["train"] < 1
    code, _, err = train(graph, capsys, "--class-weights", "balanced")
    assert code == 2 and "one class per vertex" in err and err.count("\n") == 1

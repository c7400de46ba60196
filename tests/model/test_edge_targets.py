"""Targets of edges, and a loss over vertices beside one over edges: as on the whole graph in memory."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data
from torch_geometric.transforms import RandomLinkSplit

import hongtu
from hongtu.errors import InputError
from hongtu.train.evaluators import auc
from tests import problems, training
from tests.additions import some_edges
from tests.models import SIX
from tests.training import EXACT

GCN = SIX[0]
P = 90
RATINGS = np.random.default_rng(3).normal(size=P).astype(np.float32)
CLASSES = np.random.default_rng(4).integers(0, 4, P)
SIGNS = np.random.default_rng(5).random(P) < 0.4
SEVERAL = np.random.default_rng(6).normal(size=(P, 2)).astype(np.float32)
HOLES = np.where(np.arange(P)[:, None] % 5 == [1, 3], np.nan, SEVERAL)
WEIGHTS = torch.tensor([1.0, 5.0, 0.2, 9.0], dtype=torch.float64)


class Decoder(nn.Module):
    """Columns of a pair, of its ends alone."""

    def __init__(self, columns):
        super().__init__()
        torch.manual_seed(5)
        self.lin = nn.Linear(6, columns)

    def forward(self, source, destination):
        return self.lin(torch.cat([source, destination], dim=1))


def numbers(x):
    return torch.from_numpy(np.asarray(x)).double()


KINDS = {
    "numbers": (dict(targets=RATINGS), lambda out: F.mse_loss(out[:, 0], numbers(RATINGS))),
    "one number, two columns": (
        dict(targets=SEVERAL, decoder=Decoder(2), loss="l1"), lambda out: F.l1_loss(out, numbers(SEVERAL))
    ),
    "numbers with holes": (
        dict(targets=HOLES, decoder=Decoder(2)),
        lambda out: F.mse_loss(out[~np.isnan(HOLES)], numbers(HOLES[~np.isnan(HOLES)])),
    ),
    "classes": (
        dict(targets=torch.from_numpy(CLASSES), decoder=Decoder(4), block=7),
        lambda out: F.cross_entropy(out, torch.from_numpy(CLASSES)),
    ),
    "weighted classes": (
        dict(targets=CLASSES, decoder=Decoder(4), loss=nn.CrossEntropyLoss(weight=WEIGHTS), block=30),
        lambda out: F.cross_entropy(out, torch.from_numpy(CLASSES), weight=WEIGHTS),
    ),
    "yes or no": (
        dict(targets=SIGNS), lambda out: F.binary_cross_entropy_with_logits(out[:, 0], numbers(SIGNS))
    ),
    "classes 0 and 1 by one column": (
        dict(targets=SIGNS.astype(int), loss="bce_with_logits"),
        lambda out: F.binary_cross_entropy_with_logits(out[:, 0], numbers(SIGNS)),
    ),
    "a sum over edges": (
        dict(targets=RATINGS, loss=nn.MSELoss(reduction="sum")),
        lambda out: F.mse_loss(out[:, 0], numbers(RATINGS), reduction="sum"),
    ),
    "one's own": (
        dict(targets=RATINGS, loss=lambda out, target: (out - target).abs().sum(1) ** 1.5),
        lambda out: ((out[:, 0] - numbers(RATINGS)).abs() ** 1.5).mean(),
    ),
}  # fmt: skip


def reference_of(trainer, problem, options):
    """The model, its decoder, and all that is learned."""
    reference, decoder = GCN.build_reference(problem), copy.deepcopy(trainer.decoder)
    learned = [*reference.parameters(), *(() if decoder is None else decoder.parameters())]
    return reference, decoder or options.get("decoder") or (lambda u, v: (u * v).sum(1)), training.sgd(learned)


def train_both(options, whole, grain, loss, epochs=2, **more):
    """hongtu and the whole graph; ``whole`` gives the loss of what is decoded of all edges and of the output."""
    problem, (source, destination) = problems.awkward(), torch.from_numpy(some_edges())
    trainer = training.make_trainer(GCN, problem, grain, loss=loss, **more)
    reference, decoder, optimizer = reference_of(trainer, problem, options)
    for _ in range(epochs):
        out = GCN.run_reference(reference, problem)
        decoded = decoder(out[source], out[destination])
        expected = whole(decoded.reshape(P, -1), out)
        optimizer.zero_grad()
        expected.backward()
        record = trainer.train_epoch()
        assert record.loss == pytest.approx(float(expected.detach()), rel=EXACT)
        training.assert_counted(trainer, record)
        for name, parameter in reference.named_parameters():
            torch.testing.assert_close(trainer.gradients()[name], parameter.grad, rtol=1e-8, atol=1e-11)
        for name, parameter in getattr(decoder, "named_parameters", list)():
            torch.testing.assert_close(trainer.gradients()[f"decoder.{name}"], parameter.grad, rtol=1e-8, atol=1e-11)
        optimizer.step()
    out = GCN.run_reference(reference, problem)
    return trainer, decoder(out[source], out[destination]).detach().reshape(P, -1)


@pytest.mark.long
@pytest.mark.most(5)
@pytest.mark.parametrize("kind", KINDS)
def test_targets_of_edges(kind):
    options, whole = KINDS[kind]
    grain = (1, 1) if kind == "numbers" else (2, 3)
    loss = hongtu.LinkLoss(some_edges(), **copy.deepcopy(options))
    train_both(options, lambda decoded, out: whole(decoded), grain, loss, device_memory="smallest")


@pytest.mark.parametrize("of_edges", ["links", "targets"])
@pytest.mark.parametrize("form", ["list", "weighted"])
def test_a_loss_over_vertices_beside(of_edges, form):
    problem = problems.awkward()
    mask, labels = torch.from_numpy(problem.masks["train"]), torch.from_numpy(problem.labels)
    options = (
        {"targets": RATINGS, "block": 20} if of_edges == "targets" else {"negatives": some_edges(P, 1)[1][:, None]}
    )
    own = hongtu.LinkLoss(some_edges(), val_edges=some_edges(20, 2), **options, **(
        {"val_targets": RATINGS[:20]} if of_edges == "targets" else {}
    ))  # fmt: skip
    loss = (
        ["cross_entropy", own]
        if form == "list"
        else [hongtu.LossTerm(own, weight=0.3), hongtu.LossTerm("cross_entropy", 2.0)]
    )
    factors = (1.0, 1.0) if form == "list" else (0.3, 2.0)

    def whole(decoded, out):
        if of_edges == "targets":
            first = F.mse_loss(decoded[:, 0], numbers(RATINGS))
        else:
            (source, _), others = torch.from_numpy(some_edges()), torch.from_numpy(some_edges(P, 1)[1])
            scores = torch.stack([decoded[:, 0], (out[source] * out[others]).sum(1)])
            truth = torch.tensor([[1.0], [0.0]], dtype=torch.float64).expand(2, P)
            first = F.binary_cross_entropy_with_logits(scores, truth)
        return factors[0] * first + factors[1] * F.cross_entropy(out[mask], labels[mask])

    trainer, _ = train_both(options, whole, (2, 3), loss, metric=["f1", "auc"])
    found = trainer.evaluate()
    names = {"train", "val", "test", "train auc", "val auc", "test auc", "train links", "val links", "test links"}
    if of_edges == "targets":
        names |= {f"{split} links_{name}" for split in ("train", "val", "test") for name in ("mae", "rmse")}
    assert found.keys() == names and trainer.validates
    assert found["test links"] != found["test links"] and np.isfinite(found["val links"])


def test_scores_of_targets():
    """By the metrics of vertices, over the edges of each split."""
    problem, held = problems.awkward(), some_edges(40, 1)
    options = {"targets": SIGNS, "val_edges": held, "val_targets": SIGNS[:40], "block": 16}
    trainer, decoded = train_both(
        options, lambda decoded, out: F.binary_cross_entropy_with_logits(decoded[:, 0], numbers(SIGNS)), (2, 3),
        hongtu.LinkLoss(some_edges(), **options), metric="auc",
    )  # fmt: skip
    found = trainer.evaluate()
    assert found["train"] == pytest.approx(auc(decoded, torch.from_numpy(SIGNS).float().unsqueeze(1)))
    out = trainer.predict()
    scores = (out[held[0]] * out[held[1]]).sum(1, keepdim=True)
    assert found["val"] == pytest.approx(auc(scores, torch.from_numpy(SIGNS[:40]).float().unsqueeze(1)))
    assert np.isnan(found["test"]) and trainer.validates
    again = hongtu.Trainer(
        problems.prepare(problem, 2, 3), GCN.build(problem), loss=hongtu.LinkLoss(some_edges(), targets=RATINGS)
    )
    assert {"train", "train_mae", "train_rmse"} <= again.evaluate().keys() and not again.validates
    fitted = again.fit(2, eval_every=1)
    assert "train_mae" in fitted[-1].metrics


def test_ratings_of_a_random_link_split():
    edges, ratings = torch.from_numpy(some_edges()), torch.from_numpy(np.round(RATINGS * 2) + 3)
    data = Data(x=torch.ones(64, 2), edge_index=edges, edge_label=ratings)
    split = RandomLinkSplit(0.2, 0.1, neg_sampling_ratio=0.0, add_negative_train_samples=False)(data)
    with pytest.raises(InputError, match="edge_label of train has numbers other than 0 and 1; pass targets=True"):
        hongtu.LinkLoss.from_split(*split)
    loss = hongtu.LinkLoss.from_split(*split, targets=True)
    assert torch.equal(torch.from_numpy(loss.targets), split[0].edge_label)
    assert torch.equal(torch.from_numpy(loss.val_targets), split[1].edge_label)
    assert hongtu.LinkLoss.from_split(*split, targets=False).targets is None
    problem = problems.awkward()
    trainer = hongtu.Trainer(problems.prepare(problem, 2, 3), GCN.build(problem), loss=loss)
    records = trainer.fit(10, eval_every=5)
    assert records[-1].loss < records[0].loss and np.isfinite(records[-1].metrics["val_rmse"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hongtu.LinkLoss(targets=RATINGS), "targets without edges; pass the edges"),
        (lambda: hongtu.LinkLoss(some_edges(), targets=RATINGS[:5]), r"targets float32 \(5,\), expected numbers for"),
        (lambda: hongtu.LinkLoss(some_edges(), targets=RATINGS, negatives=3), "both negatives and targets"),
        (
            lambda: hongtu.LinkLoss(some_edges(), targets=CLASSES),
            r"1 columns, the targets have 4 .* of the train edges .*leave these edges out; .* pass targets as floats",
        ),
        (
            lambda: hongtu.LinkLoss(some_edges(), targets=CLASSES, decoder=Decoder(4), loss="mse"),
            r"does not fit targets that are classes.*; to predict numbers pass targets as floats",
        ),
        (
            lambda: hongtu.LinkLoss(some_edges(), np.zeros((P, 2), int), targets=torch.from_numpy(RATINGS)),
            "both negatives and targets",
        ),
        (
            lambda: hongtu.LinkLoss(some_edges(), targets=CLASSES, val_edges=some_edges(9), decoder=Decoder(4)),
            r"val_targets is not given, expected classes, integers for 9 edges",
        ),
        (
            lambda: hongtu.LinkLoss(some_edges(), targets=np.full(P, np.nan, np.float32)),
            "edge 0 .* has no target.*leave these edges out of edges and targets",
        ),
        (lambda: hongtu.LinkLoss(some_edges(), targets=RATINGS, decoder=lambda u, v: u.sum()), "its decoder gave"),
        (
            lambda: hongtu.LinkLoss(some_edges(), targets=RATINGS, decoder=lambda u, v: (u * v).softmax(0).sum(1)),
            "its decoder mixes the rows",
        ),
        (
            lambda: hongtu.LinkLoss(some_edges(), targets=RATINGS, loss=lambda out, y: (out - y).sum()),
            "expected one loss per",
        ),
        (
            lambda: hongtu.LinkLoss(some_edges(), loss=lambda some, others: (some - others.mean(1)).mean()),
            "expected one loss per edge: .*; return it without a mean",
        ),
        (
            lambda: hongtu.LinkLoss(some_edges(), loss=lambda some, others: others - some[:, None]),
            r"expected one loss per .*; have the decoder .* to one shape, as \(some\[:, None\] - others\).mean\(1\)",
        ),
        (
            lambda: hongtu.LinkLoss(some_edges(), targets=np.where(CLASSES > 1, 1, -1)),
            "has no class, a number below 0 .of targets -1 and 1 pass targets > 0.; leave these edges out",
        ),
        (lambda: hongtu.LinkLoss(some_edges().T, targets=RATINGS), r"\[2, P\], P > 0; transpose it, edges.T"),
        (lambda: hongtu.LinkLoss.from_split((1, 2, 3)), r"RandomLinkSplit gives, as from_split\(\*split\)"),
        (lambda: [hongtu.LinkLoss(), hongtu.LinkLoss()], "2 LinkLosses, expected one"),
        (lambda: [hongtu.LossTerm(hongtu.LinkLoss(), mask="val")], "a LossTerm of a LinkLoss has a mask"),
    ],
)  # fmt: skip
def test_wrong_targets_are_refused(make, message):
    problem = problems.awkward()
    with pytest.raises(InputError, match=message):
        hongtu.Trainer(problems.prepare(problem, 2, 3), GCN.build(problem), loss=make())


def test_a_loss_over_vertices_needs_its_mask():
    artifact = hongtu.preprocess_graph(
        some_edges(), 64, problems.new_path(), features=np.ones((64, 2), "f"), labels=np.arange(64) % 3, partitions=1,
        chunks=1,
    )  # fmt: skip
    trainer = hongtu.Trainer(artifact, [hongtu.nn.GCNConv(2, 3)], loss=["cross_entropy", hongtu.LinkLoss()])
    with pytest.raises(InputError, match="there is no train mask"):
        trainer.train_epoch()

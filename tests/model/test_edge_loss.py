"""Link prediction is exact: loss and gradients equal those on the whole graph, with the same sampled negatives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import hongtu
from hongtu.errors import InputError
from hongtu.model.edge_loss import EdgeLoss, logistic
from tests import additions, problems, training
from tests.additions import some_edges
from tests.models import SIX
from tests.training import EXACT, check

GCN = SIX[0]
BILINEAR = nn.Bilinear(3, 3, 1, bias=False)


@pytest.mark.parametrize("budget", ["smallest", None])
def test_blocks_of_one_pair(budget):
    """Other pairs, decoders and losses are on the grid of ``test_additions``."""
    model = additions.linked("pairs", hongtu.LinkLoss(torch.from_numpy(some_edges()), block=1), GCN)
    check(model, problems.awkward(), (2, 3), epochs=2, device_memory=budget, seed=additions.SEED)


def test_large_scores_lose_no_digits():
    scores = torch.tensor([[-21.0, 0.5, 20.5, 30.0]], dtype=torch.float64, requires_grad=True)
    truth = torch.tensor([[1.0, 0, 0, 0]], dtype=torch.float64)
    found = logistic(scores[:, 0], scores[:, 1:]).sum()
    expected = nn.functional.binary_cross_entropy_with_logits(scores, truth)
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=0)
    given = torch.autograd.grad(found, scores), torch.autograd.grad(expected, scores)
    torch.testing.assert_close(*given, rtol=1e-14, atol=1e-16)


def test_the_output_and_its_gradient_are_priced():
    model = additions.linked("own", hongtu.LinkLoss(negatives=3, block=64), GCN)
    plan = training.make_trainer(model, problems.awkward(), (2, 3), device_memory="smallest").plan
    assert plan.host_bytes["pinned host"] >= 2 * 64 * 3 * 8


def test_links_train_embeddings():
    """The usual model of links: one learned row per vertex, whose gradient comes from both ends of every pair."""
    problem, outcomes = problems.awkward(), []
    for grain in ((1, 1), (4, 8)):
        artifact = hongtu.preprocess_graph(
            problem.edges, 64, problems.new_path(), features="embedding:6", labels=problem.labels, masks=problem.masks,
            partitions=grain[0], chunks=grain[1],
        )  # fmt: skip
        options = {"loss": hongtu.LinkLoss(negatives=2), "dtype": torch.float64, "optimizer": training.sgd}
        budget = training.smallest_budget(artifact, lambda: GCN.build(problem), **options)
        trainer = hongtu.Trainer(artifact, GCN.build(problem), device_memory=budget, **options)
        outcomes.append(training.train(trainer, 3))
        record = trainer.train_epoch()
        assert (record.bytes, record.arena_bytes) == (trainer.plan.bytes, trainer.plan.arena_bytes)
    training.assert_same(outcomes[1], outcomes[0], EXACT)
    assert "embedding.weight" in outcomes[0].gradients[0]


def test_scores_are_the_share_of_pairs_in_order():
    problem, held = problems.awkward(), some_edges(40, 1)
    link = hongtu.LinkLoss(some_edges(), negatives=2, val_edges=held, block=30)
    scores = []
    for grain in ((1, 1), (4, 8)):
        artifact = problems.prepare(problem, *grain)
        trainer = hongtu.Trainer(artifact, GCN.build(problem), loss=link, dtype=torch.float64, device_memory="64KiB")
        scores.append(trainer.evaluate())
    assert scores[0] == pytest.approx(scores[1], nan_ok=True)
    assert np.isnan(scores[0]["test"]) and 0 < scores[0]["val"] < 1


def test_fit_learns_and_scores_links():
    link = hongtu.LinkLoss(negatives=5, val_edges=some_edges())
    trainer = hongtu.Trainer(problems.prepare(problems.awkward(), 2, 3), GCN.build(problems.awkward()), loss=link)
    records = trainer.fit(20, eval_every=5, patience=4)
    assert records[-1].loss < 0.9 * records[0].loss and records[4].metrics["val"] > 0
    without = training.make_trainer(GCN, problems.awkward(), (2, 3), loss=hongtu.LinkLoss())
    with pytest.raises(InputError, match="no val_edges"):
        without.fit(2, eval_every=1, patience=1)


def test_negatives_are_uniform_and_new_in_every_epoch():
    loss = EdgeLoss(hongtu.LinkLoss(negatives=4), problems.prepare(problems.awkward(), 2, 3))
    found = loss.negatives(np.arange(8000), seed=1, epoch=0)
    count = np.bincount(found.ravel(), minlength=64)
    assert ((count - 500) ** 2 / 500).sum() < 110  # chi-squared with 63 degrees of freedom: 1 in 5000
    for other in (loss.negatives(np.arange(8000), 1, 1), loss.negatives(np.arange(8000), 2, 0), found[:, ::-1]):
        assert abs((found == other).mean() - 1 / 64) < 0.01


@pytest.mark.parametrize(
    ("link", "message"),
    [
        (hongtu.LinkLoss(negatives=0), "negatives 0"),
        (hongtu.LinkLoss(np.zeros((3, 2), int)), r"train edges int64 \(3, 2\)"),
        (hongtu.LinkLoss(np.full((2, 1), 64)), "hold vertex 64, expected 0 to 63"),
        (hongtu.LinkLoss(val_edges=np.zeros((2, 0), int)), "val edges"),
        (hongtu.LinkLoss(decoder=BILINEAR), r"has parameters, one of shape \(1, 3, 3\), which would not be trained"),
        (hongtu.LinkLoss(decoder=lambda u, v: BILINEAR(u, v).squeeze(1)), r"one of shape \(1, 3, 3\)"),
        (hongtu.LinkLoss(decoder=lambda u, v: (u * v).sum(1).softmax(0)), "decoder or loss mixes the rows"),
        (hongtu.LinkLoss(loss=lambda p, n: logistic(p - p.mean(), n), negatives=2), "decoder or loss mixes the rows"),
    ],
)
def test_wrong_links_are_refused(link, message):
    problem = problems.awkward()
    with pytest.raises(InputError, match=message):
        hongtu.Trainer(problems.prepare(problem, 2, 3), GCN.build(problem), loss=link)


def test_a_decoder_may_use_what_is_not_learned():
    problem, fixed = problems.awkward(), torch.ones(3)
    link = hongtu.LinkLoss(negatives=3, decoder=lambda u, v: (u * fixed * v).sum(1))
    trainer = hongtu.Trainer(problems.prepare(problem, 2, 3), GCN.build(problem), loss=link)
    assert trainer.train_epoch().loss > 0


def test_a_loss_of_the_wrong_shape_is_refused():
    problem = problems.awkward()
    link = hongtu.LinkLoss(loss=lambda positive, negative: positive.mean())
    trainer = hongtu.Trainer(problems.prepare(problem, 2, 3), GCN.build(problem), loss=link)
    with pytest.raises(InputError, match="one loss per edge"):
        trainer.train_epoch()

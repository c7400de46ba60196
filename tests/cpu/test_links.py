"""Link prediction is exact: loss and gradients equal those on the whole graph, with the same sampled negatives."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import nn

import hongtu
from hongtu.errors import InputError
from hongtu.links import EdgeLoss
from tests import training
from tests.training import DEEP, SIX, STRATEGIES

EXACT = 1e-9
GCN, GAT = SIX[0], SIX[4]
SEED = 3


@functools.cache
def some_edges(count=90, seed=0):
    return np.random.default_rng(seed).integers(0, 64, (2, count))


def by_destination(edges):
    """A graph's own edges in the order of their ids."""
    return edges[:, np.argsort(edges[1], kind="stable")]


def hinge(positive, negative):
    """[B]: how far every negative is above the edge less a margin."""
    return (0.3 + negative - positive.unsqueeze(1)).relu().sum(1)


def distance(source, destination):
    return -(source - destination).square().sum(1)


def whole_graph(model, problem, link, edges, sampler, epochs=2):
    modules = model.build_reference(problem)
    optimizer = training.sgd(modules.parameters())
    outcome = training.Outcome()
    source, destination = torch.from_numpy(edges)
    for epoch in range(epochs):
        optimizer.zero_grad()
        out = model.run_reference(modules, problem)
        negative = torch.from_numpy(sampler.negatives(np.arange(edges.shape[1]), SEED, epoch))
        positive = link.decoder(out[source], out[destination])
        others = torch.stack([link.decoder(out[source], out[column]) for column in negative.T], dim=1)
        if link.loss is hongtu.links.logistic:
            scores = torch.cat([positive.unsqueeze(1), others], dim=1)
            truth = torch.zeros_like(scores).index_fill(1, torch.tensor([0]), 1)
            loss = nn.functional.binary_cross_entropy_with_logits(scores, truth)
        else:
            loss = link.loss(positive, others).mean()
        loss.backward()
        outcome.losses.append(float(loss.detach()))
        outcome.gradients.append({name: p.grad.clone() for name, p in modules.named_parameters()})
        optimizer.step()
    return outcome


def check(link, grain, *, model=GCN, device_memory="smallest", **options):
    problem = training.awkward()
    options = {"optimizer": training.sgd, "dtype": torch.float64, "loss": link, "seed": SEED} | options
    artifact = training.prepare(problem, *grain)
    if device_memory == "smallest":
        device_memory = training.smallest_budget(artifact, lambda: model.build(problem), **options)
    trainer = hongtu.Trainer(artifact, model.build(problem), device_memory=device_memory, **options)
    edges = by_destination(problem.edges) if link.edges is None else np.asarray(link.edges)
    one_chunk = EdgeLoss(link, training.prepare(problem, 1, 1))
    training.assert_same(training.train(trainer, 2), whole_graph(model, problem, link, edges, one_chunk), EXACT)
    record = trainer.train_epoch()
    assert (record.bytes, record.rows, record.arena_bytes) == (
        trainer.plan.bytes, trainer.plan.rows, trainer.plan.arena_bytes,
    )  # fmt: skip
    return trainer


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_graphs_own_edges(strategy):
    link = hongtu.LinkLoss(negatives=3, block=64)
    for model, grain in ((GCN, (2, 3)), (DEEP, (4, 8))):
        trainer = check(link, grain, model=model, strategy=strategy)
        assert trainer.plan.host_bytes["pinned host"] >= 2 * 64 * 3 * 8  # the output and its gradient


@pytest.mark.parametrize("budget", ["smallest", None])
def test_given_edges(budget):
    for link, model in (
        (hongtu.LinkLoss(some_edges(), decoder=distance, loss=hinge, negatives=2), GAT),
        (hongtu.LinkLoss(torch.from_numpy(some_edges()), block=1), GCN),
    ):
        check(link, (2, 3), model=model, device_memory=budget)


def test_links_train_embeddings():
    """The usual model of links: one learned row per vertex, whose gradient comes from both ends of every pair."""
    problem, outcomes = training.awkward(), []
    for grain in ((1, 1), (4, 8)):
        artifact = hongtu.preprocess_graph(
            problem.edges, 64, training.new_path(), features="embedding:6", labels=problem.labels, masks=problem.masks,
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
    problem, held = training.awkward(), some_edges(40, 1)
    link = hongtu.LinkLoss(some_edges(), negatives=2, val_edges=held, block=30)
    scores = []
    for grain in ((1, 1), (4, 8)):
        artifact = training.prepare(problem, *grain)
        trainer = hongtu.Trainer(artifact, GCN.build(problem), loss=link, dtype=torch.float64, device_memory="64KiB")
        scores.append(trainer.evaluate())
    assert scores[0] == pytest.approx(scores[1], nan_ok=True)
    assert np.isnan(scores[0]["test"]) and 0 < scores[0]["val"] < 1


def test_fit_learns_and_scores_links():
    link = hongtu.LinkLoss(negatives=5, val_edges=some_edges())
    trainer = hongtu.Trainer(training.prepare(training.awkward(), 2, 3), GCN.build(training.awkward()), loss=link)
    records = trainer.fit(20, eval_every=5, patience=4)
    assert records[-1].loss < 0.9 * records[0].loss and records[4].metrics["val"] > 0
    without = training.make_trainer(GCN, training.awkward(), (2, 3), loss=hongtu.LinkLoss())
    with pytest.raises(InputError, match="no val_edges"):
        without.fit(2, eval_every=1, patience=1)


def test_negatives_are_uniform_and_new_in_every_epoch():
    loss = EdgeLoss(hongtu.LinkLoss(negatives=4), training.prepare(training.awkward(), 2, 3))
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
        (hongtu.LinkLoss(decoder=nn.Bilinear(3, 3, 1)), "Bilinear has parameters"),
    ],
)
def test_wrong_links_are_refused(link, message):
    problem = training.awkward()
    with pytest.raises(InputError, match=message):
        hongtu.Trainer(training.prepare(problem, 2, 3), GCN.build(problem), loss=link)


def test_a_loss_of_the_wrong_shape_is_refused():
    problem = training.awkward()
    link = hongtu.LinkLoss(loss=lambda positive, negative: positive.mean())
    trainer = hongtu.Trainer(training.prepare(problem, 2, 3), GCN.build(problem), loss=link)
    with pytest.raises(InputError, match="one loss per edge"):
        trainer.train_epoch()

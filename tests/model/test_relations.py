"""Decoders that see the relation of an edge, filtered ranks, and negatives that train borrows from val."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import hongtu
from hongtu.errors import InputError
from hongtu.model.edge_loss import EdgeLoss
from tests import problems, training
from tests.additions import SEED, some_edges
from tests.models import SIX
from tests.training import EXACT

GCN = SIX[0]
R = 5
KIND = np.random.default_rng(8).integers(0, R, 90)


class OfRelation(nn.Module):
    """One row for each relation."""

    def __init__(self, columns):
        super().__init__()
        torch.manual_seed(3)
        self.rel = nn.Embedding(R, columns)


class DistMult(OfRelation):
    def forward(self, head, tail, relation):
        return (head * self.rel(relation) * tail).sum(1)


class TransE(OfRelation):
    def forward(self, head, tail, relation):
        return -(head + self.rel(relation) - tail).square().sum(1)


class Rotated(OfRelation):
    """RotatE's and ComplEx's kind: pairs of columns as one complex number."""

    def forward(self, head, tail, relation):
        head, tail, by = (torch.view_as_complex(x[:, :2].contiguous()) for x in (head, tail, self.rel(relation)))
        return (head * by * tail.conj()).real


DECODERS = {"DistMult": DistMult, "TransE": TransE, "complex": Rotated}


@pytest.mark.long
@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("edges", ["given", "own"])
def test_a_decoder_sees_relations(decoder, edges):
    """Of the edges that are given, and of the graph's own; negatives have their edge's relation."""
    problem = problems.edge_data()
    options = {"edges": some_edges(), "edge_type": KIND} if edges == "given" else {}
    link = hongtu.LinkLoss(**options, decoder=DECODERS[decoder](3), negatives=2, block=40)
    trainer = training.make_trainer(GCN, problem, (2, 3), loss=link, seed=SEED, device_memory="smallest")
    reference, copied = GCN.build_reference(problem), copy.deepcopy(trainer.decoder)
    optimizer = training.sgd([*reference.parameters(), *copied.parameters()])
    if edges == "given":
        ends, kind = some_edges(), KIND
    else:  # by destination, as the ids of edges are
        order = np.argsort(problem.edges[1], kind="stable")
        ends, kind = problem.edges[:, order], problem.edge_type[order]
    (source, destination), kind = torch.from_numpy(ends), torch.from_numpy(kind)
    for epoch in range(2):
        sampler = EdgeLoss(link, problems.prepare(problem, 1, 1))
        others = torch.from_numpy(sampler.negatives(np.arange(len(kind)), SEED, epoch))
        out = GCN.run_reference(reference, problem)
        tails = (destination, *others.T)
        scores = torch.stack([copied(out[source], out[tail], kind) for tail in tails], dim=1)
        truth = torch.zeros_like(scores).index_fill(1, torch.tensor([0]), 1)
        loss = nn.functional.binary_cross_entropy_with_logits(scores, truth)
        optimizer.zero_grad()
        loss.backward()
        record = trainer.train_epoch()
        training.assert_counted(trainer, record)
        assert record.loss == pytest.approx(float(loss.detach()), rel=EXACT)
        gradient = trainer.gradients()["decoder.rel.weight"]
        torch.testing.assert_close(gradient, copied.rel.weight.grad, rtol=1e-8, atol=1e-11)
        optimizer.step()


@pytest.mark.parametrize("block", [7, 1 << 16])
@pytest.mark.parametrize("related", [True, False])
def test_filtered_ranks(block, related):
    """Among all vertices but those that are destinations of the same source and relation in any split."""
    problem, splits = (
        problems.awkward(),
        {"train": some_edges(400, 1), "val": some_edges(50, 2), "test": some_edges(40, 3)},
    )
    kinds = {split: np.random.default_rng(9).integers(0, 2, edges.shape[1]) for split, edges in splits.items()}
    options = {f"{split}_edges" if split != "train" else "edges": edges for split, edges in splits.items()}
    decoder = (lambda u, v, r: ((r + 1).unsqueeze(1) * u * v).sum(1)) if related else (lambda u, v: (u * v).sum(1))
    if related:
        options |= {f"{split}_edge_type" if split != "train" else "edge_type": kind for split, kind in kinds.items()}
    link = hongtu.LinkLoss(**options, decoder=decoder, filtered=True, block=block)
    artifact = problems.prepare(problem, 2, 3)
    metric = ["mrr", "hits@1", "hits@10"]
    trainer = hongtu.Trainer(artifact, GCN.build(problem), loss=link, metric=metric, dtype=torch.float64)
    found, out = trainer.evaluate(), trainer.predict()
    known = {(u, v, k * related) for split in splits for u, v, k in zip(*splits[split], kinds[split], strict=True)}
    for split in ("val", "test"):
        ranks = []
        for u, v, k in zip(*splits[split], kinds[split] * related, strict=True):
            kept = [w for w in range(64) if w == v or (u, w, k) not in known]
            scores = (out[u] * out[kept]).sum(1) * (k + 1 if related else 1)
            own = scores[kept.index(v)]
            ranks.append(1 + int((scores > own + 1e-12).sum()) + 0.5 * (int(((scores - own).abs() <= 1e-12).sum()) - 1))
        ranks = np.array(ranks)
        expected = [(1 / ranks).mean(), (ranks <= 1).mean(), (ranks <= 10).mean()]
        names = (split, f"{split} hits@1", f"{split} hits@10")
        assert [found[name] for name in names] == pytest.approx(expected)
    assert np.isnan(found["train"])
    training.assert_counted(trainer, trainer.train_epoch())


def test_train_edges_among_the_negatives_of_val():
    """OGB's way: many pairs that all edges share in evaluation, one negative for an edge in training."""
    problem, shared = problems.awkward(), some_edges(60, 5)
    held = {"val_edges": some_edges(20, 2), "val_negative_edges": shared}
    artifact = problems.prepare(problem, 2, 3)

    def trainer(metric, **more):
        link = hongtu.LinkLoss(some_edges(), **(held | more))
        return hongtu.Trainer(artifact, GCN.build(problem), loss=link, metric=metric, dtype=torch.float64)

    own = trainer("hits@20")
    out, (source, destination) = own.predict(), some_edges()
    others = (out[shared[0]] * out[shared[1]]).sum(1)
    scores = (out[source] * out[destination]).sum(1)
    above = (others > scores[:, None] + 1e-12).sum(1) + 0.5 * ((others - scores[:, None]).abs() <= 1e-12).sum(1)
    assert own.evaluate()["train"] == pytest.approx(float((1 + above <= 20).double().mean()))
    training.assert_counted(own, own.train_epoch())
    with pytest.raises(InputError, match=r"hits@70': each edge has 60 negatives.* for the val edges"):
        trainer("hits@70")
    with pytest.raises(InputError, match=r"hits@20': each edge has 1 negatives.* for the test edges"):
        trainer("hits@20", test_edges=some_edges(9, 4))
    with pytest.raises(InputError, match=r"hits@20': each edge has 1 negatives.* for the train edges"):
        trainer("hits@20", val_negative_edges=None, val_negatives=np.zeros((20, 30), int))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "takes the relation of every edge, and the graph's have none; preprocess it with edge_type"),
        ({"edges": some_edges()}, r"edge_type is not given, and its decoder takes the relation .* integers \(90,\)"),
        ({"edges": some_edges(), "edge_type": KIND[:5]}, r"edge_type int64 \(5,\), and its decoder"),
        (
            {"edges": some_edges(), "edge_type": KIND, "val_edges": some_edges(9)},
            r"val_edge_type is not given, .* integers \(9,\)",
        ),
        (
            {"edges": some_edges(), "edge_type": KIND, "val_edges": some_edges(9), "val_edge_type": KIND[:9],
             "val_negative_edges": some_edges(4)},
            "negative edges of a split are of all its edges, whose relations differ",
        ),
        (
            {"edges": some_edges(), "edge_type": KIND, "val_edges": some_edges(9), "val_edge_type": KIND[:9],
             "val_negatives": np.zeros((9, 4), int), "filtered": True},
            "both filtered, which ranks among all vertices",
        ),
    ],
)  # fmt: skip
def test_relations_that_are_not_there(options, message):
    problem = problems.awkward()
    with pytest.raises(InputError, match=message):
        hongtu.Trainer(
            problems.prepare(problem, 2, 3), GCN.build(problem), loss=hongtu.LinkLoss(decoder=DistMult(3), **options)
        )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"edge_type": KIND + 2}, "edge_type holds relations up to 6, .* has 5 rows .* at least 7 rows"),
        ({"edge_type": KIND - 1}, "edge_type holds -1, expected relations from 0 on"),
        (
            {"edge_type": KIND, "val_edges": some_edges(), "val_edge_type": KIND * 2},
            "val_edge_type holds relations up to 8, .* has 5 rows",
        ),
        ({"edge_type": KIND * 3, "targets": KIND}, "edge_type holds relations up to 12, .* has 5 rows"),
    ],
)
def test_relations_beyond_the_decoders_are_refused(given, message):
    link = hongtu.LinkLoss(some_edges(), decoder=DistMult(3), **given)
    with pytest.raises(InputError, match=f"LinkLoss: {message}"):
        training.make_trainer(GCN, problems.awkward(), (2, 3), loss=link)


def test_relations_of_the_graph_beyond_the_decoders_are_refused():
    problem = problems.edge_data()
    few = nn.Parameter(torch.ones(int(problem.edge_type.max()), 3))

    class Few(nn.Module):
        def __init__(self):
            super().__init__()
            self.few = few

        def forward(self, head, tail, relation):
            return (head * self.few[relation] * tail).sum(1)

    with pytest.raises(InputError, match=f"the graph's edge_type holds relations up to {len(few)}, .* fails: index"):
        training.make_trainer(GCN, problem, (2, 3), loss=hongtu.LinkLoss(decoder=Few()))

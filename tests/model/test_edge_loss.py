"""Link prediction is exact: loss and gradients equal those on the whole graph, with the same sampled negatives."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

import hongtu
from hongtu.cli.main import main
from hongtu.errors import InputError
from hongtu.model.edge_loss import EdgeLoss
from hongtu.model.link_loss import logistic
from tests import additions, problems, training
from tests.additions import some_edges
from tests.models import SIX
from tests.neutral import pieces, write
from tests.training import EXACT, check

GCN = SIX[0]
SMALL = ["--partitions", "2", "--chunks", "3"]
BILINEAR = nn.Bilinear(3, 3, 1, bias=False)


class Scores(nn.Module):
    """A decoder that learns."""

    def __init__(self, *parts):
        super().__init__()
        torch.manual_seed(5)
        self.parts = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), *parts, nn.Linear(4, 1))

    def forward(self, source, destination):
        return self.parts(torch.cat([source, destination], dim=1)).squeeze(1)


class Counting(Scores):
    """A decoder that says something else in each call."""

    calls = 0

    def forward(self, source, destination):
        self.calls += 1
        return super().forward(source, destination) * self.calls


def shifted(source, destination, epoch):
    """Negatives of one's own, for whatever edges are asked for."""
    return torch.stack([(source + destination + epoch) % 64, (3 * source + 1) % 64], dim=1)


def pairs(source, destination, epoch):
    """The same as pairs of their own."""
    return torch.stack([shifted(destination, source, epoch), shifted(source, destination, epoch)])


ALL = *torch.from_numpy(some_edges()), 0
NEGATIVES = {
    "uniform": 2, "function": shifted, "array": shifted(*ALL),
    "uniform pairs": 2, "function of pairs": pairs, "array of pairs": pairs(*ALL),
}  # fmt: skip


@pytest.mark.parametrize("negatives", NEGATIVES)
@pytest.mark.parametrize("grain", [(1, 1), (2, 3)], ids=str)
def test_a_decoder_learns_as_on_the_whole_graph(grain, negatives, tmp_path):
    """Its gradients, and the model's, are those of one graph in memory; snapshots and safetensors hold it."""
    problem, edges = problems.awkward(), torch.from_numpy(some_edges())
    corrupt = "both" if negatives == "uniform pairs" else "destination"
    options = {"val_edges": some_edges(40, 1), "corrupt": corrupt}
    link = hongtu.LinkLoss(some_edges(), NEGATIVES[negatives], decoder=Scores(), block=30, **options)
    trainer = training.make_trainer(GCN, problem, grain, loss=link, seed=additions.SEED, device_memory="64KiB")
    reference, decoder = GCN.build_reference(problem), copy.deepcopy(trainer.decoder)
    optimizer = training.sgd([*reference.parameters(), *decoder.parameters()])
    for epoch in range(3):
        others = NEGATIVES[negatives]
        if isinstance(others, int):
            sampler = EdgeLoss(link, problems.prepare(problem, 1, 1))
            others = torch.from_numpy(sampler.negatives(np.arange(90), additions.SEED, epoch))
        elif callable(others):
            others = others(*edges, epoch)
        heads, tails = others if others.ndim == 3 else (edges[0].unsqueeze(1).expand_as(others), others)
        out = GCN.run_reference(reference, problem)
        both = zip((edges[0], *heads.T), (edges[1], *tails.T), strict=True)
        scores = [decoder(out[source], out[destination]) for source, destination in both]
        truth = torch.zeros(90, 3, dtype=torch.float64).index_fill(1, torch.tensor([0]), 1)
        loss = nn.functional.binary_cross_entropy_with_logits(torch.stack(scores, dim=1), truth)
        optimizer.zero_grad()
        loss.backward()
        record = trainer.train_epoch()
        assert record.loss == pytest.approx(float(loss.detach()), rel=EXACT)
        assert (record.bytes, record.arena_bytes) == (trainer.plan.bytes, trainer.plan.arena_bytes)
        wanted = {f"decoder.{name}": p.grad for name, p in decoder.named_parameters()}
        wanted |= {name: p.grad for name, p in reference.named_parameters()}
        found = trainer.gradients()
        assert found.keys() == wanted.keys()
        for name, gradient in wanted.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-8, atol=1e-12)
        optimizer.step()
    if isinstance(NEGATIVES[negatives], int):
        trainer.save(tmp_path / "run.pt")
        trainer.save(tmp_path / "run.safetensors", format="safetensors")
        for load in ("load", "load_weights"):
            other = hongtu.LinkLoss(some_edges(), 2, decoder=Scores(), **options)
            again = training.make_trainer(GCN, problem, grain, loss=other, seed=additions.SEED)
            getattr(again, load)(tmp_path / ("run.pt" if load == "load" else "run.safetensors"))
            assert again.evaluate() == pytest.approx(trainer.evaluate(), nan_ok=True)
            assert all(map(torch.equal, again.decoder.parameters(), trainer.decoder.parameters()))


def test_negatives_of_evaluation():
    """Given ones count, so that the score is known."""
    held = some_edges(40, 1)
    link = hongtu.LinkLoss(val_edges=held, val_negatives=held[1][:, None], test_edges=held)
    trainer = hongtu.Trainer(problems.prepare(problems.awkward(), 2, 3), GCN.build(problems.awkward()), loss=link)
    found = trainer.evaluate()
    assert found["val"] == 0.5 and found["test"] != 0.5  # each edge against itself


@pytest.mark.long
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


@pytest.mark.long
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


def test_layers_without_parameters_train_embeddings():
    """As LightGCN does."""
    problem, edges = problems.awkward(), some_edges()
    artifact = hongtu.preprocess_graph(
        problem.edges, 64, problems.new_path(), features="embedding:6", labels=problem.labels, masks=problem.masks,
        partitions=2, chunks=3,
    )  # fmt: skip
    theirs, negatives = pyg.LGConv(), some_edges(seed=1)
    layers = [*hongtu.from_pyg(theirs), *hongtu.from_pyg(theirs)]
    trainer = hongtu.Trainer(artifact, layers, loss=hongtu.LinkLoss(edges, negatives[1][:, None]), dtype=torch.float64)
    rows = trainer.embedding.ordered(trainer.embedding.weight.detach()).clone().requires_grad_()
    out = theirs(theirs(rows, problem.edge_index), problem.edge_index)
    source, *ends = (out[at] for at in (*edges, negatives[1]))
    loss = logistic(*((source * end).sum(1).reshape(shape) for end, shape in zip(ends, (-1, (-1, 1))))).mean()
    assert trainer.train_epoch().loss == pytest.approx(loss.item(), rel=1e-12)
    (expected,) = torch.autograd.grad(loss, rows)
    torch.testing.assert_close(trainer.gradients()["embedding.weight"], expected, rtol=1e-9, atol=1e-12)


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


def test_metrics_are_those_of_ogb_and_torchmetrics():
    """Negatives of each edge, as ogbl-citation2 has them, and negatives of all edges, as ogbl-ppa does."""
    from ogb.linkproppred import Evaluator
    from torchmetrics.functional.classification import binary_auroc

    problem, held, pool = problems.awkward(), some_edges(40, 1), some_edges(300, 2)
    own = np.random.default_rng(3).integers(0, 64, (40, 50))
    link = hongtu.LinkLoss(
        some_edges(), val_edges=held, val_negatives=own, test_edges=held, test_negative_edges=pool, block=30
    )
    trainer = hongtu.Trainer(problems.prepare(problem, 2, 3), GCN.build(problem), loss=link, metric={
        "mrr": "mrr", "one": "hits@1", "auc": "auc"})  # fmt: skip
    found, out = trainer.evaluate(), trainer.predict()
    positive, shared = ((out[torch.from_numpy(a)] * out[torch.from_numpy(b)]).sum(1) for a, b in (held, pool))
    negative = (out[torch.from_numpy(held[0])].unsqueeze(1) * out[torch.from_numpy(own)]).sum(2)
    by_edge = Evaluator("ogbl-citation2").eval({"y_pred_pos": positive, "y_pred_neg": negative})
    assert found["val"] == pytest.approx(float(by_edge["mrr_list"].mean()), rel=1e-6)
    scores = torch.cat([positive, shared])
    truth = torch.cat([torch.ones(40), torch.zeros(300)]).long()
    assert found["test auc"] == pytest.approx(float(binary_auroc(scores, truth)), rel=1e-6)
    assert set(found) == {f"{split}{name}" for split in ("train", "val", "test") for name in ("", " one", " auc")}
    hits = hongtu.Trainer(trainer.artifact, trainer.model, loss=replace(link, negatives=100, val_negatives=None),
                          metric="hits@100")  # fmt: skip
    expected = Evaluator("ogbl-ppa").eval({"y_pred_pos": positive, "y_pred_neg": shared})
    assert hits.evaluate()["test"] == pytest.approx(expected["hits@100"]) and 0 < expected["hits@100"] < 1


def test_random_link_split():
    """Its edges are trained on, its negatives ranked; the graph lacks what is to be predicted."""
    import torch_geometric.transforms as transforms
    from torch_geometric.data import Data

    edges = torch.from_numpy(np.unique(np.sort(problems.awkward().edges, axis=0), axis=1))
    data = Data(x=torch.from_numpy(problems.awkward().features), edge_index=edges)
    for labels in (False, True):
        torch.manual_seed(0)
        train, val, test = transforms.RandomLinkSplit(0.2, 0.3, split_labels=labels)(data)
        link = hongtu.LinkLoss.from_split(train, val, test, negatives=2)
        count = edges.shape[1]
        assert link.val_edges.shape == link.val_negative_edges.shape == (2, int(0.2 * count))
        assert link.edges.shape[1] + link.val_edges.shape[1] + link.test_edges.shape[1] == count
        assert {*map(tuple, link.edges.T)} == {*map(tuple, train.edge_index.T.tolist())}
    artifact = hongtu.preprocess_graph(
        data=train, artifact=problems.new_path(), labels="random:2", random_split=(1, 0, 0), partitions=2, chunks=3
    )
    trainer = hongtu.Trainer(artifact, GCN.build(problems.awkward()), loss=link)
    assert all(0 < score < 1 for score in trainer.fit(2, eval_every=1)[-1].metrics.values())
    with pytest.raises(InputError, match="val has no edge_label_index and edge_label"):
        hongtu.LinkLoss.from_split(train, data)


def test_fit_learns_and_scores_links():
    link = hongtu.LinkLoss(negatives=5, val_edges=some_edges())
    trainer = hongtu.Trainer(problems.prepare(problems.awkward(), 2, 3), GCN.build(problems.awkward()), loss=link)
    records = trainer.fit(20, eval_every=5, patience=4)
    assert records[-1].loss < 0.9 * records[0].loss and records[4].metrics["val"] > 0
    without = training.make_trainer(GCN, problems.awkward(), (2, 3), loss=hongtu.LinkLoss())
    with pytest.raises(InputError, match="no val_edges"):
        without.fit(2, eval_every=1, patience=1)


def test_negatives_are_uniform_and_new_in_every_epoch():
    loss, loss_of_pairs = (
        EdgeLoss(hongtu.LinkLoss(negatives=4, corrupt=corrupt), problems.prepare(problems.awkward(), 2, 3))
        for corrupt in ("destination", "both")
    )
    found = loss.negatives(np.arange(8000), seed=1, epoch=0)
    both = loss_of_pairs.negatives(np.arange(8000), seed=1, epoch=0)
    assert abs((both[0] == both[1]).mean() - 1 / 64) < 0.01
    for ends in (found, *both):
        count = np.bincount(ends.ravel(), minlength=64)
        assert ((count - 500) ** 2 / 500).sum() < 110  # chi-squared with 63 degrees of freedom: 1 in 5000
    for other in (loss.negatives(np.arange(8000), 1, 1), loss.negatives(np.arange(8000), 2, 0), found[:, ::-1]):
        assert abs((found == other).mean() - 1 / 64) < 0.01


def of_relations(u, v, relation):
    return (u * v).sum(1) * relation


@pytest.mark.parametrize(
    ("link", "message"),
    [
        (hongtu.LinkLoss(negatives=0), "negatives 0"),
        (hongtu.LinkLoss(corrupt="source"), "corrupt 'source', expected 'destination' or 'both'"),
        (hongtu.LinkLoss(some_edges(), np.zeros((2, 89, 2), int)), r"expected integers \[2, 90, K\]"),
        (hongtu.LinkLoss(np.zeros((3, 2), int)), r"train edges int64 \(3, 2\)"),
        (hongtu.LinkLoss(np.full((2, 1), 64)), "hold vertex 64, expected 0 to 63"),
        (hongtu.LinkLoss(val_edges=np.zeros((2, 0), int)), "val edges"),
        (hongtu.LinkLoss(decoder=lambda u, v: BILINEAR(u, v).squeeze(1)), r"one of shape \(1, 3, 3\), which would not"),
        (hongtu.LinkLoss(decoder=Scores(nn.Dropout(0.5))), "its decoder drops at random"),
        (hongtu.LinkLoss(negatives=np.zeros((90, 2), int)), "train edges, which are not given; pass edges, too"),
        (hongtu.LinkLoss(val_negatives=np.zeros((9, 2), int)), "val edges, which are not given; pass val_edges, too"),
        (hongtu.LinkLoss(negatives=0.5), r"negatives 0.5, expected a whole number, integers \[P, K\]"),
        (hongtu.LinkLoss(some_edges(), decoder=of_relations), "edge_type is not given, .* pass edge_type, integers"),
        (hongtu.LinkLoss(some_edges(), np.zeros((89, 2), int)), r"int64 \(89, 2\), expected integers \[90, K\]"),
        (hongtu.LinkLoss(some_edges(), np.full((90, 2), 64)), "negatives of train edges: vertex 64, expected 0 to 63"),
        (hongtu.LinkLoss(some_edges(), lambda u, v, epoch: v), r"what negatives returns: int64 \(2,\), expected"),
        (hongtu.LinkLoss(decoder=lambda u, v: (u * v).sum(1).softmax(0)), "decoder or loss mixes the rows"),
        (hongtu.LinkLoss(loss=lambda p, n: (1 - p + n.max()).relu(), negatives=2), "decoder or loss mixes the rows"),
        (
            hongtu.LinkLoss(decoder=Scores(nn.BatchNorm1d(4, track_running_stats=False))),
            "decoder or loss mixes the rows",
        ),
        (hongtu.LinkLoss(decoder=Counting()), "gives something else when it is called again"),
        (hongtu.LinkLoss(val_negative_edges=some_edges()), "negative edges of val without its edges"),
        (hongtu.LinkLoss(loss=lambda p, n: logistic(p - p.mean(), n), negatives=2), "decoder or loss mixes the rows"),
    ],
)
def test_wrong_links_are_refused(link, message):
    problem = problems.awkward()
    with pytest.raises(InputError, match=message):
        hongtu.Trainer(problems.prepare(problem, 2, 3), GCN.build(problem), loss=link)


def test_artifacts_without_labels_are_trained_on_links(tmp_path, capsys):
    source = {name: array for name, array in pieces().items() if name in ("edges", "features")}
    write(tmp_path / "in", source)
    assert main(["preprocess", str(tmp_path / "in"), str(tmp_path / "out"), "--task", "links", *SMALL]) == 0
    capsys.readouterr()
    assert main(["train", str(tmp_path / "out"), "--epochs", "3", "--hidden", "4", "--metric", "mrr", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0.5 <= found["train"] <= 1 and found["val"] is None
    layers = [hongtu.nn.GCNConv(5, 4)]
    link = hongtu.Trainer(tmp_path / "out", layers, loss=hongtu.LinkLoss(), metric="mrr")
    assert 0.5 <= link.evaluate()["train"] <= 1
    with pytest.raises(InputError, match="the artifact has no labels; pass loss=hongtu"):
        hongtu.Trainer(tmp_path / "out", layers)
    assert main(["plan", str(tmp_path / "out"), "--hidden", "4"]) == 0
    assert main(["propagate", str(tmp_path / "out")]) == 2 and "holds no classes (links)" in capsys.readouterr().err


def test_metrics_that_links_have_not_are_refused():
    problem = problems.awkward()
    refused = {"f1": "metric 'f1': a LinkLoss takes", "hits@2": "each edge has 1 negatives"}
    for metric, message in (*refused.items(), ({}, "metric: none"), ([], "metric: none")):
        with pytest.raises(InputError, match=message):
            hongtu.Trainer(problems.prepare(problem, 2, 3), GCN.build(problem), loss=hongtu.LinkLoss(), metric=metric)


def test_a_decoder_may_use_what_is_not_learned():
    problem, fixed = problems.awkward(), torch.ones(3)
    link = hongtu.LinkLoss(negatives=3, decoder=lambda u, v: (u * fixed * v).sum(1))
    trainer = hongtu.Trainer(problems.prepare(problem, 2, 3), GCN.build(problem), loss=link)
    assert trainer.train_epoch().loss > 0


def test_a_loss_of_the_wrong_shape_is_refused():
    problem = problems.awkward()
    link = hongtu.LinkLoss(loss=lambda positive, negative: positive.mean())
    with pytest.raises(InputError, match="one loss per edge"):
        hongtu.Trainer(problems.prepare(problem, 2, 3), GCN.build(problem), loss=link)


def test_a_decoder_may_give_a_column():
    """As torch.nn.Bilinear does."""
    problem, losses = problems.awkward(), []
    weight = torch.sin(torch.arange(problem.classes**2, dtype=torch.float64)).view(1, problem.classes, -1)

    def column(u, v):
        return torch.nn.functional.bilinear(u, v, weight)

    for decoder in (column, lambda u, v: column(u, v).squeeze(1)):
        torch.manual_seed(0)
        link = hongtu.LinkLoss(negatives=3, decoder=decoder)
        trainer = hongtu.Trainer(problems.prepare(problem, 2, 3), GCN.build(problem), loss=link, dtype=torch.float64)
        losses.append([trainer.train_epoch().loss, trainer.evaluate()["train"]])
    assert losses[0] == losses[1]

"""Training on ranks, wherever they have what they do not own from: the same numbers as one process, rank by rank."""

from __future__ import annotations

import copy
import dataclasses
import operator
import re
import threading
from functools import partial

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

import hongtu
from hongtu import nn as hnn
from hongtu.errors import InputError
from hongtu.hardware import CPU
from hongtu.model.embedding import NAME
from hongtu.plan.cost.seconds import predict_seconds
from hongtu.preprocess.partition import PARTITIONERS
from hongtu.ranks.stages import FAR, UNREAD, ByLayer, hops_from
from hongtu.train.loop import COMMON
from hongtu.train.planning import plan_ranks
from tests import problems, training
from tests.additions import AGGREGATES, CONNECTIONS, NORMS
from tests.models import SIX, H, Model
from tests.ranks.turns import run_ranks

EPOCHS = 2
SAME = 1e-12  # of the largest gradient entry, in float64


def outcome(trainer):
    """What some epochs, an evaluation and a prediction give."""
    return training.train(trainer, EPOCHS), trainer.evaluate(), trainer.predict()


def check_ranks(ranks, model, problem, grain=(4, 3), *, tolerance=SAME, **options):
    """As ``assert_ranks``, of trainers that are made with these options."""
    one = outcome(training.make_trainer(model, problem, grain, **options))
    every = run_ranks(
        ranks, lambda group: outcome(training.make_trainer(model, problem, grain, ranks=group, **options))
    )
    assert_ranks(every, one, tolerance)


def assert_ranks(every, one, tolerance=SAME, *, near=1e-6):
    """Every rank has the bits of the first, and these are one process's numbers, scores as near as is said."""
    (expected, scores, rows), (found, evaluated, predicted), *others = one, *every
    training.assert_same(found, expected, tolerance)
    assert evaluated == pytest.approx(scores, rel=near, nan_ok=True)
    torch.testing.assert_close(predicted, rows, rtol=tolerance, atol=tolerance * max(float(rows.abs().max()), 1.0))
    for mine, other_scores, other_rows in others:
        assert mine.losses == found.losses
        np.testing.assert_equal(other_scores, evaluated)
        assert torch.equal(other_rows, predicted)
        for gradients, first in zip(mine.gradients, found.gradients, strict=True):
            assert gradients.keys() == first.keys()
            assert all(torch.equal(gradients[name], gradient) for name, gradient in first.items())


@pytest.mark.parametrize("dependencies", ("cache", "comm"))
def test_out_degrees_are_those_of_the_whole_graph(dependencies):
    """A rank has only some of a vertex's out-edges."""
    model = next(model for model in AGGREGATES if model.name == "chebyshev")
    check_ranks(2, model, problems.few_train(), dependencies=dependencies)


over_dependencies = pytest.mark.parametrize("dependencies", ("cache", "comm"))


@pytest.mark.every
@pytest.mark.parametrize("ranks", (2, 3, 4))
@pytest.mark.parametrize("strategy", training.STRATEGIES)
@over_dependencies
@pytest.mark.parametrize("model", SIX, ids=repr)
def test_ranks_give_the_numbers_of_one_process(model, dependencies, ranks, strategy):
    budget = "48KiB" if model.name in ("gat", "ggcn") else "12KiB"  # the smallest that works is 5% to 30% less
    check_ranks(ranks, model, problems.awkward(), strategy=strategy, device_memory=budget, dependencies=dependencies)


@pytest.mark.every
@pytest.mark.parametrize("ranks", (2, 3))
@over_dependencies
@pytest.mark.parametrize("model", SIX, ids=repr)
def test_ranks_without_a_limit_give_the_numbers_of_one_process(model, dependencies, ranks):
    check_ranks(ranks, model, problems.awkward(), dependencies=dependencies)


def test_rows_that_are_fetched():
    """Those that a rank reads of others, once in a direction for the second layer, which alone depends on the first;
    the same bits in every run."""
    problem, ranks = problems.awkward(), 3
    artifact = problems.prepare(problem, 4, 3)

    def work(group):
        trainer = training.make_trainer(SIX[0], problem, (4, 3), ranks=group, dependencies="comm")
        records = [trainer.train_epoch() for _ in range(2)]
        return records, trainer._share.span, trainer._share.num_vertices

    topology, runs = artifact.topology, [run_ranks(ranks, work) for _ in range(2)]
    source = topology.global_sources()
    for rank, ((first, second), own, held) in enumerate(runs[0]):
        read = np.unique(source[topology.in_edge_start[own.start] : topology.in_edge_start[own.stop]])
        halo = int(((read < own.start) | (read >= own.stop)).sum())
        assert halo > 0 and held == own.stop - own.start + halo
        assert first.rows["fetch"] == second.rows["fetch"] == first.rows["send"] == halo
        assert first.bytes["fetch"] == first.bytes["send"] == halo * 3 * 8  # classes: the last layer transforms first
        assert [record.loss for record in runs[1][rank][0]] == [first.loss, second.loss]


DROPPED = Model(
    "dropped",
    lambda f, c: [
        hnn.GATConv(f, H, heads=2, dropout=0.5, input_dropout=0.5), hnn.Dropout(0.5), nn.BatchNorm1d(2 * H),
        nn.LayerNorm(2 * H), hnn.SAGEConv(2 * H, c),
    ],
    lambda f, c: [],
)  # fmt: skip
JUMPING = Model(
    "jumping",
    lambda f, c: [
        (hnn.GCNConv(f, H), "x -> a"), (hnn.GCNConv(H, H), "a -> b"), (hnn.GINConv(nn.Linear(H, H)), "b -> c"),
        (hnn.JumpingKnowledge("cat"), "a, b, c -> d"), (nn.Linear(3 * H, c), "d -> e"),
    ],
    lambda f, c: [],
)  # fmt: skip
HOPS = Model(
    "hops", lambda f, c: [hnn.SGConv(f, H, K=2), nn.ReLU(), hnn.APPNP(2, 0.3), hnn.GCNConv(H, c)], lambda f, c: []
)
EDGES = Model(
    "edges",
    lambda f, c: [hnn.GATConv(f, H, edge_dim=problems.EDGE_COLUMNS), hnn.RGCNConv(H, c, problems.EDGE_TYPES)],
    lambda f, c: [],
)


@pytest.mark.every
@pytest.mark.long(sample=2)
@pytest.mark.parametrize("strategy", ("none", "full"))
@over_dependencies
@pytest.mark.parametrize(
    ("model", "problem"),
    [(DROPPED, problems.awkward), (JUMPING, problems.awkward), (HOPS, problems.awkward), (EDGES, problems.edge_data),
     (SIX[0], problems.few_train), (SIX[4], problems.few_train), (NORMS[0], problems.few_train),
     (NORMS[1], problems.awkward), (NORMS[2], problems.awkward), (CONNECTIONS[2], problems.awkward)],
    ids=["dropout", "jumping", "hops", "edge-data", "few-train-gcn", "few-train-gat", "few-train-norms", "norms",
         "norms-inside", "dense-norms"],
)  # fmt: skip
def test_everything_that_follows_a_vertex(model, problem, dependencies, strategy):
    check_ranks(3, model, problem(), strategy=strategy, seed=3, dependencies=dependencies)


DEEP = Model(
    "deep",
    lambda f, c: [
        hnn.SAGEConv(f, H), nn.ReLU(), hnn.GATConv(H, H, heads=2), nn.ReLU(), hnn.GINConv(nn.Linear(2 * H, H)),
        hnn.GCNConv(H, c),
    ],
    lambda f, c: [],
)  # fmt: skip


@pytest.mark.every
@pytest.mark.long(sample=2)
@pytest.mark.parametrize("first", (2, 3))
@pytest.mark.parametrize("strategy", ("none", "full"))
@pytest.mark.parametrize("model", (DEEP, JUMPING, HOPS, DROPPED, NORMS[0]), ids=repr)
def test_the_first_layers_are_computed_again_and_the_others_fetched(model, strategy, first, monkeypatch):
    monkeypatch.setattr("hongtu.train.trainer.choose_stages", lambda layers, *_: ByLayer(layers, min(first, layers)))
    check_ranks(3, model, problems.awkward(), strategy=strategy, seed=5, dependencies="hybrid")


class AtRandom(ByLayer):
    """Of each vertex that is read any number of stages."""

    fetches = True

    def of(self, topology, first, end):
        found, rng = super().of(topology, first, end), np.random.default_rng(first)
        others = np.flatnonzero((found > 0) & (found <= self.layers))
        found[others] = np.minimum(found[others], rng.integers(1, self.layers + 1, len(others)))
        return np.where(hops_from(topology, first, end, through=found >= 2) == FAR, UNREAD, found)


@pytest.mark.every
@pytest.mark.long(sample=2)
@pytest.mark.parametrize("ranks", (2, 3, 4))
@pytest.mark.parametrize("strategy", ("none", "full"))
@pytest.mark.parametrize("model", (DEEP, JUMPING, HOPS, DROPPED, NORMS[0]), ids=repr)
def test_each_vertex_is_computed_again_as_far_as_is_chosen(model, strategy, ranks, monkeypatch):
    monkeypatch.setattr("hongtu.train.trainer.choose_stages", lambda layers, *_: AtRandom(layers, layers))
    check_ranks(ranks, model, problems.awkward(), strategy=strategy, seed=5, dependencies="hybrid")


@pytest.mark.long
def test_hybrid_is_the_fastest_that_is_predicted():
    """Also where devices are so small that only some of the choices fit."""

    def plans(dependencies, hardware):
        options = {"dependencies": dependencies, "hardware": hardware, "device_memory": "48KiB"}
        return run_ranks(
            3, lambda group: training.make_trainer(DEEP, problems.awkward(), (4, 3), ranks=group, **options).plan
        )

    def slowest(found, hardware):
        return max(predict_seconds(plan, hardware).total for plan in found)

    alone = [plans(dependencies, CPU) for dependencies in ("cache", "comm")]
    for link, expected in ((1e-3, {None}), (3e4, {None, 1, 2, 3}), (1e59, {1, 2})):
        hardware = dataclasses.replace(CPU, network_link=link)
        hybrid = plans("hybrid", hardware)
        (first,) = {plan.choice.halo and plan.choice.halo.first for plan in hybrid}
        assert slowest(hybrid, hardware) <= min(slowest(found, hardware) for found in alone)
        assert first in expected


@pytest.mark.long
@pytest.mark.parametrize("dependencies", ("comm", "hybrid", "cache"))
def test_plans_of_ranks_are_those_that_run(dependencies):
    problem = problems.awkward()
    artifact, hardware = problems.prepare(problem, 4, 3), dataclasses.replace(CPU, network_link=1e8)
    options = {"device_memory": "48KiB", "strategy": "full", "hardware": hardware}

    def layers():
        return [layer.float() for layer in DEEP.build(problem)]

    planned = plan_ranks(artifact, layers(), 3, dependencies, loss="cross_entropy", **options)

    def run(group):
        trainer = hongtu.Trainer(artifact, layers(), ranks=group, dependencies=dependencies, **options)
        record = trainer.train_epoch()
        training.assert_counted(trainer, record)
        return record, trainer.plan.peak_bytes, trainer._share.num_vertices

    for (share, plan), (record, peaks, held) in zip(planned, run_ranks(3, run), strict=True):
        assert (plan.rows, plan.bytes, plan.peak_bytes) == (record.rows, record.bytes, peaks)
        assert len(share.rows) == held
    crossings = [c for share, _ in planned if share.halo for rounds in share.halo.fetched for c in rounds]
    assert sum(crossing.both - crossing.rows for crossing in crossings) == sum(crossing.rows for crossing in crossings)


def test_losses_in_several_terms():
    """Means are over the whole graph's vertices, and a replica's loss is its owner's."""
    problem = problems.awkward()
    weight = np.random.default_rng(0).uniform(0.1, 2, problem.num_vertices)
    terms = [
        hongtu.LossTerm(nn.CrossEntropyLoss(torch.tensor([0.2, 1.0, 3.0])), vertex_weight=weight),
        hongtu.LossTerm(lambda out, target: out.square().mean(1), weight=0.3, mask="val"),
    ]
    check_ranks(2, dataclasses.replace(SIX[1], loss=terms), problem)


@pytest.mark.parametrize("dependencies", ("cache", "comm"))
def test_validation_losses_and_graphs_to_predict_on(dependencies):
    """Validation losses, and predictions without a train mask, are one process's."""
    problem = problems.awkward()
    pieces = {"features": problem.features, "labels": problem.labels, "edge_weight": problem.weights}
    bare = hongtu.preprocess_graph(
        problem.edges, 64, problems.new_path(), **pieces, masks={"test": problem.masks["test"]}, partitions=4, chunks=3
    )

    def run(group):
        options = {"ranks": group, "dtype": torch.float64} | ({"dependencies": dependencies} if group else {})
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
        trainer = hongtu.Trainer(problems.prepare(problem, 4, 3), DEEP.build(problem), scheduler=plateau, **options)
        losses = [record.metrics["val_loss"] for record in trainer.fit(2, eval_every=1)]
        predictor = hongtu.Trainer(bare, DEEP.build(problem), **options)
        return losses, predictor.predict(), predictor.evaluate()["test"]

    alone = run(None)
    for losses, out, score in run_ranks(2, run):
        assert losses == pytest.approx(alone[0], rel=1e-12) and score == alone[2]
        torch.testing.assert_close(out, alone[1], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("problem", (problems.multi_label, problems.regression))
def test_scores_of_other_tasks(problem):
    loss = "bce_with_logits" if problem is problems.multi_label else "mse"
    check_ranks(2, dataclasses.replace(SIX[0], loss=loss), problem(), (2, 3))


def test_scores_by_a_callable_see_the_vertices_of_all_ranks():
    def spread(out, target):
        return (out.argmax(1) == target).double().std() if len(target) > 1 else 0.0

    check_ranks(3, SIX[0], problems.awkward(), metric={"spread": spread, "count": lambda out, target: len(target)})


def test_sparse_features(tmp_path):
    import scipy.sparse

    problem = problems.awkward()
    features = scipy.sparse.csr_matrix(problem.features * (problem.features > 0.5))
    artifact = hongtu.preprocess_graph(
        problem.edges, problem.num_vertices, tmp_path / "artifact", features=features, labels=problem.labels,
        masks=problem.masks, partitions=3, chunks=2,
    )  # fmt: skip

    def rows(**options):
        trainer = hongtu.Trainer(
            artifact, SIX[0].build(problem), optimizer=training.sgd, dtype=torch.float64, **options
        )
        training.assert_counted(trainer, trainer.train_epoch())
        return trainer.predict()

    expected = rows()
    for found in run_ranks(3, lambda group: rows(ranks=group)):
        torch.testing.assert_close(found, expected, rtol=SAME, atol=SAME)


def refusal(ranks, layers, grain=(4, 3), artifact=None, **options):
    """What every rank says."""
    problem = problems.awkward()

    def work(group):
        chosen = {
            name: value(group) if callable(value) and name == "seed" else value for name, value in options.items()
        }
        with pytest.raises(InputError) as caught:
            hongtu.Trainer(artifact or problems.prepare(problem, *grain), layers, ranks=group, **chosen)
        return str(caught.value)

    said = run_ranks(ranks, work)
    return said[0], {text.removeprefix("rank 0: ") for text in said}


def gcn():
    return [hnn.GCNConv(6, H), nn.ReLU(), hnn.GCNConv(H, 3)]


def test_what_ranks_cannot_do_is_refused_by_name_on_every_rank():
    for layers, options, named in (
        (
            [*gcn(), hnn.BatchNorm(3)],
            {"on_oom": "replan"},
            "with statistics over the whole graph the others would wait",
        ),
        ([gcn()[0], nn.Dropout(0.5), gcn()[2]], {}, r"layers\[1\] \(Dropout\): Dropout of torch draws by chunk"),
        (gcn(), {"loss": hongtu.LinkLoss(), "on_oom": "replan"}, "with a LinkLoss the others would wait"),
        (gcn(), {"device_memory": 1}, "the smallest that works is"),
        (gcn(), {"dependencies": "comm", "on_oom": "replan"}, "on_oom 'replan' runs passes of one rank again"),
        (gcn(), {"dependencies": "hybrid", "on_oom": "replan"}, "with dependencies 'hybrid' the others would wait"),
        (gcn(), {"dependencies": "fetch"}, "dependencies 'fetch': expected 'cache', 'comm', 'hybrid'"),
        (gcn(), {"seed": lambda group: group.rank}, "seed: rank 1 has 1, rank 0 has 0"),
    ):
        text, every = refusal(2, layers, **options)
        assert len(every) == 1 or "smallest" in named
        assert re.search(named, text), text
    text, every = refusal(3, gcn(), grain=(2, 3))
    assert "2 partitions for 3 ranks" in text and len(every) == 1


class Version:
    """Another on every thread."""

    def __init__(self):
        self.of = threading.local()

    def __str__(self):
        return f"0.{self.of.rank}"


def features_of(rank):
    problem = problems.awkward()
    return dataclasses.replace(problem, features=problem.features + rank)


def test_ranks_of_another_version_artifact_or_model_are_refused(monkeypatch, tmp_path):
    version, other = Version(), learning(tmp_path / "artifact")
    monkeypatch.setattr(hongtu, "__version__", version)

    def work(group, same, artifact, layers, said):
        version.of.rank = 0 if same else group.rank
        with pytest.raises(InputError, match=said):
            hongtu.Trainer(artifact(group), layers(group), ranks=group, dependencies="comm")

    def usual(group):
        return problems.prepare(problems.awkward(), 4, 3)

    for same, artifact, layers, said in (
        (False, usual, lambda group: gcn(), r"hongtu: rank 1 has 0\.1, rank 0 has 0\.0; give every rank the same"),
        (True, lambda group: other if group.rank else usual(group),
         lambda group: [hnn.GCNConv(5 if group.rank else 6, 3)], "artifact: rank 1 has .* in .*/artifact, rank 0 has"),
        (True, lambda group: problems.prepare(problems.awkward(), 4, 2 + group.rank), lambda group: gcn(),
         "artifact: rank 1 has chunks: 3 in .*, rank 0 has chunks: 2 in .*; give every rank the same"),
        (True, lambda group: problems.prepare(features_of(group.rank), 4, 3), lambda group: gcn(),
         r"artifact: rank 1 has arrays[.]features[.]hash: .* in /.*, rank 0 has arrays[.]features[.]hash: .* in /"),
        (True, usual, lambda group: [(hnn.SAGEConv if group.rank else hnn.GCNConv)(6, 3)], "rank 1 has .*SAGEConv"),
    ):  # fmt: skip
        run_ranks(2, partial(work, same=same, artifact=artifact, layers=layers, said=said))


def test_a_dropout_of_torch_that_drops_nothing_is_taken():
    layers = [hnn.GCNConv(6, H), nn.Dropout(0.0), hnn.GCNConv(H, 3)]
    check_ranks(2, Model("without", lambda f, c: copy.deepcopy(layers), lambda f, c: []), problems.awkward(), (2, 3))


def test_a_budget_that_does_for_one_rank_alone_is_refused_on_both():
    """Neither waits for what the other would say of its rows."""

    def refused(group, budget):
        layers = [hnn.GCNConv(6, H), hnn.GCNConv(H, 3)]
        artifact = problems.prepare(problems.awkward(), 2, 3)
        with pytest.raises(InputError, match="the smallest that works is") as caught:
            hongtu.Trainer(artifact, layers, ranks=group, dependencies="comm", device_memory=budget)
        return int(re.search(r"the smallest that works is (\d+)", str(caught.value))[1])

    first, other = run_ranks(2, lambda group: refused(group, 1))
    assert first != other
    run_ranks(2, lambda group: refused(group, (first + other) // 2))


def alone(change, then):
    """Of a trainer, on the second rank only."""

    def work(group):
        layers = [hnn.GCNConv(6, H), hnn.Dropout(0.5), nn.BatchNorm1d(H), nn.LeakyReLU(0.1), hnn.GCNConv(H, 3)]
        artifact = problems.prepare(problems.awkward(), 2, 3)
        trainer = hongtu.Trainer(artifact, layers, ranks=group, optimizer=training.sgd)
        trainer.train_epoch()
        if group.rank:
            change(trainer)
        then(trainer)

    return work


def double(trainer):
    with torch.no_grad():
        next(trainer.model.parameters()).mul_(2)


@pytest.mark.parametrize(
    ("change", "said"),
    [(double, r"parameter .*: rank 1 has numbers of checksum \w{8}, rank 0 has numbers of checksum \w{8}"),
     (lambda trainer: trainer.model[0].requires_grad_(False), "parameter .*: rank 1 has fixed numbers"),
     (lambda trainer: trainer.optimizer.param_groups[0].update(lr=7.0), "learning rate 0: rank 1 has 7.0, rank 0 has"),
     (lambda trainer: setattr(trainer.model[1], "p", 0.25), r"module 1 \(Dropout\): rank 1 has p 0.25, rank 0 has p 0"),
     (lambda trainer: trainer.model[1].eval(), "module 1 .*: rank 1 has training False, rank 0 has training True"),
     (lambda trainer: setattr(trainer.model[2], "momentum", 0.9), r"module 2 \(BatchNorm1d\): rank 1 has momentum 0."),
     (lambda trainer: trainer.model[2].running_mean.zero_(), "module 2 .*: rank 1 has running_mean of checksum"),
     (lambda trainer: setattr(trainer.model[3], "negative_slope", 0.9), "module 3 .*: rank 1 has negative_slope 0.9")],
    ids=["numbers", "fixed", "rate", "dropout", "mode", "momentum", "buffer", "slope"],
)  # fmt: skip
@pytest.mark.parametrize("then", ["train_epoch", "evaluate", "predict"])
def test_a_rank_that_changes_its_own_is_named(change, said, then):
    def work(group):
        with pytest.raises(InputError, match=said):
            alone(change, operator.methodcaller(then))(group)

    run_ranks(2, work)


@pytest.mark.parametrize("first", (0, 1))
def test_what_convolutions_set_in_a_call_is_not_compared(first):
    """One rank may have called them, where another remembers what that takes."""

    def work(group):
        torch.manual_seed(0)
        own = pyg.FastRGCNConv(6, H, problems.EDGE_TYPES), pyg.GATv2Conv(H, 3, dropout=0.4)
        if group.rank == first:
            own[0](torch.zeros(2, 6), torch.zeros(2, 1).long(), torch.zeros(1).long())
        trainer = hongtu.Trainer(
            problems.prepare(problems.edge_data(), 2, 3), [hnn.PyGLayer(conv) for conv in own], ranks=group
        )
        return [trainer.train_epoch().loss for _ in range(2)], trainer.evaluate()

    assert len({str(found) for found in run_ranks(2, work)}) == 1


class Projects(nn.Module):
    """Rows times numbers that are drawn, and in no state dict."""

    def __init__(self, buffer):
        super().__init__()
        drawn = torch.rand(H, dtype=torch.float64)
        if buffer:
            self.register_buffer("drawn", drawn, persistent=False)
        else:
            self.drawn = drawn

    def forward(self, x):
        return x * self.drawn


def test_buffers_that_are_drawn_are_the_first_ranks():
    def work(group):
        torch.manual_seed(group.rank)
        layers = [hnn.GCNConv(6, H), Projects(buffer=True), hnn.GCNConv(H, 3)]
        artifact = problems.prepare(problems.awkward(), 2, 3)
        return hongtu.Trainer(artifact, layers, dtype=torch.float64, ranks=group).train_epoch().loss, layers[1].drawn

    (loss, first), (other_loss, other) = run_ranks(2, work)
    assert loss == other_loss and torch.equal(first, other)


def test_tensors_that_are_no_buffers_are_compared():
    def work(group):
        torch.manual_seed(group.rank)
        layers = [hnn.GCNConv(6, H), Projects(buffer=False), hnn.GCNConv(H, 3)]
        with pytest.raises(InputError, match=r"tensors of the model: rank 1 has 1.drawn: torch.float64 "):
            hongtu.Trainer(problems.prepare(problems.awkward(), 2, 3), layers, dtype=torch.float64, ranks=group)

    run_ranks(2, work)


def decay(factor):
    return lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, factor)


def rate(by):
    return lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 / (1 + by * epoch))


class Focal(nn.Module):
    def __init__(self, gamma):
        super().__init__()
        self.gamma = gamma

    def forward(self, out, target):
        return nn.functional.cross_entropy(out, target, reduction="none") ** self.gamma


class Powered:
    def __init__(self, gamma):
        self.gamma = gamma

    __call__ = Focal.forward


@pytest.mark.parametrize(
    ("name", "first", "other", "said"),
    [("loss", nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.1), "loss: rank 1 has label_smoothing: 0.1"),
     ("loss", nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="sum"), "loss: rank 1 has reduction: 'sum'"),
     ("loss", nn.MultiMarginLoss(margin=1.0), nn.MultiMarginLoss(margin=0.5), "loss: rank 1 has margin: 0.5, rank 0"),
     ("loss", Focal(1), Focal(2), "loss: rank 1 has gamma: 2, rank 0 has gamma: 1"),
     ("loss", Powered(1), Powered(2), "loss: rank 1 has gamma: 2, rank 0 has gamma: 1"),
     ("scheduler", decay(0.5), decay(0.1), "scheduler: rank 1 has gamma: 0.1"),
     ("loss", nn.CrossEntropyLoss(torch.ones(3).double()), nn.CrossEntropyLoss(torch.arange(3).double()),
      r"loss: rank 1 has weight: torch.float64 \[3\]"),
     ("scheduler", rate(1), rate(2), r"scheduler: rank 1 has lr_lambdas.0.by.closed over: 2, rank 0"),
     ("metric", None, {"count": lambda out, target: len(target)}, "metric: rank 1 has {'count': .*, rank 0 has None"),
     ("detect_anomaly", True, False, "detect_anomaly: rank 1 has False"),
     ("epochs", 2, 3, "epochs: rank 1 has 3"), ("eval_every", 2, 1, "eval_every: rank 1 has 1"),
     ("patience", None, 5, "patience: rank 1 has 5")],
)  # fmt: skip
def test_ranks_that_train_otherwise_are_refused(name, first, other, said):
    """Those that evaluate or stop at other epochs would wait for ever, or take rows of another pass for theirs."""

    def work(group):
        given = {name: other if group.rank else first}
        of_fit = {"epochs": 2, "eval_every": 2} | (given if name in COMMON else {})
        with pytest.raises(InputError, match=said):
            training.make_trainer(
                SIX[0], problems.awkward(), (2, 3), ranks=group, **({} if name in COMMON else given)
            ).fit(**of_fit)

    run_ranks(2, work)


class Draws(nn.Module):
    def forward(self, x):
        return x * torch.rand_like(x)


def test_a_module_that_draws_is_refused_when_it_does():
    with pytest.raises(InputError, match=r"layers\[1\] \(Draws\): draws from torch's generator"):
        run_ranks(2, lambda group: training.make_trainer(
            Model("draws", lambda f, c: [hnn.GCNConv(f, H), Draws(), hnn.GCNConv(H, c)], lambda f, c: []),
            problems.awkward(), (2, 3), ranks=group,
        ).train_epoch())  # fmt: skip


def learning(path):
    """An artifact whose features are learned."""
    problem = problems.awkward()
    return hongtu.preprocess_graph(
        problem.edges, problem.num_vertices, path, features="embedding:5", labels=problem.labels, masks=problem.masks,
        partitions=4, chunks=3,
    )  # fmt: skip


def test_what_learned_embeddings_cannot_have_on_ranks_is_refused(tmp_path):
    artifact, layers = learning(tmp_path / "artifact"), [hnn.GCNConv(5, 3)]
    for options, named in (
        ({}, "learned embeddings, which change, .* use dependencies 'comm'"),
        (
            {"dependencies": "comm", "embedding_optimizer": torch.optim.Adafactor},
            "Adafactor may look at all rows at once",
        ),
    ):
        text, every = refusal(2, layers, artifact=artifact, **options)
        assert len(every) == 1 and re.search(named, text), text

    def unlike(group):
        rate = 0.1 * (1 + group.rank)
        with pytest.raises(InputError, match=r"embedding_optimizer: rank 1 has .*0\.2"):
            hongtu.Trainer(
                artifact, [hnn.GCNConv(5, 3)], ranks=group, dependencies="comm",
                embedding_optimizer=lambda p: torch.optim.SGD(p, lr=rate),
            )  # fmt: skip

    run_ranks(2, unlike)


def both(f, c):
    return [(hnn.GraphNorm(f), "x -> n"), (hnn.SAGEConv(f, H), "n -> h"), (nn.ReLU(), "h -> h"),
            (hnn.JumpingKnowledge("cat"), "h, x -> h"), (hnn.GCNConv(H + f, c), "h -> h")]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("strategy", ("none", "full"))
@pytest.mark.parametrize(
    "layers", (lambda f, c: [hnn.SAGEConv(f, H), nn.ReLU(), hnn.GATConv(H, c)], both), ids=("sage", "norm")
)
def test_learned_embeddings_are_fetched(tmp_path, layers, strategy):
    """Two epochs on three ranks, two more on two: rows, their gradients and optimizer are one process's."""
    artifact = learning(tmp_path / "artifact")

    def epochs(group, before, after):
        torch.manual_seed(0)
        trainer = hongtu.Trainer(
            artifact, layers(5, 3), optimizer=lambda p: torch.optim.Adam(p, lr=0.05), dtype=torch.float64,
            strategy=strategy, clip_grad_norm=0.01, dependencies="comm" if group else "cache", ranks=group,
        )  # fmt: skip
        if before is not None:
            trainer.load(before)
        found = training.train(trainer, 2)
        assert trainer.record.peak_bytes["pageable host"] == trainer.plan.host_bytes["pageable host"]
        trainer.save(after)
        return found, trainer.evaluate(), trainer.predict(), trainer.gradients()[NAME], trainer.state()["embedding"]

    first = epochs(None, None, tmp_path / "one.pt")
    alone = epochs(None, tmp_path / "one.pt", tmp_path / "end.pt")
    begun = run_ranks(3, lambda group: epochs(group, None, tmp_path / "three.pt"))
    ended = run_ranks(2, lambda group: epochs(group, tmp_path / "three.pt", tmp_path / "two.pt"))
    for expected, runs in ((first, begun), (alone, ended)):
        for found, *others in runs:
            training.assert_same(found, expected[0], SAME)
            torch.testing.assert_close(others, list(expected[1:]), rtol=1e-9, atol=1e-11)


def test_a_snapshot_does_not_depend_on_ranks(tmp_path):
    """Two epochs on three ranks that fetch, two more on two that do not: the losses of one process."""

    def epochs(group, before, after, count, **options):
        options |= {"optimizer": lambda p: torch.optim.Adam(p, lr=0.05), "seed": 7}
        trainer = training.make_trainer(DROPPED, problems.awkward(), (4, 3), ranks=group, **options)
        if before is not None:
            trainer.load(before)
        records = trainer.fit(count, run_dir=tmp_path / "run" if before is None else None, eval_every=2)
        trainer.save(after)
        return [record.loss for record in records]

    alone = epochs(None, None, tmp_path / "one.pt", 4)
    (tmp_path / "run" / "epochs.jsonl").unlink()
    begun = run_ranks(3, lambda group: epochs(group, None, tmp_path / "three.pt", 2, dependencies="comm"))
    assert len((tmp_path / "run" / "epochs.jsonl").read_text().splitlines()) == 2  # the first rank writes
    ended = run_ranks(2, lambda group: epochs(group, tmp_path / "three.pt", tmp_path / "two.pt", 2))
    np.testing.assert_allclose(begun[1] + ended[1], alone, rtol=SAME)


@pytest.mark.long
@over_dependencies
def test_rows_are_written_once(tmp_path, dependencies):
    def rows(group):
        trainer = training.make_trainer(NORMS[1], problems.awkward(), (4, 3), ranks=group, dependencies=dependencies)
        there = np.array(trainer.predict(out=tmp_path / "rows.npy"))
        assert np.array_equal(there, trainer.predict().numpy())
        return there, trainer.embed(3), trainer.predict([3, 1])

    expected = rows(None)
    for found in run_ranks(3, rows):
        for mine, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, other, rtol=SAME, atol=SAME)


@pytest.mark.parametrize("dependencies", ("comm", "hybrid"))
def test_a_rank_may_have_no_vertices(dependencies, monkeypatch):
    """A partitioner may leave partitions empty."""
    second_is_empty = np.arange(64) % 3 + (np.arange(64) % 3 > 0)
    monkeypatch.setitem(PARTITIONERS, "metis", lambda *_, **__: second_is_empty.astype(np.int32))
    problem = dataclasses.replace(problems.awkward())
    check_ranks(4, SIX[4], problem, (4, 3), dependencies=dependencies)

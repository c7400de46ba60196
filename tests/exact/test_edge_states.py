"""Models whose edges have states from layer to layer are exact, and what these take is what the plan says."""

from __future__ import annotations

import functools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import hongtu
from hongtu import nn as hnn
from hongtu.errors import InputError
from hongtu.plan.passes.strategy import Strategy
from tests import graphs, problems, staged
from tests.checker.held import VALUE, Held
from tests.checker.spilled import Spilled
from tests.edge_state_models import EdgeModel, GatedWhole, Gine, MeshWhole, Own, OwnWhole, Pair, PairWhole, Sum
from tests.models import H
from tests.problems import prepare
from tests.ranks.turns import run_ranks
from tests.training import STRATEGIES, assert_same, check, make_trainer, sgd, train, train_reference

P = problems.EDGE_COLUMNS


def mesh(block):
    def layers(f, c):
        return [
            (nn.Linear(f, H), "x -> x"), (nn.Linear(P, 3), "e -> e"), nn.ReLU(),
            block(H, 3), block(H, 3, hidden=4, hidden_layers=1, norm=False, aggr="mean"),
            block(H, 3, activation="tanh"), nn.Linear(H, c),
        ]  # fmt: skip

    return layers


def shared(block):
    """Four steps with the same weights, and edges of as many columns as the graph's."""

    def layers(f, c):
        step = block(H, P)
        return [nn.Linear(f, H), step, step, step, step, nn.Linear(H, c)]

    return layers


def wired(own, pair, gine):
    """States taken by several layers, row-wise modules of edges before and between them, one of another layer's, and a
    last state that nobody takes."""

    def layers(f, c):
        return [
            (nn.Linear(P, H), "e -> e0"), (nn.Tanh(), "e0 -> e0"),
            (own(f, H, H), "x, e0 -> x, e1"),
            (nn.LayerNorm(H), "e1 -> n1"), (Sum(), "n1, e0, e1 -> n1"),
            (pair(f + H, H, H), "x, n1 -> x, e2"),
            (gine(nn.Linear(H, H)), "x, e1 -> x"), nn.ReLU(),
            (pair(H, P, H), "x, e -> x, e3"),
            (Sum(), "e1, e2, e3 -> e4"),
            (own(H, H, c), "x, e4 -> x, e5"), nn.Linear(c + H, c),
        ]  # fmt: skip

    return layers


def gated(conv):
    def layers(f, c):
        return [conv(f, H, P), conv(H, H), conv(H, H, norm=None), conv(H, c, H, residual=False, norm=None)]

    return layers


MODELS = [
    EdgeModel("gated", gated(hnn.GatedGCNConv), gated(GatedWhole)),
    EdgeModel("mesh", mesh(hnn.MeshBlock), mesh(MeshWhole)),
    EdgeModel("shared", shared(hnn.MeshBlock), shared(MeshWhole)),
    EdgeModel("wired", wired(Own, Pair, hnn.GINEConv), wired(OwnWhole, PairWhole, Gine)),
]
NOTHING_STAYS = Strategy(resident=False)
models = pytest.mark.parametrize("model", MODELS, ids=repr)


def awkward():
    return problems.edge_data()


@functools.cache
def few():
    """Paths with some edges twice and loops, of which two vertices far from their beginnings carry a loss."""
    v = np.arange(1, 60)
    edges = np.stack([np.r_[v - 1, v[::7], v[::5]], np.r_[v, v[::7], (v[::5] + 1) % 60]])
    problem = problems.problem_of(graphs.Graph("paths", edges, None, 70))
    train = np.isin(np.arange(70), [20, 55])
    masks = {"train": train, "val": ~train, "test": np.zeros_like(train)}
    return problems.with_edge_data(replace(problem, masks=masks))


@models
def test_in_memory(model):
    check(model, awkward(), (1, 1), epochs=2)


@pytest.mark.every
@pytest.mark.long
@models
@pytest.mark.parametrize("grain", [(1, 5), (4, 8)], ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategies(model, grain, strategy):
    check(model, awkward(), grain, strategy=strategy)


@pytest.mark.every
@pytest.mark.long
@models
@pytest.mark.parametrize("budget", ["smallest", 150_000])
def test_budgets(model, budget):
    check(model, awkward(), (2, 6), device_memory=budget)


@pytest.mark.every
@pytest.mark.long
@models
@pytest.mark.parametrize("options", [{}, {"device_memory": "smallest"}], ids=str)
def test_pruned(model, options):
    """States exist only of the in-edges of what the loss depends on, layer by layer."""
    trainer = check(model, few(), (2, 5), **options)
    plan = trainer.plan
    assert plan.choice.fields and any(plan.edge_places(p) for p in plan.passes.train)


@pytest.mark.every
@pytest.mark.long
@models
@pytest.mark.parametrize("problem", [awkward, few], ids=["whole", "pruned"])
def test_devices_with_their_own_memory(model, problem):
    for options in {}, {"device_memory": "smallest"}:
        staged.check(model, problem(), (2, 3), device=staged.simulated(seed=5), **options)


@pytest.mark.every
@pytest.mark.long
@models
@pytest.mark.parametrize(("ranks", "dependencies"), [(2, "cache"), (3, "comm"), (2, "hybrid")], ids=str)
def test_ranks(model, ranks, dependencies):
    """A state lives with the rank of its edge's destination, and where that is computed again."""
    problem = awkward()
    artifact, expected = prepare(problem, 4, 3), train_reference(model, problem).first(2)

    def work(group):
        layers = model.build(problem)
        options = {"loss": model.loss, "optimizer": sgd, "dtype": torch.float64, "dependencies": dependencies}
        trainer = hongtu.Trainer(artifact, layers, ranks=group, **options)
        assert_same(train(trainer, 2), expected, 1e-9)

    run_ranks(ranks, work)


@pytest.mark.every
@pytest.mark.long
@models
@pytest.mark.parametrize("kept", [0, 2])
@pytest.mark.parametrize("device", ["simulated", "cpu"])
def test_on_a_disk(model, kept, device):
    """States are written there in the order of chunks, and come back in that of backward."""
    options = {"device": staged.simulated(seed=2) if device == "simulated" else device, "device_memory": "smallest"}
    with staged.on_disk(fit=functools.partial(staged.everything, kept=kept)) as disk:
        trainer = staged.check(model, awkward(), (2, 4), strategy=NOTHING_STAYS, **options, **disk)
    spilled = trainer.plan.spilled.keys() & trainer.plan.passes.of_edges.keys()
    assert spilled and trainer.record.bytes["disk"] > 0


@pytest.mark.every
@models
@pytest.mark.parametrize("device", ["simulated", "cpu"])
def test_chunks_without_in_edges_on_a_disk(model, device):
    """Three vertices have all in-edges, so that most chunks have no states."""
    known = problems.problem_of(
        graphs.Graph("three", np.random.default_rng(3).integers(0, [[40], [3]], (2, 90)), None, 40)
    )
    options = {"device": staged.simulated(seed=2) if device == "simulated" else device, "device_memory": "smallest"}
    with staged.on_disk() as disk:
        trainer = staged.check(model, problems.with_edge_data(known), (1, 8), strategy=NOTHING_STAYS, **options, **disk)
    assert trainer.plan.spilled.keys() & trainer.plan.passes.of_edges.keys()


def test_the_checker_keeps_what_lies_where_a_chunk_without_in_edges_would():
    """It has no rows, and may leave after the chunk that begins where it does."""
    there, known = SimpleNamespace(where="disk", tensor="e0"), Spilled()
    for count in (3, 0):
        held = Held("e0", count)
        held.row, held.has[:] = np.arange(count), VALUE
        known._put(held, [(64, slice(None))], "disk")
    assert known._get(64, np.arange(3), there).tolist() == [VALUE] * 3


class Dropping(Own):
    """Drops inside, by edge."""

    def __init__(self, *columns):
        super().__init__(*columns)
        self.dropout = hnn.Dropout(0.4)

    def update_edges(self, block, z, s, e):
        return self.dropout(super().update_edges(block, z, s, e))


def test_dropout_draws_by_edge():
    """The same numbers on any grain, on ranks, and again in backward, also where two layers compute a module's."""

    def layers():
        torch.manual_seed(0)
        return [
            (nn.Linear(P, H), "e -> e"), (hnn.Dropout(0.5), "e -> e0"),
            (Dropping(6, H, H), "x, e0 -> x, e"), (Sum(), "e, e0 -> e"), (hnn.Dropout(0.3), "e -> e"),
            (Dropping(H + 6, H, 3), "x, e -> x, e"), nn.Linear(H + 9, 3),
        ]  # fmt: skip

    def run(grain, group=None, **options):
        trainer = hongtu.Trainer(
            prepare(awkward(), *grain), layers(), dtype=torch.float64, optimizer=sgd, ranks=group, **options
        )
        return [trainer.train_epoch().loss for _ in range(3)]

    expected = run((1, 1))
    assert expected != pytest.approx(run((1, 1), seed=1), rel=1e-3)
    for grain, options in ((4, 3), {}), ((2, 5), {"device_memory": 250_000}), ((1, 4), {"strategy": "none"}):
        assert run(grain, **options) == pytest.approx(expected, rel=1e-10)
    run_ranks(2, lambda group: run((4, 3), group) == pytest.approx(expected, rel=1e-10) or pytest.fail("other numbers"))


def test_predictions():
    for model in MODELS:
        trainer = make_trainer(model, awkward(), (2, 3))
        expected = model.run_reference(model.build_reference(awkward()), awkward())
        torch.testing.assert_close(trainer.predict(), expected, rtol=1e-9, atol=1e-9)


def test_host_bytes():
    """E rows of a state for each layer behind which a later one takes it, in memory from forward to backward."""
    problem, layers = awkward(), 4
    edges = problem.edges.shape[1]
    model = EdgeModel("deep", lambda f, c: [hnn.MeshBlock(f, P) for _ in range(layers)] + [nn.Linear(f, c)], None)
    strategy = Strategy(resident=False)
    trainer = make_trainer(model, problem, (1, 3), strategy=strategy, device_memory="1MiB")
    record = trainer.train_epoch()
    states = (layers - 1) * edges * P * 8
    vertices = problem.num_vertices * 8 * (7 * 6 + 3)  # features, z1 to z3 and gradients of some
    assert states <= record.peak_bytes["pinned host"] <= states + 2 * edges * P * 8 + vertices
    assert record.peak_bytes["pinned host"] == trainer.plan.arena_bytes["pinned host"]


class Declared(Own):
    """Says that its aggregate is a sum of z, of which edges are no part."""

    reduce = "sum"


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([(hnn.MeshBlock(6, P), "x -> x")], 'has no rows of edges.*"x, e -> x, e"'),
        ([(hnn.MeshBlock(6, P), "x, y -> x, e")], "takes 'y', which nothing before it gives"),
        ([(hnn.GCNConv(6, 3), "x, e -> x, e")], "gives two values, and it updates no edges"),
        ([(hnn.GCNConv(6, 3), "x, e -> x")], "is given rows of edges, and reads none"),
        ([Declared(6, P, 3)], "updates edges, and declares its aggregate"),
        ([(hnn.GINEConv(nn.Linear(6, 3)), "e, x -> x")], "expected rows of vertices first"),
        ([(Sum(), "x, e -> x"), hnn.GCNConv(6, 3)], "rows of vertices and of edges.*update_edges"),
        ([(nn.BatchNorm1d(P), "e -> e"), hnn.MeshBlock(6, P)], "normalises over all edges.*LayerNorm"),
        ([hnn.MeshBlock(6, P), (nn.Linear(P, 3), "e -> e")], "gives rows of edges.*LinkLoss"),
        ([(nn.Linear(P, 6), "e -> y"), hnn.GCNConv(6, 3)], "nothing takes what it gives"),
        (
            [
                (nn.Dropout(), "e -> e"),
                (hnn.GINEConv(nn.Linear(6, 6), edge_dim=P), "x, e -> x"),
                (Pair(6, P, 3), "x, e -> x, e"),
            ],
            "several layers compute what it gives edges anew.*hongtu.nn.Dropout",
        ),
        ([(nn.Flatten(0), "e -> e"), hnn.MeshBlock(6, P)], "expected floats .rows, columns., a row for each of"),
    ],
    ids=lambda x: "" if isinstance(x, str) else None,
)
def test_refusals(layers, words):
    with pytest.raises(InputError, match=words):
        hongtu.Trainer(prepare(awkward()), layers)


def test_what_is_refused_elsewhere():
    with pytest.raises(InputError, match=r"reads edge_features.*does not have"):
        hongtu.Trainer(prepare(problems.awkward()), [hnn.MeshBlock(6, P)])
    with pytest.raises(ValueError, match="expected 'layer' or None; batch norm"):
        hnn.GatedGCNConv(6, 3, P, norm="batch")
    block = hnn.MeshBlock(6, P)
    block.drop_edges = hnn.EdgeDropout(0.5)
    with pytest.raises(InputError, match="drops edges that have states"):
        hongtu.Trainer(prepare(awkward()), [block])
    trainer = hongtu.Trainer(prepare(awkward()), [(nn.Linear(P, P), "e -> e"), hnn.MeshBlock(6, P), nn.Linear(6, 3)])
    with pytest.raises(InputError, match="layer 0 gives rows of edges"):
        trainer.embed(0)


class Mixing(Own):
    """A mean over the edges of a chunk."""

    def update_edges(self, block, z, s, e):
        return super().update_edges(block, z, s, e - e.mean(0))


def test_mixing_is_refused():
    with pytest.raises(InputError, match="mixes the rows of its input"):
        hongtu.Trainer(prepare(awkward()), [Mixing(6, P, 3), nn.Linear(9, 3)])
    between = [(nn.Softmax(dim=0), "e -> e"), hnn.MeshBlock(6, P)]
    with pytest.raises(InputError, match="mixes the rows of its input"):
        hongtu.Trainer(prepare(awkward()), between)

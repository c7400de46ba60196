"""Layers that read edge features or types are exact, and what they bring is what the plan says."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

import hongtu
from hongtu import nn as hnn
from hongtu.errors import InputError
from hongtu.plan.passes.strategy import get_strategy
from tests import additions, problems, staged, training
from tests.models import H, Model, Wrapped
from tests.training import SINGLE, STRATEGIES, check

P, T = problems.EDGE_COLUMNS, problems.EDGE_TYPES


def awkward():
    return problems.edge_data()


@functools.cache
def few():
    """Two vertices carry a loss: chunks are pruned, and some have no edges at all."""
    return problems.with_edge_data(problems.few_train())


MODELS = {repr(model): model for model in additions.EDGES}
VARIANTS = (
    additions.of(lambda lib, f, c: [lib.GATv2Conv(f, c, add_self_loops=False, edge_dim=P)], "gatv2-without-loops"),
    additions.of(lambda lib, f, c: [lib.GATConv(f, c, add_self_loops=False, edge_dim=P)], "gat-without-loops"),
    additions.of(lambda lib, f, c: [lib.RGCNConv(f, c, T, root_weight=False, bias=False)], "rgcn-bare"),
)
OWN = [MODELS[name] for name in ("edge-gat", "edge-gatv2", "edge-transformer", "gine", "rgcn", "nnconv", "gmm", "cg")]
own = pytest.mark.parametrize("model", OWN, ids=repr)


@pytest.mark.most(4)
@pytest.mark.long
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", ["edge-gat", "rgcn"])
def test_budgets_that_force_eviction(name, strategy, data_graph):
    problem = problems.with_edge_data(problems.planetoid(data_graph("planetoid-cora"), 4))
    trainer = check(MODELS[name], problem, (4, 8), epochs=2, strategy=strategy, device_memory="smallest")
    loaded = [sum(len(device.loads) for device in plan.devices) for plan in trainer.plan.transfers.values()]
    assert max(loaded) > problem.num_vertices, "no row was brought twice: nothing was ever evicted"


@pytest.mark.parametrize("model", VARIANTS, ids=repr)
def test_options_are_exact(model):
    check(model, awkward(), (2, 3), epochs=2, device_memory="smallest")


@pytest.mark.most(2)
@pytest.mark.long
@own
def test_pruned_chunks_and_chunks_without_edges(model):
    """Only what the loss depends on is computed; edge data are read from the whole graph's."""
    trainer = check(model, few(), (4, 8), epochs=2, device_memory="smallest")
    views = list(trainer.plan.views.values())
    assert trainer.plan.choice.fields and any(view.edge_position is not None for view in views)
    assert any((view.chunk_edges == 0).any() for view in views)
    check(model, few(), (2, 3), epochs=2)


@pytest.mark.long
@pytest.mark.parametrize("name", ["edge-gat", "gine", "rgcn", "nnconv"])
def test_single_precision(name):
    check(MODELS[name], awkward(), (2, 3), epochs=2, tolerance=SINGLE, dtype=torch.float32, device_memory="smallest")


@pytest.mark.most(4)
@pytest.mark.long
@own
@pytest.mark.parametrize(("strategy", "grain"), [("full", (4, 8)), ("paper", (1, 7))])
def test_devices_with_memory_of_their_own(model, strategy, grain):
    """Through staging memory, in random order; every counter is the plan's."""
    staged.check(model, awkward(), grain, device=staged.simulated(seed=3), strategy=strategy, device_memory="smallest")
    if model.name in ("edge-gat", "gine"):
        staged.check(model, few(), (2, 3), device=staged.simulated(seed=4))


def test_only_layers_that_read_them_pay_for_them():
    """Bytes per link, of one layer that reads 4-byte features of every edge twice, and of a graph with none."""
    strategy = dataclasses.replace(get_strategy("paper"), once_per_vertex=True)  # loops are edges in the paper's form
    problem, options = awkward(), {"strategy": strategy, "dtype": torch.float32}
    plain = dataclasses.replace(problem, edge_features=None, edge_type=None)
    models = [Model("gat", lambda f, c, d=d: [hnn.GATConv(f, c, edge_dim=d)], lambda f, c: []) for d in (None, P)]
    without, reads = (training.make_trainer(model, problem, (2, 3), **options).plan for model in models)
    assert without.bytes == training.make_trainer(models[0], plain, (2, 3), **options).plan.bytes
    assert without.host_bytes == training.make_trainer(models[0], plain, (2, 3), **options).plan.host_bytes
    edges = problem.edges.shape[1]
    assert [p.name for p in reads.passes.train] == ["forward stage 0", "forward 0", "backward 0", "backward stage 0"]
    assert reads.bytes["topology"] - without.bytes["topology"] == 2 * edges * P * 4
    assert reads.host_bytes["pageable host"] - without.host_bytes["pageable host"] == edges * P * 4


@pytest.mark.long
def test_dropout_on_edges_is_the_same_for_every_cut():
    model = Model(
        "gat-dropout",
        lambda f, c: [
            hnn.GATConv(f, H, heads=2, dropout=0.5, edge_dim=P),
            hnn.GATConv(2 * H, c, 1, True, 0.2, 0.4, edge_dim=P),
        ],
        lambda f, c: [],
    )

    def losses(grain, **options):
        trainer = training.make_trainer(model, awkward(), grain, seed=3, **options)
        return [trainer.train_epoch().loss for _ in range(3)]

    expected = losses((1, 1), strategy="none")
    for grain, strategy in (((1, 7), "paper"), ((2, 3), "none"), ((4, 8), "full")):
        found = losses(grain, strategy=strategy, device_memory="smallest")
        np.testing.assert_allclose(found, expected, rtol=1e-10, err_msg=f"{grain} {strategy}")
    assert losses((2, 3), device=staged.simulated()) == pytest.approx(expected, rel=1e-10)


def test_evaluation_and_prediction_read_them():
    model, problem = MODELS["edge-gat"], awkward()
    expected = model.run_reference(model.build_reference(problem), problem).detach()
    for options in ({"device_memory": "smallest"}, {}, {"device": staged.simulated()}):
        trainer = training.make_trainer(model, problem, (2, 3), **options)
        torch.testing.assert_close(trainer.predict(), expected, rtol=1e-9, atol=1e-9)
        right = (expected.argmax(1) == torch.from_numpy(problem.labels)).numpy()
        test = problem.masks["test"]
        assert trainer.evaluate()["test"] == pytest.approx(right[test].mean())


def test_torch_geometric_layers_do_without_where_they_can():
    """A graph without edge features, a convolution without ``edge_dim``."""
    first, second = lambda f: pyg.GENConv(f, H, norm=None), lambda c: pyg.TransformerConv(H, c)
    model = Model(
        "gen",
        lambda f, c: [hnn.PyGLayer(first(f)), nn.ReLU(), hnn.PyGLayer(second(c))],
        lambda f, c: [Wrapped(first(f)), nn.ReLU(), Wrapped(second(c))],
    )
    check(model, problems.awkward(), (2, 3), epochs=2)


def taken(conv):
    return hnn.PyGLayer(conv(6, 3, T - 1))


REFUSED = (
    (
        problems.awkward,
        lambda: hnn.GATConv(6, 3, edge_dim=P),
        r"layers\[0\] \(GATConv\).*preprocess again.*edge_features.npy",
    ),
    (problems.awkward, lambda: hnn.RGCNConv(6, 3, T), r"layers\[0\] \(RGCNConv\).*edge_type.npy"),
    (awkward, lambda: hnn.RGCNConv(6, 3, T - 1), "num_relations is 2, the graph has 3 edge types"),
    *(
        (
            awkward,
            functools.partial(taken, conv),
            rf"layers\[0\] \(PyGLayer of {conv.__name__}\): num_relations is 2, the graph",
        )
        for conv in (pyg.RGATConv, pyg.FastRGCNConv)
    ),
    (awkward, lambda: hnn.GATConv(6, 3, edge_dim=P + 1), r"layers\[0\] \(GATConv\) failed on a small graph"),
)


@pytest.mark.parametrize(("problem", "layer", "message"), REFUSED)
def test_what_cannot_work_is_refused_before_any_work(problem, layer, message):
    with pytest.raises(InputError, match=message):
        hongtu.Trainer(problems.prepare(problem(), 2, 3), [layer()])


@pytest.mark.parametrize(
    "make",
    [
        lambda: hnn.RGCNConv(4, 4, 2, num_bases=2, num_blocks=2),
        lambda: hnn.RGCNConv(4, 5, 2, num_blocks=2),
        lambda: hnn.RGCNConv(4, 4, 2, aggr="max"),
        lambda: hnn.NNConv(4, 4, nn.Linear(2, 16), aggr="max"),
        lambda: hnn.GMMConv(4, 4, 2, 2, aggr="max"),
        lambda: hnn.CGConv(4, 2, aggr="max"),
        lambda: hnn.GATConv(4, 4, edge_dim=2, fill_value="max"),
        lambda: hnn.GINEConv(nn.Tanh(), edge_dim=2),
    ],
)
def test_options_that_are_not_built_in_are_refused(make):
    with pytest.raises(ValueError, match=r"expected|give one|divided|pass in_channels"):
        make()

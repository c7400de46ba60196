"""Features kept in CSR, in the artifact and on the host: exact, and counted as predicted."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import nn

import hongtu
import hongtu.nn as hnn
from hongtu.errors import InputError
from hongtu.hardware import CPU
from tests import additions, problems, training
from tests.models import SIX
from tests.training import train, train_reference

CASES = (
    ("full", (1, 1), None), ("full", (1, 7), "smallest"), ("full", (2, 3), None), ("full", (4, 8), "smallest"),
    ("paper", (2, 3), "smallest"), ("none", (4, 8), None),
)  # fmt: skip


@functools.cache
def problem():
    """The awkward graph with 40 columns of which a row has two on average, some none."""
    base = problems.awkward()
    rng = np.random.default_rng(5)
    features = rng.normal(size=(base.num_vertices, 40)).astype(np.float32)
    features[rng.random(features.shape) > 0.05] = 0
    features[[0, 13]] = 0
    return replace(base, name="sparse", features=features)


@functools.cache
def artifact(grain, **config):
    given = problem()
    m, n = grain
    return hongtu.preprocess_graph(
        given.edges, given.num_vertices, problems.new_path(), features=scipy.sparse.csr_matrix(given.features),
        labels=given.labels, masks=given.masks, edge_weight=given.weights, partitions=m, chunks=n, **config,
    )  # fmt: skip


@pytest.mark.every
@pytest.mark.long
@pytest.mark.parametrize(("strategy", "grain", "budget"), CASES, ids=str)
@pytest.mark.parametrize("model", SIX, ids=str)
def test_equals_the_whole_graph(model, strategy, grain, budget):
    graph = artifact(grain)
    assert graph.features is None and not (graph.path / "features.npy").exists()
    options = {"optimizer": training.sgd, "dtype": torch.float64, "strategy": strategy}
    if budget == "smallest":
        budget = training.smallest_budget(graph, lambda: model.build(problem()), **options)
    trainer = hongtu.Trainer(graph, model.build(problem()), device_memory=budget, **options)
    training.assert_same(train(trainer, 2), train_reference(model, problem(), 2), 1e-9)


@pytest.mark.long
@pytest.mark.parametrize("model", (*additions.CONNECTIONS, additions.NORMS[0]), ids=repr)
def test_named_values_and_normalisations(model):
    """The features may be a value that later stages take, too."""
    options = {"optimizer": training.sgd, "dtype": torch.float64}
    for grain, strategy, budget in (((1, 7), "full", "256KiB"), ((2, 3), "full", None), ((2, 3), "none", "256KiB")):
        trainer = hongtu.Trainer(
            artifact(grain), model.build(problem()), device_memory=budget, strategy=strategy, **options
        )
        training.assert_same(train(trainer, 2), train_reference(model, problem(), 2), 1e-9)


def two(first, *before):
    return [*before, first, hnn.GCNConv(8, 3)]


MAPPED = {
    "gcn": lambda: two(hnn.GCNConv(40, 8, activation="relu", input_dropout=0.5)),
    "sage": lambda: two(hnn.SAGEConv(40, 8, activation="relu"), hnn.Dropout(0.6)),
    "gin": lambda: two(hnn.GINConv(nn.Sequential(nn.Linear(40, 8), nn.ReLU(), nn.Linear(8, 8)), input_dropout=0.3)),
    "gat": lambda: two(hnn.GATConv(40, 4, heads=2), hnn.Dropout(0.2), hnn.Dropout(1.0), hnn.Dropout(0.0)),
    "residual": lambda: two(hnn.GATConv(40, 4, heads=2, residual=True)),
    "gatv2": lambda: two(hnn.GATv2Conv(40, 4, heads=2, input_dropout=0.4)),
    "transformer": lambda: two(hnn.TransformerConv(40, 4, heads=2), hnn.Dropout(0.4)),
    "linear": lambda: two(hnn.GCNConv(8, 8), hnn.Dropout(0.5), nn.Linear(40, 8), nn.ReLU()),
    "sgc": lambda: two(hnn.SGConv(40, 8, K=1, input_dropout=0.5)),
    "written beside them": lambda: two(hnn.GCNConv(8, 8), nn.Linear(40, 8), nn.ReLU(inplace=True)),
    "two branches": lambda: [(hnn.Dropout(0.5), "x -> y"), (nn.Linear(40, 8), "y -> y"),
                             (hnn.Dropout(0.5), "x -> z"), (nn.Linear(40, 8), "z -> z"), (torch.mul, "y, z -> h"),
                             (hnn.GCNConv(8, 3), "h -> h")],
}  # fmt: skip
DENSE = {
    "project": lambda: two(hnn.SAGEConv(40, 8, project=True)),
    "activation": lambda: two(hnn.GCNConv(40, 8), nn.Tanh()),
    "sent as they are": lambda: two(hnn.TAGConv(40, 8, K=2)),
    "torch dropout": lambda: two(hnn.GCNConv(40, 8), nn.Dropout(0.0)),
    "read later": lambda: [(hnn.Dropout(0.5), "x -> y"), (hnn.GCNConv(40, 8), "y -> z"),
                           (lambda y, z: torch.cat([y, z], 1), "y, z -> h"), (hnn.GCNConv(48, 3), "h -> h")],
}  # fmt: skip


FREE = replace(CPU, chunk_seconds=1e-12, call_seconds=1e-12)  # or so small a graph goes by its calls alone


def losses(graph, layers, change=None, **options):
    torch.manual_seed(1)
    options = {"device": "cpu", "optimizer": training.sgd, "dtype": torch.float64} | options
    if options["device"] == "cpu":
        options["hardware"] = FREE
    trainer = hongtu.Trainer(graph, layers(), **options)
    found = [trainer.train_epoch().loss for _ in range(2)]
    if change is not None:
        change(trainer.model)
        found.append(trainer.train_epoch().loss)
    record = trainer.train_epoch()
    training.assert_counted(trainer, record)
    return [*found, record.loss, *trainer.evaluate().values()], trainer


@functools.cache
def dense(grain):
    return problems.prepare(problem(), *grain)


@pytest.mark.every
@pytest.mark.parametrize("limit", [None, "100%"])
@pytest.mark.parametrize("grain", [(1, 1), (2, 3)], ids=str)
@pytest.mark.parametrize("model", [*MAPPED, *DENSE])
def test_what_only_multiplies_them_takes_them_as_they_are(model, grain, limit):
    """With the numbers of dense rows, of which dropout draws the same."""
    layers, limit = (MAPPED | DENSE)[model], None if grain == (1, 1) else limit
    found, trainer = losses(artifact(grain), layers, device_memory=limit)
    assert found == pytest.approx(losses(dense(grain), layers)[0], rel=1e-9)
    first = next(layer for layer in trainer.model.modules() if isinstance(layer, hnn.Layer))
    sums_first = model == "sage" and not first.transform_first  # is said to be faster on so small a graph
    assert trainer.plan.maps_sparse_input == (model in MAPPED and not sums_first)
    held = [name for p in trainer.plan.passes.every for name in trainer.plan.buffers(p, 0)]
    assert ("features" in held) == (not trainer.plan.maps_sparse_input)


@pytest.mark.parametrize("model", ["gcn", "linear"])
def test_hooks_that_come_between_epochs_see_dense_rows(model):
    def change(model):
        found = next(m for m in model.modules() if type(m) is nn.Linear)
        found.register_forward_hook(lambda module, args, out: 2 * out + args[0].sum(1, keepdim=True))

    found, trainer = losses(artifact((2, 3)), MAPPED[model], change)
    assert found == pytest.approx(losses(dense((2, 3)), MAPPED[model], change)[0], rel=1e-9)
    assert not trainer.plan.maps_sparse_input


@pytest.mark.parametrize("model", SIX[:2], ids=str)
def test_the_cuda_engine_takes_them_too(model):
    options = {"optimizer": training.sgd, "dtype": torch.float64, "device": "simulated"}
    trainer = hongtu.Trainer(artifact((2, 3)), model.build(problem()), **options)
    training.assert_same(train(trainer, 2), train_reference(model, problem(), 2), 1e-9)
    assert trainer.train_epoch().bytes == trainer.plan.bytes


def test_pruned_passes_read_only_their_rows():
    given = problem()
    few = {
        split: np.isin(np.arange(given.num_vertices), [k]) for k, split in ((50, "train"), (51, "val"), (52, "test"))
    }
    given = replace(given, name="few", masks=few)
    graph = hongtu.preprocess_graph(
        given.edges, given.num_vertices, problems.new_path(), features=scipy.sparse.csr_matrix(given.features),
        labels=given.labels, masks=given.masks, edge_weight=given.weights, partitions=2, chunks=3,
    )  # fmt: skip
    for device in ("cpu", "simulated"):
        options = {"optimizer": training.sgd, "dtype": torch.float64, "device": device}
        trainer = hongtu.Trainer(graph, SIX[0].build(given), **options)
        assert trainer.plan.choice.fields, "the plan prunes"
        training.assert_same(train(trainer, 2), train_reference(SIX[0], given, 2), 1e-9)
        assert trainer.train_epoch().bytes == trainer.plan.bytes


def test_nothing_dense_is_on_the_host():
    trainer = hongtu.Trainer(artifact((2, 3)), SIX[0].build(problem()), device_memory="1MiB")
    trainer.train_epoch()
    dense = problem().features.nbytes
    assert trainer.plan.host_bytes["pinned host"] < dense
    rows = trainer.artifact.sparse_features
    assert trainer.plan.bytes["read"] >= 2 * rows.value.nbytes, "forward and backward read them"
    assert "z0" in trainer.plan.passes.width and trainer.plan.passes.width["z0"] < 40


def test_the_artifact_holds_the_rows_in_its_order():
    for config in ({}, {"normalize_features": True}):
        graph = artifact((2, 3), **config)
        expected = problem().features[graph.original_id]
        if config:
            expected = expected / expected.sum(axis=1, keepdims=True).clip(min=1)
        np.testing.assert_allclose(graph.sparse_features.dense(), expected, rtol=1e-6)


def test_few_zeros_are_stored_dense():
    given = problem()
    features = scipy.sparse.csr_matrix(np.ones((given.num_vertices, 3), np.float32))
    graph = hongtu.preprocess_graph(
        given.edges, given.num_vertices, problems.new_path(), features=features, labels=given.labels, masks=given.masks,
        partitions=1, chunks=1,
    )  # fmt: skip
    assert graph.sparse_features is None and graph.features.shape == features.shape


def test_a_column_out_of_range_is_refused(tmp_path):
    given = problem()
    graph = hongtu.preprocess_graph(
        given.edges, given.num_vertices, tmp_path / "artifact", features=scipy.sparse.csr_matrix(given.features),
        labels=given.labels, masks=given.masks, partitions=1, chunks=1,
    )  # fmt: skip
    column = np.load(graph.path / "feature_column.npy")
    column[3] = 40
    np.save(graph.path / "feature_column.npy", column)
    with pytest.raises(InputError, match=r"feature_column\.npy: holds 40, expected 0 to 39"):
        hongtu.Trainer(graph.path, SIX[0].build(given))


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=str)
@pytest.mark.parametrize("as_data", [False, True])
def test_sparse_tensors_stay_sparse(layout, as_data):
    given = problem()
    x = torch.from_numpy(given.features)
    x = x.to_sparse_csr() if layout is torch.sparse_csr else x.to_sparse_coo()
    options = {"labels": given.labels, "masks": given.masks, "partitions": 1, "chunks": 2}
    if as_data:
        data = {"edge_index": given.edge_index, "x": x, "num_nodes": len(x)}
        graph = hongtu.preprocess_graph(data=data, artifact=problems.new_path(), **options)
    else:
        graph = hongtu.preprocess_graph(given.edges, len(x), problems.new_path(), features=x, **options)
    assert np.array_equal(graph.sparse_features.dense(), given.features[graph.original_id])


@functools.cache
def wide(share):
    rng = np.random.default_rng(6)
    features = rng.normal(size=(problem().num_vertices, 300)).astype(np.float32)
    features[rng.random(features.shape) > share] = 0
    return replace(problem(), name="wide", features=features)


def of_width(first, **options):
    return lambda: [first(300, 8, **options), hnn.GCNConv(8, 3)]


@pytest.mark.parametrize(
    ("layers", "options", "expected"),
    [
        (of_width(hnn.GCNConv, input_dropout=0.5), {}, True),
        (of_width(hnn.GCNConv), {"device_memory": "100%"}, True),
        (of_width(hnn.GCNConv), {"device_memory": "100%", "dtype": torch.float32, "host_dtype": "bfloat16"}, True),
        (of_width(hnn.GCNConv), {"device": "simulated"}, False),
        (lambda: [nn.Tanh(), hnn.GCNConv(300, 3)], {}, False),
        (of_width(hnn.TAGConv, K=2), {}, False),
    ],
    ids=["dropout", "budget", "bfloat16", "another device", "activation", "sums first"],
)
def test_dense_rows_that_are_mostly_zeros_are_multiplied_so(layers, options, expected):
    sparse = scipy.sparse.csr_matrix(wide(0.04).features)
    given, graphs = wide(0.04), []
    for features in (given.features, sparse):
        graphs.append(hongtu.preprocess_graph(
            given.edges, given.num_vertices, problems.new_path(), features=features, labels=given.labels,
            masks=given.masks, edge_weight=given.weights, partitions=2, chunks=3,
        ))  # fmt: skip
    found, trainer = losses(graphs[0], layers, **options)
    assert trainer.plan.maps_sparse_input == expected
    assert trainer.artifact.features is not None and trainer.artifact.sparse_features is None
    assert found == pytest.approx(losses(graphs[1], layers, **options)[0], rel=1e-9)


def test_dense_rows_with_too_many_numbers_stay_dense():
    given = wide(0.2)
    _, trainer = losses(problems.prepare(given, 2, 3), of_width(hnn.GCNConv))
    assert not trainer.plan.maps_sparse_input and trainer.plan.shape.sparse_input is None

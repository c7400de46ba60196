"""Models and graphs at the edges of what is allowed: one layer, one vertex, no edges, no parameters."""

from __future__ import annotations

import copy
import dataclasses
import itertools

import numpy as np
import pytest
import torch
from torch import nn

import hongtu
from hongtu import nn as hnn
from tests import models, problems, training
from tests.models import SIX, H
from tests.trainers import artifact, dropout_trainer, gcn, losses_of
from tests.training import STRATEGIES

strategies = pytest.mark.parametrize("strategy", STRATEGIES)


class NoParameters(hnn.Layer):
    reduce = "mean"

    def transform(self, h):
        return h, None


@strategies
def test_a_first_layer_without_parameters(strategy):
    """[mean, mean, GCN] equals a GCN on features averaged twice; no gradient needs to go below the last layer."""
    problem = problems.awkward()
    h = torch.from_numpy(problem.features).double()
    source, destination = problem.edge_index
    degree = torch.bincount(destination, minlength=len(h)).clamp(min=1).unsqueeze(1)
    for _ in range(2):
        h = torch.zeros_like(h).index_add(0, destination, h[source]) / degree
    averaged = dataclasses.replace(problem, features=h.float().numpy())
    last = hnn.GCNConv(6, 3)
    options = {"strategy": strategy, "dtype": torch.float64, "optimizer": training.sgd}
    expected = hongtu.Trainer(problems.prepare(averaged, 1, 1), [copy.deepcopy(last)], **options)
    trainer = hongtu.Trainer(problems.prepare(problem, 2, 3), [NoParameters(), NoParameters(), last], **options)
    assert trainer.train_epoch().loss == pytest.approx(expected.train_epoch().loss, rel=1e-6)  # features are float32
    assert trainer.gradients().keys() == {"2.lin.weight", "2.bias"}
    for name, gradient in expected.gradients().items():
        torch.testing.assert_close(trainer.gradients()[f"2{name[1:]}"], gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.every
@strategies
@pytest.mark.parametrize("index", range(6), ids=[model.name for model in SIX])
def test_a_model_of_one_layer(index, strategy):
    make = [
        lambda: hnn.GCNConv(6, 3), lambda: hnn.SAGEConv(6, 3), lambda: hnn.GINConv(nn.Linear(6, 3)),
        lambda: hnn.CommNetConv(6, 3), lambda: hnn.GATConv(6, 3), lambda: hnn.GGCNConv(6, 3),
    ][index]  # fmt: skip
    import torch_geometric.nn as pyg

    reference = [
        lambda: pyg.GCNConv(6, 3), lambda: pyg.SAGEConv(6, 3), lambda: pyg.GINConv(nn.Linear(6, 3)),
        lambda: models.CommNetReference(6, 3), lambda: pyg.GATConv(6, 3), lambda: pyg.ResGatedGraphConv(6, 3),
    ][index]  # fmt: skip
    model = models.Model("one", lambda f, c: [make()], lambda f, c: [reference()])
    trainer = training.make_trainer(model, problems.awkward(), (2, 3), strategy=strategy, device_memory="smallest")
    training.assert_same(training.train(trainer), training.train_reference(model, problems.awkward(), 2), 1e-9)


@pytest.mark.long
@pytest.mark.parametrize("loops", [0, 1, 3])
def test_a_graph_of_one_vertex(loops):
    arrays = {
        "features": np.ones((1, 4), dtype=np.float32), "labels": np.zeros(1, dtype=np.int64),
        "masks": {"train": np.ones(1, dtype=bool)},
    }  # fmt: skip
    found = hongtu.preprocess_graph(
        np.zeros((2, loops), dtype=np.int64), 1, problems.new_path(), **arrays, partitions=1, chunks=1
    )
    for strategy in STRATEGIES:
        for layers in (
            [hnn.GCNConv(4, 3), nn.ReLU(), hnn.GATConv(3, 2)],
            [hnn.SAGEConv(4, 2), hnn.GGCNConv(2, 2)],
            [hnn.CommNetConv(4, 2), hnn.GINConv(nn.Linear(2, 1))],
        ):
            trainer = hongtu.Trainer(found, layers, strategy=strategy, device_memory="1MiB")
            records = trainer.fit(2, eval_every=1)
            assert all(np.isfinite(record.loss) for record in records)
            assert trainer.predict().shape[0] == 1


@pytest.mark.long
def test_a_graph_without_edges():
    problem = dataclasses.replace(problems.awkward(), edges=np.empty((2, 0), dtype=np.int64), weights=None, name="bare")
    for model, strategy in zip(SIX, itertools.cycle(STRATEGIES), strict=False):
        trainer = training.make_trainer(model, problem, (2, 3), strategy=strategy, device_memory="smallest")
        expected = training.train_reference(model, problem, 2)
        training.assert_same(training.train(trainer, 2), expected, 1e-9)
        if trainer.plan.strategy.once_per_vertex:  # else loops are edges
            assert trainer.plan.rows == dict.fromkeys(trainer.plan.rows, 0)


@pytest.mark.long
def test_empty_chunks():
    """A partition smaller than n has empty chunks."""
    rng = np.random.default_rng(0)
    edges = np.stack([rng.integers(0, 12, 60), np.r_[np.zeros(45, dtype=int), rng.integers(1, 12, 15)]])
    problem = problems.Problem(
        "lopsided", edges, None, rng.normal(size=(12, 6)).astype(np.float32), np.arange(12) % 3,
        dict.fromkeys(("train",), np.ones(12, dtype=bool)),
    )  # fmt: skip
    found = problems.prepare(problem, 3, 4, partitioner="range")
    assert (found.topology.num_dst == 0).any()
    for k, model in enumerate(SIX):
        expected = training.train_reference(model, problem, 2)
        for strategy in ("full", ("none", "paper")[k % 2]):
            options = {"optimizer": training.sgd, "dtype": torch.float64, "strategy": strategy}
            trainer = hongtu.Trainer(found, model.build(problem), **options, device_memory="1MiB")
            training.assert_same(training.train(trainer), expected, 1e-9)


def test_an_artifact_path_will_do():
    trainer = hongtu.Trainer(str(artifact().path), gcn())
    assert trainer.predict().shape == (64, 3)


def test_more_columns_than_classes_are_fine():
    trainer = hongtu.Trainer(artifact(), [hnn.GCNConv(6, 5)])
    trainer.train_epoch()
    assert trainer.predict().shape == (64, 5)


@pytest.mark.long
def test_a_layer_object_used_twice_shares_its_parameters():
    """[in, shared, shared, out] equals the same model with two copies whose gradients are added."""

    def layers(copies):
        torch.manual_seed(0)
        first, shared, last = hnn.GCNConv(6, H), hnn.GATConv(H, H), hnn.SAGEConv(H, 3)
        return [first, shared, nn.Tanh(), copy.deepcopy(shared) if copies else shared, last]

    for strategy in STRATEGIES:
        options = {"strategy": strategy, "dtype": torch.float64, "optimizer": training.sgd}
        once, twice = (hongtu.Trainer(artifact(), layers(copies), **options) for copies in (False, True))
        assert once.train_epoch().loss == pytest.approx(twice.train_epoch().loss, rel=1e-12)
        both = twice.gradients()["1.lin.weight"] + twice.gradients()["3.lin.weight"]
        torch.testing.assert_close(once.gradients()["1.lin.weight"], both, rtol=1e-10, atol=1e-12)


def test_the_callers_default_dtype_does_not_matter():
    expected = losses_of(dropout_trainer().fit(2))
    states = dropout_trainer().model.state_dict()
    torch.set_default_dtype(torch.float16)
    try:
        trainer = dropout_trainer(device_memory="1MiB")
        trainer.model.load_state_dict(states)
        assert losses_of(trainer.fit(2)) == expected
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_same_seed_gives_the_same_run_bit_for_bit():
    first, second = (losses_of(dropout_trainer(dtype=torch.float32).fit(4)) for _ in range(2))
    assert first == second

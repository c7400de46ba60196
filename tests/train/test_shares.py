"""A share of device memory is one of what a run without a limit holds, whatever its layers take."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import hongtu
from hongtu import nn as hnn
from hongtu.device import cpu
from hongtu.train.tracing import probe
from tests import problems, training
from tests.additions import ROWS

V, E, F = 2000, 16_000, 12


def mlp(columns, out):
    return nn.Sequential(nn.Linear(columns, 8), nn.ReLU(), nn.Linear(8, out))


MODELS = {
    "gcn": lambda c: [hnn.GCNConv(F, 8, activation="relu"), hnn.GCNConv(8, c)],
    "many classes": lambda c: [hnn.SAGEConv(F, 8, activation="relu"), hnn.GCNConv(8, c)],
    "nnconv": lambda c: [hnn.NNConv(F, 6, mlp(3, F * 6)), hnn.SAGEConv(6, c)],
    "rgcn": lambda c: [hnn.RGCNConv(F, 8, 4), hnn.RGCNConv(8, c, 4)],
    "gine": lambda c: [hnn.GINEConv(mlp(F, 16), edge_dim=3), nn.ReLU(), hnn.GATConv(16, c)],
    "attention": lambda c: [hnn.GATv2Conv(F, 4, heads=4), nn.Linear(16, 16), hnn.TransformerConv(16, c)],
    "wide between": lambda c: [hnn.GINConv(mlp(F, 8)), nn.Linear(8, 300), nn.ReLU(), hnn.GCNConv(300, c)],
}  # fmt: skip


def artifact(classes, partitions, chunks):
    rng = np.random.default_rng(0)
    return hongtu.preprocess_graph(
        rng.integers(0, V, (2, E)), V, problems.new_path(), features=rng.normal(size=(V, F)).astype(np.float32),
        labels=np.arange(V) % classes, masks={"train": np.arange(V) < V // 3}, partitions=partitions, chunks=chunks,
        edge_features=rng.normal(size=(E, 3)).astype(np.float32), edge_type=rng.integers(0, 4, E),
    )  # fmt: skip


def held(record):
    return max(nbytes for name, nbytes in record.peak_bytes.items() if name.startswith("device"))


@pytest.mark.parametrize("grain", [(1, 1), (2, 6)], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_what_is_likely_is_held(name, grain, monkeypatch):
    monkeypatch.setattr(probe, "SAMPLE", 1 << 12)  # of a block's edges: the whole follows from a part
    monkeypatch.setattr(cpu, "LEAST", 1 << 10)  # what is saved is copied, as it is on larger graphs
    classes = 300 if name == "many classes" else 5
    graph = artifact(classes, *grain)
    torch.manual_seed(0)
    free = hongtu.Trainer(graph, MODELS[name](classes))
    record = free.train_epoch()
    assert held(record) / 1.05 <= free.plan.likely_bytes <= held(record) * 1.15
    torch.manual_seed(0)
    all_of_it = hongtu.Trainer(graph, MODELS[name](classes), device_memory="100%")
    again = all_of_it.train_epoch()
    # a bound on what layers take in chunks may be a little beyond what they take of all: then that is the budget
    assert again.loss == pytest.approx(record.loss, rel=1e-5) and held(again) <= free.plan.likely_bytes * 1.01


@pytest.mark.long
@pytest.mark.parametrize(
    "savings", [{}, {"save": False}, {"resident": False}, {"fuse_last_layer": False, "prune": False}]
)
def test_whatever_is_saved(savings):
    graph, strategy = artifact(5, 2, 6), hongtu.Strategy(**savings)
    free = hongtu.Trainer(graph, MODELS["attention"](5), strategy=strategy)
    record = free.train_epoch()
    assert held(record) / 1.05 <= free.plan.likely_bytes <= held(record) * 1.15
    hongtu.Trainer(graph, MODELS["attention"](5), strategy=strategy, device_memory="100%").train_epoch()


@pytest.mark.parametrize("name", ["PNAConv", "gine", "rgcn"])
def test_all_of_it_is_enough_of_the_smallest_graphs(name):
    model, problem = next((model, problem()) for model, problem in ROWS if model.name == name)
    record = training.make_trainer(model, problem, device_memory="100%").train_epoch()
    assert record.loss == pytest.approx(training.train_reference(model, problem, 1).losses[0])

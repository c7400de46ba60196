"""ogbn-arxiv's real graph (169k vertices, 1.2M edges; random features) within 32 MiB on each of four devices."""

from __future__ import annotations

import pytest
import torch

import hongtu
from hongtu.config import PreprocessConfig
from hongtu.nn import GATConv, GCNConv
from hongtu.preprocess.entry import preprocess_directory

BUDGET = 32 * 2**20
WIDTH, CLASSES = 64, 40


@pytest.fixture(scope="module")
def artifact(data_graph, tmp_path_factory):
    config = PreprocessConfig(partitions=4, chunks=16, features=f"random:{WIDTH}")
    return preprocess_directory(data_graph("ogbn-arxiv"), tmp_path_factory.mktemp("arxiv") / "artifact", config)


def three_gcn():
    torch.manual_seed(0)
    return [GCNConv(WIDTH, 64, activation="relu"), GCNConv(64, 64, activation="relu"), GCNConv(64, CLASSES)]


def two_gat():
    """Hidden 32: four heads of eight."""
    torch.manual_seed(0)
    return [GATConv(WIDTH, 8, heads=4, activation="elu"), GATConv(32, CLASSES)]


def train_in_budget(artifact, layers, epochs):
    trainer = hongtu.Trainer(artifact, layers, device_memory="32MiB")
    records = trainer.fit(epochs)
    devices = [f"device {i}" for i in range(4)]
    assert max(trainer.plan.peak_bytes[name] for name in devices) <= BUDGET
    for record in records:
        assert max(record.peak_bytes[name] for name in devices) <= BUDGET
        assert all(record.peak_bytes[name] <= trainer.plan.peak_bytes[name] for name in devices)
        assert record.arena_bytes == trainer.plan.arena_bytes
        assert (record.rows, record.bytes) == (trainer.plan.rows, trainer.plan.bytes)
    return trainer, records


@pytest.mark.long
def test_three_layers_of_gcn(artifact):
    """Within the budget, learning, and with the loss of a run that has all the memory it wants."""
    _, records = train_in_budget(artifact, three_gcn(), epochs=2)
    assert records[1].loss < records[0].loss
    unlimited = hongtu.Trainer(artifact, three_gcn()).train_epoch()
    assert records[0].loss == pytest.approx(unlimited.loss, rel=1e-5)
    assert max(unlimited.peak_bytes[f"device {i}"] for i in range(4)) > 2 * BUDGET


@pytest.mark.long
def test_two_layers_of_gat(artifact):
    trainer, _ = train_in_budget(artifact, two_gat(), epochs=1)
    assert trainer.plan.schedules[None].shape[1] > 1, "everything ran at once: the budget did not bind"

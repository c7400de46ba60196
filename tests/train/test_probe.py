"""What layers take for large blocks follows from what they take for smaller ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

import hongtu
from hongtu import nn as hnn
from hongtu.train.tracing import probe
from tests import training
from tests.exact.harness import run_case

V, E, F = 4000, 60_000, 24
MODELS: dict[str, Any] = {
    "gcn": lambda: [hnn.GCNConv(F, 32), nn.ReLU(), hnn.GCNConv(32, 8)],
    "gat": lambda: [hnn.GATConv(F, 8, heads=4), nn.ELU(), hnn.GATConv(32, 8)],
    "max": lambda: [hnn.SAGEConv(F, 32, aggr="max"), nn.BatchNorm1d(32), nn.ReLU(), hnn.SAGEConv(32, 8)],
    "rows of edges": lambda: [hnn.PyGLayer(pyg.GATv2Conv(F, 8, add_self_loops=False)), hnn.PyGLayer(pyg.CGConv(8))],
}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Any:
    rng = np.random.default_rng(0)
    ends = np.stack([(rng.random(E) ** 2 * V).astype(np.int64), (rng.random(E) ** 2 * V).astype(np.int64)])
    return hongtu.preprocess_graph(
        ends, V, tmp_path_factory.mktemp("probe") / "graph", features=rng.standard_normal((V, F)).astype(np.float32),
        labels=rng.integers(0, 8, V), masks={"train": rng.random(V) < 0.5}, partitions=1, chunks=4, order="input",
    )  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_large_blocks_follow_from_smaller_ones(name: str, graph: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    trainer = hongtu.Trainer(graph, MODELS[name](), loss="cross_entropy", device_memory="100%")
    plan, found = trainer.plan, []
    for most in (1 << 30, 1 << 12):
        monkeypatch.setattr(probe, "SAMPLE", most)
        monkeypatch.setattr(probe, "_probed", {})
        for view in plan.views.values():
            view.memo.clear()
        found.append(probe.probe_workspace(plan, trainer._network, trainer._loss, V, torch.float32))
    run, followed = found
    assert run.keys() == followed.keys() and max(run.values()) > 0
    for key in run:
        assert run[key] <= followed[key] <= run[key] + (probe.CLOSE + 1e-3) * max(followed.values())


def test_they_are_a_bound(graph: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "SAMPLE", 1 << 12)
    for name in MODELS:
        trainer = hongtu.Trainer(graph, MODELS[name](), loss="cross_entropy", device_memory="60%")
        record = trainer.train_epoch()
        assert record.peak_bytes["device 0"] <= trainer.plan.peak_bytes["device 0"]


def test_few_edges_of_other_relations_are_planned_for() -> None:
    """Blocks of one relation each do not tell what edges of another take beside them."""
    assert run_case(940375).wrong == ""


@pytest.mark.parametrize("aggr", ("max", "mean", "min", "add"))
@pytest.mark.parametrize(("types", "edges", "vertices"), [(3, 10, 63), (2, 40, 20), (5, 5, 30)])
def test_edges_of_every_relation_are_counted(types, edges, vertices, aggr, tmp_path):
    """A layer that keeps something of each relation takes more where none is empty."""
    draw = np.random.default_rng(0)
    artifact = hongtu.preprocess_graph(
        draw.integers(0, vertices, (2, edges)), vertices, tmp_path / "out", partitions=1, chunks=1,
        features=draw.normal(size=(vertices, 4)).astype(np.float32), labels=draw.integers(0, 3, vertices),
        masks={"train": np.ones(vertices, bool)}, edge_type=draw.integers(0, types, edges),
    )  # fmt: skip

    def layers():
        convs = [hnn.PyGLayer(pyg.RGCNConv(*columns, types, aggr=aggr)) for columns in ((4, 5), (5, 3))]
        return [convs[0], nn.ReLU(), convs[1]]

    options = {"dtype": torch.float64, "strategy": "none"}
    budget = training.smallest_budget(artifact, layers, **options)
    trainer = hongtu.Trainer(artifact, layers(), device_memory=budget, **options)
    training.assert_counted(trainer, trainer.train_epoch())

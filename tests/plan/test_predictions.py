"""Predicted equals measured, over random combinations of graph, layers, m, n, budget and strategy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import hongtu
from hongtu import nn as hnn
from hongtu.errors import BudgetError

pyg = pytest.importorskip("torch_geometric.nn")

COMBINATIONS = 40
SHARDS = 8


class Plain(hnn.Layer):
    """forward(block, h), with edge weights."""

    def __init__(self, columns_in, columns_out):
        super().__init__()
        self.lin = nn.Linear(columns_in, columns_out)

    def forward(self, block, h):
        return self.lin(h[: block.num_dst] + block.sum(h, weighted=True))


class Custom(hnn.Layer):
    """A linear aggregate of its own, and s as a tuple of a copy and of z itself."""

    linear_aggregate = True

    def __init__(self, columns_in, columns_out):
        super().__init__()
        self.lin = nn.Linear(columns_in, columns_out)

    def transform(self, h):
        z = self.lin(h)
        return z, (z, torch.tanh(z))

    def aggregate(self, block, z, s):
        return block.segment_sum(block.gather(z))

    def update(self, a, s):
        return a + s[0] * s[1]


LAYERS = {
    "gcn": lambda i, o: hnn.GCNConv(i, o, activation="relu"),
    "sage": lambda i, o: hnn.SAGEConv(i, o, input_dropout=0.5),
    "gin": lambda i, o: hnn.GINConv(nn.Sequential(nn.Linear(i, o), nn.ReLU())),
    "commnet": hnn.CommNetConv,
    "gat": lambda i, o: hnn.GATConv(i, o, heads=2, concat=False, dropout=0.3),
    "ggcn": hnn.GGCNConv,
    "plain": Plain,
    "custom": Custom,
    "pyg sage": lambda i, o: hnn.PyGLayer(pyg.SAGEConv((i, i), o, aggr="max")),
    "pyg gat": lambda i, o: hnn.PyGLayer(pyg.GATv2Conv((i, i), o)),
    "pyg transformer": lambda i, o: hnn.PyGLayer(pyg.TransformerConv((i, i), o, dropout=0.2)),
}


def random_graph(rng):
    num_vertices, num_edges = int(rng.integers(8, 90)), int(rng.integers(0, 500))
    source = rng.integers(0, num_vertices, num_edges)
    source[rng.random(num_edges) < 0.2] = 3  # a hub
    edges = np.stack([source, rng.integers(0, num_vertices, num_edges)])
    weight = rng.random(num_edges).astype(np.float32) if rng.random() < 0.5 else None
    features = rng.normal(size=(num_vertices, int(rng.integers(1, 9)))).astype(np.float32)
    train = rng.random(num_vertices) < 0.5
    train[0] = True
    labels = rng.integers(0, 3, num_vertices)
    labels[:3] = (0, 1, 2)
    return (
        edges,
        num_vertices,
        {"features": features, "labels": labels, "masks": {"train": train}, "edge_weight": weight},
    )


def random_layers(rng, columns):
    names = rng.choice(list(LAYERS), size=int(rng.integers(1, 4)))
    widths = [columns, *rng.integers(1, 12, len(names) - 1).tolist(), 3]
    layers = []
    for k, name in enumerate(names):
        layers.append(LAYERS[name](widths[k], widths[k + 1]))
        if rng.random() < 0.3:
            layers.append(nn.LayerNorm(widths[k + 1]))
    return names, layers


@pytest.mark.most(4)
@pytest.mark.long
@pytest.mark.parametrize("shard", range(SHARDS))
def test_predicted_equals_measured(shard, tmp_path):
    rng = np.random.default_rng(shard)
    budgeted = 0
    for k in range(COMBINATIONS // SHARDS):
        edges, num_vertices, pieces = random_graph(rng)
        m = int(rng.integers(1, 5))
        n = int(rng.integers(1, max(2, num_vertices // m) // 2 + 1))
        artifact = hongtu.preprocess_graph(edges, num_vertices, tmp_path / str(k), partitions=m, chunks=n, **pieces)
        torch.manual_seed(k)
        names, layers = random_layers(rng, artifact.feature_width)
        strategy = str(rng.choice(["none", "paper", "full"]))
        options = {"strategy": strategy, "dtype": (torch.float32, torch.float64)[k % 2]}
        budget = None
        if rng.random() < 0.8:
            budget = int(smallest(artifact, layers, options) * rng.choice([1.0, 1.05, 1.5, 3.0]))
            budgeted += 1
        trainer = hongtu.Trainer(artifact, layers, device_memory=budget, **options)
        record = trainer.train_epoch()
        case = f"shard {shard}, case {k}: {names}, m={m}, n={n}, {strategy}, budget {budget}"
        assert np.isfinite(record.loss), case
        assert record.bytes == trainer.plan.bytes, case
        assert record.rows == trainer.plan.rows, case
        assert record.arena_bytes == trainer.plan.arena_bytes, case
        if budget is not None:
            for name, peak in record.peak_bytes.items():
                assert peak <= trainer.plan.peak_bytes[name], (case, name)
                assert name.endswith("host") or peak <= budget, (case, name)
        trainer.evaluate()  # within the budget too
    assert budgeted > COMBINATIONS // SHARDS // 3


def smallest(artifact, layers, options):
    """The smallest budget that works, as the refusal of a hopeless one names it."""
    with pytest.raises(BudgetError) as refused:
        hongtu.Trainer(artifact, layers, device_memory=1, **options)
    return int(str(refused.value).split("smallest that works is ")[1].split(" ")[0])


def test_a_vertex_that_needs_more_than_the_budget_is_named(tmp_path):
    """Vertex 5 reads everyone; with a chunk per vertex nothing finer is left."""
    everyone = np.arange(12)
    edges = np.stack([everyone, np.full(12, 5)])
    pieces = {"features": np.ones((12, 8), np.float32), "labels": everyone % 2, "masks": {"train": everyone < 6}}
    artifact = hongtu.preprocess_graph(edges, 12, tmp_path / "a", partitions=1, chunks=12, **pieces)
    with pytest.raises(BudgetError, match=r"the one vertex 5 with all its in-edges"):
        hongtu.Trainer(artifact, [hnn.GCNConv(8, 2)], device_memory=100)

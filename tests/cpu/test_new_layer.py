"""A layer of a kind that nobody thought of, written from docs/layers.md alone: it reads edge features, has parameters
of its own on edges, drops edges' elements and gives two outputs, all in ``forward(block, h)``."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hongtu import nn as hnn
from tests import staged, training
from tests.cpu.test_counters import check_counters
from tests.cpu.test_edge_data import P, awkward, few
from tests.cpu.test_exact import check
from tests.training import STRATEGIES, Model

EDGES = awkward().edges.shape[1]


class Tides(hnn.Layer):
    """Two outputs: how far a vertex is from its neighbours, and what flows in, through channels of learned width.

    An edge's flow is tanh(A h_s) times strength * sigmoid(B e), with a strength of its own and its features e.
    """

    uses_edge_features = True

    def __init__(self, columns_in, columns_out, num_edges):
        super().__init__()
        self.a = nn.Linear(columns_in, columns_out)
        self.b = nn.Linear(P, columns_out)
        self.root = nn.Linear(columns_in, columns_out)
        self.strength = nn.Parameter(torch.linspace(-1, 1, num_edges))

    def forward(self, block, h):
        strength = self.strength[block.edge_ids].unsqueeze(1)
        flow = block.gather(torch.tanh(self.a(h))) * strength * torch.sigmoid(self.b(block.edge_features))
        own = h[: block.num_dst]
        distance = (block.gather(h) - block.gather_destination(own)).square()
        return torch.cat([block.segment_mean(distance), self.root(own) + block.segment_sum(flow)], dim=1)


class Parted(hnn.Layer):
    """Takes its two inputs apart: the first says how much of the second passes."""

    def __init__(self, first, columns_in, columns_out):
        super().__init__()
        self.first = first
        self.gate, self.lin = nn.Linear(first, columns_in - first), nn.Linear(columns_in - first, columns_out)

    def forward(self, block, h):
        distance, tide = h[:, : self.first], h[:, self.first :]
        return self.lin(block.sum(torch.sigmoid(self.gate(distance)) * tide))


class TidesWhole(Tides):
    """The same on the whole graph, in plain torch."""

    def forward(self, h, edge_index, edge_attr):
        source, destination = edge_index
        strength = torch.empty_like(self.strength)
        strength[destination.argsort(stable=True)] = self.strength  # edge k of docs/layers.md
        flow = torch.tanh(self.a(h))[source] * strength.unsqueeze(1) * torch.sigmoid(self.b(edge_attr))
        distance = (h[source] - h[destination]).square()
        count = torch.bincount(destination, minlength=len(h)).clamp(min=1).unsqueeze(1)
        mean = torch.zeros_like(h).index_add(0, destination, distance) / count
        return torch.cat([mean, self.root(h).index_add(0, destination, flow)], dim=1)


class PartedWhole(Parted):
    def forward(self, h, edge_index):
        distance, tide = h[:, : self.first], h[:, self.first :]
        passed = torch.sigmoid(self.gate(distance)) * tide
        return self.lin(torch.zeros_like(passed).index_add(0, edge_index[1], passed[edge_index[0]]))


MODEL = Model(
    "tides",
    lambda f, c: [Tides(f, 4, EDGES), Parted(f, f + 4, 5), nn.ReLU(), Tides(5, c, EDGES), nn.Linear(5 + c, c)],
    lambda f, c: [TidesWhole(f, 4, EDGES), PartedWhole(f, f + 4, 5), nn.ReLU(), TidesWhole(5, c, EDGES),
                  nn.Linear(5 + c, c)],
)  # fmt: skip


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_is_exact(strategy):
    check(MODEL, awkward(), (4, 8), epochs=2, strategy=strategy, device_memory="smallest")
    check(MODEL, awkward(), (2, 3), epochs=2, strategy=strategy)
    check(MODEL, few(), (2, 3), epochs=2, strategy=strategy, device_memory="smallest")


def test_it_is_exact_on_devices_with_memory_of_their_own():
    staged.check(MODEL, awkward(), (4, 8), device=staged.dry(seed=1), device_memory="smallest")


def test_it_is_counted():
    trainer = training.make_trainer(MODEL, awkward(), (2, 3), device_memory="smallest")
    check_counters(trainer)
    assert trainer.plan.shape.model_bytes > 2 * 2 * 8 * EDGES  # each strength and its gradient, of both layers

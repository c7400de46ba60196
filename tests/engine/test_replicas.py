"""One network for every GPU: who shares one, what is copied before passes and added up behind them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from hongtu.engine.replicas import Replicas
from hongtu.model.network import Network
from hongtu.nn import Dropout, GCNConv
from hongtu.nn.context import RowContext


@pytest.fixture
def replicas():
    """Three partitions on two GPUs."""
    backend = SimpleNamespace(gpu_of=lambda partition: partition % 2, where=lambda gpu: torch.device("cpu"))
    modules = nn.ModuleList([GCNConv(3, 4), nn.BatchNorm1d(4), Dropout(0.5), GCNConv(4, 2)])
    modules[2].steps = [1]
    return Replicas(Network(modules, RowContext(seed=7)), backend, 3)


def test_partitions_of_one_gpu_share_a_network(replicas):
    home, other = replicas.every
    assert replicas.of == [home, other, home] and home is not other
    assert all(a is not b for a, b in zip(home.modules.parameters(), other.modules.parameters(), strict=True))


def test_all_begin_alike(replicas):
    home, other = replicas.every
    with torch.no_grad():
        for value in (*home.modules.parameters(), home.modules[1].running_mean):
            value.add_(1.5)
    home.modules[0].lin.weight.requires_grad_(False)
    home.modules[1].eval()
    home.modules[2].p = 0.25
    home.modules[2].steps.append(2)
    for parameter in other.modules.parameters():
        parameter.grad = torch.ones_like(parameter)
    replicas.spread(training=True, epoch=5)
    pairs = list(zip(home.modules.parameters(), other.modules.parameters(), strict=True))
    assert all(torch.equal(a, b) and a.requires_grad == b.requires_grad for a, b in pairs)
    assert torch.equal(home.modules[1].running_mean, other.modules[1].running_mean)
    assert [module.training for module in other.modules] == [True, False, True, True] and other.modules[2].p == 0.25
    assert other.modules[2].steps == [1, 2] and other.modules[2].steps is not home.modules[2].steps
    assert (other.context.epoch, other.context.seed, other.context.training) == (5, home.context.seed, True)
    assert other.modules[0].lin.weight.grad is None
    assert all(not b.grad.any() for _, b in pairs if b.requires_grad)
    replicas.spread(training=False)
    assert [network.context.training for network in replicas.every] == [False, False] and other.context.epoch == 5


def test_gradients_are_added_up_at_home(replicas):
    home, other = replicas.every
    replicas.spread(training=True)
    for k, (a, b) in enumerate(zip(home.modules.parameters(), other.modules.parameters(), strict=True)):
        a.grad, b.grad = (torch.full_like(x, value) for x, value in ((a, k), (b, 10.0)))
    home.modules[0].lin.weight.grad = None  # frozen
    replicas.reduce()
    found = [None if p.grad is None else float(p.grad.flatten()[0]) for p in home.modules.parameters()]
    names = [name for name, _ in home.modules.named_parameters()]
    assert found == [None if name == "0.lin.weight" else k + 10.0 for k, name in enumerate(names)]

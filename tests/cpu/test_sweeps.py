"""What stages are said to read and write is what their operations do."""

from __future__ import annotations

import pytest
import torch

from hongtu import nn as hnn
from hongtu.connections import as_modules
from hongtu.network import Network
from hongtu.nn.context import RowContext
from hongtu.plan.shapes import Sweeps
from hongtu.sweeps import stage_sweeps
from hongtu.tracing import trace


def sweeps(*layers: object, features: int = 5) -> tuple[Sweeps, ...]:
    network = Network(as_modules(layers), RowContext())
    network.modules.eval()
    found = stage_sweeps(network, trace(network, features, torch.float32), features, torch.float32)
    assert not network.modules.training
    return found


def test_a_sum_over_neighbours_sweeps_nothing_by_itself() -> None:
    """Its linear maps are products, which are counted apart; adding the second to the first is one, too. The bias's
    gradient is a sum over rows."""
    first, last = sweeps(hnn.SAGEConv(5, 3))
    assert first == Sweeps() and (last.forward, last.backward) == (0, 3)
    assert last.forward_calls >= 2 and last.backward_calls >= 3


def test_a_row_wise_module_sweeps_what_it_takes_and_gives() -> None:
    """relu reads 5 columns and writes 5; backward reads its output and a gradient, and writes a gradient."""
    first, last = sweeps(torch.nn.ReLU(), hnn.SAGEConv(5, 3))
    assert first == Sweeps(forward=10, forward_calls=1) and last.forward == 0  # the features get no gradient
    _, middle, _ = sweeps(hnn.SAGEConv(5, 4), torch.nn.ReLU(), hnn.SAGEConv(4, 3))
    assert middle.forward == 8 and middle.backward >= 12


@pytest.mark.parametrize("width", [3, 40])
def test_sweeps_grow_with_columns(width: int) -> None:
    layers = [hnn.SAGEConv(5, width), torch.nn.ReLU(), torch.nn.Tanh(), hnn.SAGEConv(width, 3)]
    assert sweeps(*layers)[1].forward == 4 * width


def test_randomness_and_parameters_stay_as_they_were() -> None:
    torch.manual_seed(3)
    layers = [hnn.SAGEConv(5, 4), torch.nn.Dropout(0.5), hnn.GCNConv(4, 3)]
    expected = torch.get_rng_state()
    assert sweeps(*layers)[1].forward > 0
    assert torch.equal(torch.get_rng_state(), expected)
    assert all(p.grad is None for layer in layers for p in layer.parameters())

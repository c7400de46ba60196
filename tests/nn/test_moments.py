"""Mean and variance that are gathered chunk by chunk."""

from __future__ import annotations

import torch

from hongtu.nn.whole_graph import Moments


def gathered(x, *cuts):
    found = Moments(torch.zeros(2, x.shape[1], dtype=torch.float64))
    for part in torch.tensor_split(x, cuts):
        found.add(part)
    return found


def test_they_are_those_of_all_rows_of_all_devices():
    torch.manual_seed(0)
    x = torch.randn(50, 3, dtype=torch.float64) * torch.tensor([1.0, 10, 0.1]) + torch.tensor([0.0, 100, -7])
    nothing = Moments(torch.zeros(2, 3, dtype=torch.float64))
    mean, var = Moments.combine([gathered(x[:31], 1, 20), nothing, gathered(x[31:], 4)]).statistics
    torch.testing.assert_close(mean, x.mean(0), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(var, x.var(0, correction=0), rtol=1e-12, atol=1e-13)


def test_large_means_cost_no_digits():
    torch.manual_seed(1)
    x = torch.randn(400, 2) + 3e4
    mean, var = Moments.combine([gathered(x, 7, 150)]).statistics
    torch.testing.assert_close(mean, x.double().mean(0), rtol=1e-9, atol=0)
    torch.testing.assert_close(var, x.double().var(0, correction=0), rtol=1e-5, atol=0)


def test_equal_rows_have_no_variance():
    mean, var = Moments.combine([gathered(torch.full((9, 1), 0.1), 2, 5)]).statistics
    assert var.item() == 0 and abs(mean.item() - 0.1) < 1e-8

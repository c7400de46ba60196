"""Memory that is handed out again."""

from __future__ import annotations

import torch

from hongtu.device import CpuDevice
from hongtu.metrics import Traffic
from hongtu.pool import Pool

F = torch.float32


def test_what_was_given_back_is_given_out_again():
    pool = Pool()
    first = pool.take((4, 8), F)
    address = first.data_ptr()
    pool.give(first)
    again = pool.take((8, 2), torch.float64)
    assert again.data_ptr() == address
    assert again.shape == (8, 2)
    assert pool.idle == 0


def test_it_holds_no_more_than_was_out_at_one_time():
    pool = Pool()
    tensors = [pool.take((n,), torch.uint8) for n in (100, 50, 30)]
    for tensor in tensors:
        pool.give(tensor)
    assert pool.idle == 180
    pool.take((60,), torch.uint8)
    assert pool.idle + 60 <= 180
    assert pool.take((0, 3), F).shape == (0, 3)


def test_a_device_stays_within_its_budget_with_what_is_idle():
    device = CpuDevice("device 0", 1000, Traffic())
    device.place("a", (900,), torch.uint8)
    device.remove("a")
    device.place("b", (300,), torch.uint8)
    assert device.arena + device._pool.idle <= 1000
    with device.computing():
        held = torch.empty(600, dtype=torch.uint8)
        assert device.arena + len(held) + device._pool.idle <= 1000

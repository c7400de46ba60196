"""Memory that is handed out again."""

from __future__ import annotations

import torch

from hongtu.device.cpu import CpuDevice
from hongtu.device.pool import Pool, plain
from hongtu.host import LARGE
from hongtu.metrics import Traffic

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


def test_what_is_large_begins_at_a_large_page():
    rows = plain((5 * LARGE // 16, 4), F)
    assert rows.data_ptr() % LARGE == 0 and rows.shape == (5 * LARGE // 16, 4) and rows.dtype == F
    assert rows.untyped_storage().nbytes() == 5 * LARGE and rows.add_(1).sum() == rows.numel()
    assert plain((0, 3), F).shape == (0, 3) and plain((7, 3), F).untyped_storage().nbytes() == 84


def test_it_holds_no_more_than_was_out_at_one_time():
    pool = Pool()
    tensors = [pool.take((n,), torch.uint8) for n in (100, 50, 30)]
    for tensor in tensors:
        pool.give(tensor)
    assert pool.idle == 180
    pool.take((60,), torch.uint8)
    assert pool.idle + 60 <= 180
    assert pool.take((0, 3), F).shape == (0, 3)


def test_slack_keeps_sizes_that_are_asked_for_in_turns():
    """As in an epoch: two of one size, one of them freed for two small ones, and asked for again."""
    made = []

    def make(shape, dtype):
        made.append(shape)
        return torch.empty(shape, dtype=dtype)

    def epoch(pool):
        a, b, c = (pool.take((n,), torch.uint8) for n in (1000, 1000, 100))
        pool.give(b)
        d = pool.take((100,), torch.uint8)
        pool.give(c)
        e = pool.take((1000,), torch.uint8)
        for tensor in (a, d, e):
            pool.give(tensor)
        assert pool.idle <= 2100 + int(2100 * slack)

    for slack, first, later in ((0.0, 5, 2), (1 / 8, 4, 0)):
        pool = Pool(make, slack)
        for expected in (first, later, later):
            made.clear()
            epoch(pool)
            assert len(made) == expected, (slack, made)


def test_a_device_stays_within_its_budget_with_what_is_idle():
    device = CpuDevice("device 0", 1000, Traffic())
    device.place("a", (900,), torch.uint8)
    device.remove("a")
    device.place("b", (300,), torch.uint8)
    assert device.arena + device._pool.idle <= 1000
    with device.computing():
        held = torch.empty(600, dtype=torch.uint8)
        assert device.arena + len(held) + device._pool.idle <= 1000


def test_memory_that_is_dear_to_make_is_kept_while_there_is_room():
    """Sizes that push each other out where the machine is full."""
    left = [1000]
    pool = Pool(room=lambda: left[0])

    def turns():
        addresses = []
        for nbytes in (300, 200, 300, 200):
            tensor = pool.take((nbytes,), torch.uint8)
            addresses.append(tensor.data_ptr())
            pool.give(tensor)
        return addresses

    first = turns()
    assert first[:2] == first[2:] and pool.idle == 500
    left[0] = 399  # less than twice what is asked for
    pool.take((200,), torch.uint8)
    pool.take((200,), torch.uint8)
    assert pool.idle == 0

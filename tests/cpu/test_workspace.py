"""What layers take is counted for every chunk at first, and later for those that a limit depends on."""

from __future__ import annotations

import torch

from hongtu.device import CpuDevice
from hongtu.metrics import Traffic
from hongtu.workspace import Sample


def test_a_sample_has_every_chunk_first_then_the_largest_always_and_the_others_in_turn() -> None:
    sample, seen = Sample(), []
    for run in range(2 * Sample.EVERY):
        counted = [chunk for chunk in range(5) if sample.takes("forward 0", chunk)]
        for chunk in range(5):
            sample.ran("forward 0", chunk, (300 if chunk == 3 else 100) if chunk in counted else None)
        seen.append(counted)
        assert 3 in counted and (run > 0 or counted == list(range(5)))
    assert sorted(chunk for counted in seen[1 : 1 + Sample.EVERY] for chunk in counted) == [
        0,
        1,
        2,
        *[3] * Sample.EVERY,
        4,
    ]


def test_a_device_counts_the_largest_chunk_in_every_epoch() -> None:
    device = CpuDevice("device 0", None, Traffic())
    for _ in range(4):
        device.reset_peaks()
        for chunk, floats in enumerate((10, 70, 30)):
            with device.computing("forward 0", chunk, always=False):
                torch.ones(floats)
        assert device.workspace_peak == 4 * 70

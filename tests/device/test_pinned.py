"""Host memory for GPUs, without one: its size and place, and what is said where the driver refuses it."""

from __future__ import annotations

import mmap
import warnings

import pytest
import torch

from hongtu.device import pinned as module
from hongtu.device.pinned import pinned


@pytest.mark.parametrize("near", [(), ("0", "0"), ("0", "0-1")], ids=["one", "same", "two"])
def test_pages_of_its_own(near, monkeypatch):
    registered = []
    monkeypatch.setattr(module.REGISTERED, "add", lambda array: registered.append(array.nbytes) or True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = pinned((1000, 3), torch.float64, near)
    assert rows.shape == (1000, 3) and rows.dtype == torch.float64
    assert rows.data_ptr() % mmap.PAGESIZE == 0 and registered == [24_000]
    rows.fill_(2)
    assert float(rows.sum()) == 6000
    assert pinned((0, 3), torch.float32).shape == (0, 3) and len(registered) == 1


def test_a_refusal_is_a_warning_and_the_memory_works(monkeypatch):
    monkeypatch.setattr(module.REGISTERED, "add", lambda array: False)
    with pytest.warns(UserWarning, match="refused to pin 12000 bytes.*ulimit -l unlimited"):
        rows = pinned((1000, 3), torch.float32)
    assert float(rows.fill_(1).sum()) == 3000
    assert rows.data_ptr() not in module.REGISTERED

"""Small arrays of a batch lie behind one another, and one copy brings them all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hongtu.cuda_ext.host_build import HostLauncher
from hongtu.device.script import Script
from hongtu.metrics import Traffic
from hongtu.plan.passes.strategy import Strategy
from tests import problems, training
from tests.models import SIX

DTYPES = {"pointers": torch.int64, "weights": torch.float32, "flags": torch.uint8}


@pytest.fixture
def script():
    return Script(torch.zeros(61, dtype=torch.uint8), torch.zeros(61, dtype=torch.uint8), DTYPES)


def test_arrays_arrive_where_they_were_promised(script):
    pointers, weights = np.arange(3), np.float64([[1, 2], [3, 4], [5, 6]])
    found = [
        script.pack("pointers", pointers, "topology"),
        script.pack("weights", weights, "topology", np.int32([2, 0])),
        script.pack("flags", torch.tensor([[1], [0], [1]], dtype=torch.uint8), "read"),
    ]
    assert not any(part.any() for part in found)
    host, device, nbytes = script.take()
    assert nbytes == {"topology": 24 + 16, "read": 3} and host.nbytes == device.nbytes == 43
    device.copy_(host)
    expected = ([0, 1, 2], [[5.0, 6.0], [1.0, 2.0]], [[1], [0], [1]])
    for part, name, values in zip(found, DTYPES, expected, strict=True):
        assert part.dtype == DTYPES[name] and part.is_contiguous() and part.tolist() == values
        assert script.parts[name] is part


def test_the_next_batch_begins_anew(script):
    script.pack("pointers", np.arange(7), "topology")
    script.take()
    assert script.pack("pointers", np.arange(2), "topology").storage_offset() == 0
    assert script.pack("flags", np.zeros(0, dtype=np.uint8), "read").shape == (0,)
    assert script.take()[2].total() == 16


def test_what_does_not_fit_or_lies_askew_is_refused(script):
    with pytest.raises(AssertionError, match="pointers"):
        script.pack("pointers", np.arange(8), "topology")
    script.pack("flags", np.zeros(3, dtype=np.uint8), "read")
    with pytest.raises(AssertionError, match="weights"):
        script.pack("weights", np.zeros(1, dtype=np.float32), "topology")


@pytest.mark.parametrize("grain", [(1, 7), (4, 8)], ids=str)
def test_a_batch_takes_one_copy_of_structure_and_few_launches(grain, monkeypatch):
    """Whatever a GPU is asked for costs the thread that asks some microseconds, for every chunk of every pass."""
    strategy = replace(Strategy(), resident=False, group=False)
    trainer = training.make_trainer(SIX[0], problems.awkward(), grain, device="simulated", strategy=strategy)
    trainer.train_epoch()  # and what is done once before
    copies, launches = [], []
    add, launch = Traffic.add, HostLauncher.launch
    monkeypatch.setattr(Traffic, "add", lambda self, link, *a, **k: (copies.append(link), add(self, link, *a, **k)))
    monkeypatch.setattr(HostLauncher, "launch", lambda self, *a, **k: (launches.append(a[0]), launch(self, *a, **k)))
    trainer.train_epoch()
    chunks = sum(len(p.order) * len(p.buffers) for p in trainer._engine.program.train)
    assert 0 < copies.count("topology") <= chunks
    assert 0 < len(launches) <= 12 * chunks

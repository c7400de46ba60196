"""A made-up memory "far" between the host and the disk: what a new one takes is a name with a rate, and a class."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from hongtu.engine.stores import STORES
from hongtu.metrics import BELOW
from hongtu.plan.program.listing import list_program
from hongtu.plan.search import host
from tests import problems, staged, training
from tests.checker.check import check_program
from tests.exact.test_spill import DEEP, NORMED, check_same, pair
from tests.models import SIX
from tests.staged import everything, on_disk


class Far:
    """Bytes in plain memory."""

    def __init__(self, directory, nbytes, ends):
        self.data = np.full(nbytes, 0xFF, np.uint8)

    @property
    def nbytes(self):
        return self.data.nbytes

    def write(self, begin, data):
        self.data[begin : begin + len(data)] = data

    def read(self, begin, into):
        into[:] = self.data[begin : begin + len(into)]

    def pieces(self, begin, nbytes):
        yield self.data[begin : begin + nbytes]

    def read_within(self, begin, nbytes, room):
        self.read(begin, room[:nbytes])
        return 0

    def mapped(self, begin, nbytes):
        return self.data[begin : begin + nbytes]

    def close(self):
        self.data = self.data[:0]


@pytest.fixture(autouse=True)
def far(monkeypatch):
    monkeypatch.setitem(BELOW, "far", "peer_link")
    monkeypatch.setitem(STORES, "far", Far)


def fit(step, kept):
    """Every so many'th tensor that may leave the host is far, the others lie on the disk."""

    def fitted(plan, limit):
        spilled = everything(plan, limit, kept=kept)
        names = sorted(spilled.choice.spilled)
        return host.with_spilled(plan, spilled.choice.spilled, **dict.fromkeys(names[::step], "far"))

    return fitted


@pytest.mark.long
@pytest.mark.parametrize(("model", "step", "kept"), [(NORMED, 1, 0), (DEEP, 2, 0), (NORMED, 3, 1)])
def test_what_is_far_is_counted_as_planned_and_changes_no_bit(model, step, kept, tmp_path):
    free, spilling = pair(model, (2, 3), tmp_path, fit=fit(step, kept))
    record, plan = check_same(free, spilling, epochs=2), spilling.plan
    check_program(plan.program)
    assert record.bytes["far"] == plan.bytes["far"] > 0
    assert record.arena_bytes["far"] == plan.arena_bytes["far"] == plan.disk.nbytes["far"] > 0
    assert " far " in list_program(plan.program)
    whole = everything(free.plan, None, kept=kept)
    assert record.bytes["far"] + record.bytes["disk"] == whole.bytes["disk"], "as much moves, wherever it lies"


@pytest.mark.parametrize(("step", "kept"), [(1, 0), (2, 1)])
def test_far_rows_in_bfloat16(step, kept, tmp_path):
    """As on the disk, gradients are cast on their way."""
    options = {"device_memory": "smallest", "dtype": torch.float32, "host_dtype": "bf16", "gradient_dtype": "bf16"}
    made = []
    for fitted in (partial(everything, kept=kept), fit(step, kept)):
        torch.manual_seed(0)
        with on_disk(tmp_path, fitted) as spills:
            made.append(training.make_trainer(DEEP, problems.awkward(), (2, 3), **options, **spills))
    on_disk_alone, some = made
    for _ in range(2):
        expected, record = (trainer.train_epoch() for trainer in made)
        training.assert_counted(some, record)
        assert record.loss == expected.loss
        assert all(torch.equal(g, on_disk_alone.gradients()[name]) for name, g in some.gradients().items())
    assert 0 < record.bytes["far"] == expected.bytes["disk"] - record.bytes["disk"]
    assert record.arena_bytes["far"] == some.plan.disk.nbytes["far"] > 0


def test_far_rows_of_devices_with_memory_of_their_own(tmp_path):
    options = {"device": staged.simulated(seed=0)}
    options["device_memory"] = staged.budget(SIX[1], problems.awkward(), (2, 3), 1.05, **options)
    with on_disk(tmp_path, fit(2, 0)) as spills:
        trainer = staged.check(SIX[1], problems.awkward(), (2, 3), **options, **spills)
    assert trainer.plan.bytes["far"] and trainer.plan.bytes["disk"]

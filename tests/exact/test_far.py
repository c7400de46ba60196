"""A made-up memory "far" between the host and the disk: what a new one takes is a name with a rate, and a class."""

from __future__ import annotations

import numpy as np
import pytest

from hongtu.engine.stores import STORES
from hongtu.metrics import BELOW
from hongtu.plan.program.check import check_program
from hongtu.plan.program.listing import list_program
from hongtu.plan.search import host
from tests import problems, staged
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

    def read_within(self, begin, nbytes, room):
        self.read(begin, room[:nbytes])
        return 0

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


def test_far_rows_of_devices_with_memory_of_their_own(tmp_path):
    options = {"device": staged.simulated(seed=0)}
    options["device_memory"] = staged.budget(SIX[1], problems.awkward(), (2, 3), 1.05, **options)
    with on_disk(tmp_path, fit(2, 0)) as spills:
        trainer = staged.check(SIX[1], problems.awkward(), (2, 3), **options, **spills)
    assert trainer.plan.bytes["far"] and trainer.plan.bytes["disk"]

"""Programs: equal for equal inputs, and different where a plan is."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest

from hongtu.hardware import CPU, H200
from hongtu.plan.program.program import Program
from tests.plan.test_listing import program_of


def same(a, b):
    """Whether two pieces of plain data are equal, arrays entry by entry."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if is_dataclass(a):
        return all(same(getattr(a, part.name), getattr(b, part.name)) for part in fields(a))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@pytest.mark.long
@pytest.mark.parametrize("hardware", [CPU, H200], ids=lambda hardware: hardware.name)
@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_equal_inputs_give_equal_programs(model, hardware):
    first, second = (program_of(model, 30_000, hardware) for _ in range(2))
    assert same(first, second) and first is not second
    assert not same(first, program_of(model, 30_000, hardware, strategy="paper"))


def test_one_entry_makes_a_program_another():
    whole: Program = program_of()
    schedule = whole.train[0].schedule.copy()
    schedule[0, 0] += 1
    assert not same(whole, replace(whole, train=(replace(whole.train[0], schedule=schedule), *whole.train[1:])))

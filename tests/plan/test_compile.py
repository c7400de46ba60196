"""Programs: equal for equal inputs, and different where a plan is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hongtu.hardware import CPU, H200
from hongtu.plan.program.program import Program
from tests.plan.test_listing import program_of


@pytest.mark.long
@pytest.mark.parametrize("hardware", [CPU, H200], ids=lambda hardware: hardware.name)
@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_equal_inputs_give_equal_programs(model, hardware):
    first, second = (program_of(model, 30_000, hardware) for _ in range(2))
    assert first == second and first is not second
    assert first != program_of(model, 30_000, hardware, strategy="paper")


def test_one_entry_makes_a_program_another():
    whole: Program = program_of()
    schedule = whole.train[0].schedule.copy()
    schedule[0, 0] += 1
    assert whole != replace(whole, train=(replace(whole.train[0], schedule=schedule), *whole.train[1:]))

"""Bytes of a pass before its transfers are planned: so many, and so many for each slot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.ledger.plans import PLANS, planned
from tests.ledger.price import prices


@pytest.mark.parametrize("transfers", [True, False])
@pytest.mark.parametrize("name", PLANS)
def test_prices_are_what_planned_memory_says(name, transfers):
    plan = planned(name) if transfers else replace(planned(name), transfers={})
    v = plan.topology.num_vertices
    for i in range(plan.topology.partitions):
        found = prices(plan, i)
        for p in plan.passes.every:
            price, fewest = found[p.name], plan.limits_of(p)[i].slots
            assert price.peak(plan.capacity(p, i)) == plan.pass_arena(p, i)
            for budget in (0, price.fixed + 100, price.fixed + 700, 1 << 20):
                slots = price.slots(budget - plan.taken_beside(p))
                assert max(fewest, v if slots is None else min(slots, v)) == plan.capacities(p, budget)[i]
        most = max(found[p.name].peak(plan.capacity(p, i)) + plan.taken_beside(p) for p in plan.passes.every)
        assert most == plan.device_bytes[f"device {i}"]

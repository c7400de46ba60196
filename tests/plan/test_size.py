"""A program takes little more memory than the arrays of its plan."""

from __future__ import annotations

import sys
from dataclasses import fields, is_dataclass

import numpy as np
import pytest

from hongtu.graph.topology import build_topology
from hongtu.hardware import H200
from hongtu.plan.passes.strategy import get_strategy
from hongtu.plan.search.planner import plan_run
from tests import tiny

V, EDGES, PARTITIONS, CHUNKS = 20_000, 200_000, 2, 16


def large():
    """A random graph whose edges are mostly short, and the order of its chunks."""
    rng = np.random.default_rng(0)
    dst = np.sort(rng.integers(0, V, EDGES))
    src = (dst + rng.normal(0, V / 50, EDGES).astype(np.int64)) % V
    start = np.searchsorted(dst, np.arange(V + 1))
    cuts = np.linspace(0, V, PARTITIONS * CHUNKS + 1).astype(np.int64)
    return build_topology(PARTITIONS, cuts, start, src, np.ones(EDGES, dtype=np.float32))


def size(value, seen):
    """Bytes of plain data: of every object once, of arrays what they keep alive."""
    if isinstance(value, np.ndarray) and isinstance(value.base, np.ndarray):
        return size(value.base, seen)
    if id(value) in seen:
        return 0
    seen[id(value)] = value
    if isinstance(value, np.ndarray):
        return value.nbytes + 100
    if is_dataclass(value):
        parts = [getattr(value, part.name) for part in fields(value)]
    elif isinstance(value, dict):
        parts = [*value.keys(), *value.values()]
    else:
        parts = list(value) if isinstance(value, tuple | list) else []
    return sys.getsizeof(value) + sum(size(part, seen) for part in parts)


@pytest.mark.parametrize("shape", [tiny.GCN, tiny.GAT], ids=["gcn", "gat"])
def test_a_program_takes_little_more_than_the_plans_arrays(shape):
    topology = large()
    order = topology.input_order
    plan = plan_run(topology, order, shape, get_strategy("full"), 600_000, lambda plan: {}, H200)
    arrays = sum(array.nbytes for array in plan.arrays())
    taken = size(plan.program, {})
    assert arrays > 1_000_000 and any(len(p.order) > 1 for p in plan.program.train)
    assert taken < 1.2 * arrays, (taken, arrays)


def test_passes_share_arrays_where_they_could_take_most_of_the_host():
    """One plan for each of the views, in the smallest of the caches; where the host has room, each pass fills its."""
    topology, budget = large(), 400_000
    asked = topology, topology.input_order, tiny.GAT, get_strategy("full"), budget, lambda plan: {}, H200
    own, shared = (plan_run(*asked, host_memory=host) for host in (1 << 40, 1000))
    distinct = [len({id(found) for found in plan.transfers.values()}) for plan in (own, shared)]
    views = {id(shared.view(p)) for p in shared.passes.every if p.name in shared.transfers}
    assert distinct == [3, 1] and len(views) == 1
    assert sum(array.nbytes for array in shared.arrays()) < sum(array.nbytes for array in own.arrays())
    assert max(shared.device_bytes.values()) <= budget and shared.bytes["load"] >= own.bytes["load"]

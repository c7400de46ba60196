"""Passes that are bound by the link to the host keep it busy."""

from __future__ import annotations

import numpy as np
import pytest

from hongtu.graph.topology import build_topology
from hongtu.hardware import H200
from hongtu.plan.passes.strategy import Choice, get_strategy
from hongtu.plan.search.build import make_plan
from tests import tiny
from tests.timeline import Timeline

V, E, CHUNKS, NEAR = 6400, 64000, 64, 200
TIMES = 600  # 4M vertices and 38M edges
WIDTHS = {"features": 128, "output": 40}
MODELS = {
    "gcn": tiny.network(
        tiny.layer(128, trained=False), tiny.layer(128), tiny.layer(40), constant_layers=1, **WIDTHS
    ),
    "gat": tiny.network(tiny.layer(132, 2, linear=False), tiny.layer(44, 2, linear=False), **WIDTHS),
}  # fmt: skip


def timelines(model, staging, near=NEAR):
    """By training pass, with caches for half of the rows; sources are at most so far from their destinations."""
    rng = np.random.default_rng(0)
    destination = np.sort(rng.integers(0, V, E))
    source = np.clip(destination + rng.integers(-near, near + 1, E), 0, V - 1)
    start = np.searchsorted(destination, np.arange(V + 1))
    cuts = np.linspace(0, V, CHUNKS + 1).astype(np.int64)
    topology = build_topology(1, cuts, start, source, np.ones(E, dtype=np.float32))
    budget, strategy = V // 2 * 2 * 4 * 128, get_strategy("full")
    plan = make_plan(
        topology, topology.input_order, MODELS[model], strategy, budget=budget, choice=Choice(staging=staging)
    )
    return {p.name: Timeline(plan, p, H200, TIMES) for p in plan.passes.train}


def bound(found):
    """How busy ``load`` is in passes in which no stream has more to do."""
    most = {name: max(of.busy, key=of.busy.get) for name, of in found.items()}
    return [found[name].share("load") for name, (stream, _) in most.items() if stream == "load"]


@pytest.mark.parametrize("model", MODELS)
def test_a_pass_that_is_bound_by_the_link_keeps_it_busy(model):
    shares = bound(timelines(model, 2))
    assert len(shares) >= 4 and min(shares) >= 0.95, shares
    assert min(bound(timelines(model, 1))) < 0.7  # copies and arithmetic take turns


@pytest.mark.long
@pytest.mark.parametrize("near", [NEAR, 800, V // 2])
@pytest.mark.parametrize("model", MODELS)
def test_a_pass_takes_hardly_longer_than_its_rows_must(model, near):
    """However far neighbours are: gradients that the last batches still add to leave behind these in any schedule."""

    def shares(staging):
        return [min(of.least.values()) / of.total for of in timelines(model, staging, near).values()]

    assert 0.95 <= min(shares(2)) <= max(shares(2)) <= 1
    assert min(shares(1)) < 0.7

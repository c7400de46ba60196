"""The planner against all candidates, each made and probed on its own."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from hongtu.errors import BudgetError
from hongtu.hardware import CPU, H200
from hongtu.model.named import build_layers
from hongtu.plan.cost.seconds import predict_seconds
from hongtu.plan.passes.strategy import Choice, Strategy
from hongtu.plan.search.build import plan_caches, sketch_plan
from hongtu.plan.search.planner import plan_run
from hongtu.train import network_plan, planning
from tests import problems, training
from tests.models import SIX

GRAIN = (2, 8)
SHARES = (1.0, 1.6, 2.5)

six = pytest.mark.parametrize("model", SIX, ids=repr)
machines = pytest.mark.parametrize("hardware", [CPU, H200], ids=lambda hardware: hardware.name)


@pytest.mark.most(4)
@pytest.mark.long
@machines
@six
def test_no_group_or_order_that_fits_is_cheaper(model, hardware, monkeypatch):
    """Nothing resident: then what fits is chosen from groups, orders, sets of staging memory and fusion alone."""
    problem, strategy, seen = problems.awkward(), Strategy(resident=False), []

    def spy(*given):
        seen.append(given)
        return plan_run(*given)

    monkeypatch.setattr(network_plan, "plan_run", spy)
    artifact = problems.prepare(problem, *GRAIN)
    options = {"strategy": strategy, "loss": model.loss, "optimizer": training.sgd, "dtype": torch.float64}
    with pytest.raises(BudgetError) as refused:
        planning.plan_model(artifact, model.build(problem), device_memory=1, hardware=hardware, **options)
    for share in SHARES:
        budget = int(share * refused.value.smallest)
        plan = planning.plan_model(artifact, model.build(problem), device_memory=budget, hardware=hardware, **options)
        assert max(plan.device_bytes.values()) <= budget
        chosen = predict_seconds(plan_caches(plan, budget, hardware.peer_cost, count=True), hardware).total
        others = list(candidates(*seen[-1][:3], budget, seen[-1][4], hardware))
        assert chosen <= min(others) * (1 + 1e-9)


def candidates(graph, shape, strategy, budget, probe, hardware):
    """Seconds of every plan that fits."""
    topology, paper_schedule = graph.topology, graph.paper_schedule
    staging, slabs = ((2, 1), (True, False)) if hardware.staged else ((0,), (True,))
    for fuse, sets, size, slab in itertools.product((False, True), staging, (1, 2, 4, 8), slabs):
        grouped = topology.grouped(size) if size > 1 else topology
        once = None if size == 1 else (topology, topology.input_order)
        for order in (grouped.input_order, np.asarray(paper_schedule))[: 1 + (size == 1)]:
            plan = sketch_plan(grouped, order, shape, strategy, Choice(fuse=fuse, staging=sets, slab=slab), once=once)
            plan = replace(plan, workspace=probe(plan))
            if max(plan.device_bytes.values()) <= budget:
                yield predict_seconds(plan_caches(plan, budget, hardware.peer_cost, count=True), hardware).total


@pytest.mark.long
@machines
@pytest.mark.parametrize("budget", [None, 400_000])
def test_equal_inputs_give_equal_plans(budget, hardware):
    artifact, found = problems.prepare(problems.awkward(), *GRAIN), []
    for _ in range(3):
        layers = build_layers("sage", artifact.feature_width, 16, artifact.num_classes, 2)
        plan = planning.plan_model(artifact, layers, device_memory=budget, hardware=hardware)
        found.append((plan.bytes, plan.rows, plan.peak_bytes, plan.choice, plan.topology.chunks))
        assert artifact.topology.memo.keys() <= {"entries"}, "of every device a few numbers"
    assert found[0] == found[1] == found[2]

"""Chooses the grain of a run: which chunks of the artifact run as one, within the device budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hongtu.errors import BudgetError
from hongtu.plan.cost import predict_seconds
from hongtu.plan.execution import ExecutionPlan, make_plan
from hongtu.plan.hardware import CPU, Hardware
from hongtu.plan.shapes import NetworkShape
from hongtu.plan.strategy import Strategy
from hongtu.topology import Topology

Probe = Callable[[ExecutionPlan], dict[str, int]]


def plan_run(
    topology: Topology,
    paper_schedule: np.ndarray,
    shape: NetworkShape,
    strategy: Strategy,
    budget: int | None,
    probe: Probe,
    hardware: Hardware = CPU,
    original_id: np.ndarray | None = None,
) -> ExecutionPlan:
    """Plan a training run within a device budget.

    Args:
        topology: the artifact's chunks, the finest grain.
        paper_schedule: int32 [m, n], Algorithm 4's order.
        budget: bytes per device, or None for no limit.
        probe: returns the bytes that layers take at most inside each pass of a plan.
        hardware: what the grain is chosen for.
        original_id: int32 [V], to name a vertex in a refusal; None: its new id.

    Raises:
        BudgetError: when no grain fits; names the smallest budget that works.
    """
    if budget is None:
        grain = topology.grouped(topology.chunks) if strategy.group else topology
        return make_plan(grain, _schedule(grain, paper_schedule, strategy), shape, strategy)
    finest = _least(topology, paper_schedule, shape, strategy, hardware)
    finest = replace(finest, workspace=probe(finest))
    if smallest_budget(finest) > budget:
        raise _refusal(finest, budget, original_id)
    candidates = [finest]
    if strategy.group:
        candidates += _coarser(finest, paper_schedule, budget, hardware)
    candidates.sort(key=lambda least: predict_seconds(_filled(least, budget, hardware), hardware).total)
    for least in candidates:
        if least is not finest:
            least = replace(least, workspace=probe(least))  # it was an estimate
        if smallest_budget(least) <= budget:
            return _filled(least, budget, hardware)
    raise AssertionError("the finest grain fits and is among the candidates")


def smallest_budget(plan: ExecutionPlan) -> int:
    """Bytes per device with which a plan runs: planned buffers plus the probed workspace bound."""
    return max(plan.device_bytes.values())


def _schedule(topology: Topology, paper_schedule: np.ndarray, strategy: Strategy) -> np.ndarray:
    if strategy.schedule == "paper":
        return np.asarray(paper_schedule)
    return np.tile(np.arange(topology.chunks, dtype=np.int32), (topology.partitions, 1))


def _least(
    topology: Topology, paper_schedule: np.ndarray, shape: NetworkShape, strategy: Strategy, hardware: Hardware
) -> ExecutionPlan:
    """The plan with the smallest caches at one grain."""
    schedule = _schedule(topology, paper_schedule, strategy)
    return make_plan(topology, schedule, shape, strategy, budget=0, peer_cost=hardware.peer_cost)


def _filled(plan: ExecutionPlan, budget: int, hardware: Hardware) -> ExecutionPlan:
    """The same grain with caches that fill the budget."""
    cost = hardware.peer_cost
    return make_plan(plan.topology, plan.schedule, plan.shape, plan.strategy, budget, plan.workspace, cost)


def _coarser(finest: ExecutionPlan, paper_schedule: np.ndarray, budget: int, hardware: Hardware) -> list[ExecutionPlan]:
    """Plans with ever larger groups of chunks, as long as they should fit; their workspace is estimated."""
    plans = []
    size = 2
    while size < 2 * finest.topology.chunks:
        grouped = finest.topology.grouped(size)
        plan = _least(grouped, paper_schedule, finest.shape, finest.strategy, hardware)
        growth = max(
            _ratio(getattr(grouped, name), getattr(finest.topology, name))
            for name in ("num_dst", "num_sources", "chunk_edges")
        )
        estimate = {name: int(taken * growth) for name, taken in finest.workspace.items()}
        plan = replace(plan, workspace=estimate)
        if smallest_budget(plan) > budget:
            break
        plans.append(plan)
        size *= 2
    return plans


def _ratio(coarse: np.ndarray, fine: np.ndarray) -> float:
    return float(coarse.max()) / max(float(fine.max()), 1.0)


def _refusal(plan: ExecutionPlan, budget: int, original_id: np.ndarray | None) -> BudgetError:
    topology = plan.topology
    i = max(range(topology.partitions), key=lambda k: plan.peak_bytes[f"device {k}"])
    p = plan.tightest_pass(i)
    own = topology.num_sources[i * topology.chunks : (i + 1) * topology.chunks]
    j = int(np.argmax(own))
    first, end = (int(x) for x in topology.chunk_start[i * topology.chunks + j : i * topology.chunks + j + 2])
    if end - first == 1:  # no finer chunk can help
        vertex = first if original_id is None else int(original_id[first])
        remedy = f"that chunk is the one vertex {vertex} with all its in-edges, so only more memory helps"
    else:
        remedy = "give more memory, or preprocess with more --chunks or --partitions"
    return BudgetError(
        f"device_memory is {budget} bytes, the smallest that works is {smallest_budget(plan)}: device {i} in pass "
        f"'{p.name}' takes {plan.pass_arena(p, i)} bytes and its layers up to {plan.workspace.get(p.name, 0)} "
        f"(chunk ({i}, {j}) has the most sources, {int(own[j])}); {remedy}"
    )

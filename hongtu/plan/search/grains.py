"""Plans that fit a budget: on the artifact's own chunks, and on ever larger groups of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from hongtu.graph.topology import Topology
from hongtu.hardware import Hardware
from hongtu.plan.cost.seconds import computing_seconds
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes.strategy import ONCE, View
from hongtu.plan.search.build import sketch_plan

LITTLE = 0.02  # beside what an epoch computes
Probe = Callable[..., dict[str, int]]


def smallest_budget(plan: ExecutionPlan) -> int:
    """Bytes per device with which a plan runs: planned buffers plus the probed workspace bound."""
    return max(plan.device_bytes.values())


def fitting_plans(
    finest: Sequence[ExecutionPlan], budget: int, probe: Probe, hardware: Hardware, largest: float = inf
) -> list[tuple[int, ExecutionPlan]]:
    """Chunks per group, and a plan; without edges where there are groups.

    Args:
        finest: probed plans of the same passes on the artifact's own chunks, for every order of these and every number
            of sets of staging memory; those in the order of the input first.
        budget: bytes per device.
        probe: returns the bytes that layers take at most inside each pass of a plan; needs no edges.
        hardware: tells from where on larger groups save next to nothing.
        largest: chunks of a group at most.
    """
    found = [(1, plan) for plan in finest if smallest_budget(plan) <= budget]
    plans = [plan for plan in finest if plan.schedules[None] is finest[0].schedules[None]]
    size = 1
    while finest[0].strategy.group and plans[0].topology.chunks > 1 and 2 * size <= largest:
        arithmetic, starting = computing_seconds(plans[0], hardware)
        if starting <= LITTLE * arithmetic:
            break
        size, plans = 2 * size, _paired(plans)
        if not _fitting(plans, finest[0], budget):  # even if layers took no more than in smaller groups
            break
        workspace = probed(plans[0], probe)
        plans = [replace(plan, workspace=workspace) for plan in plans]
        found += [(size, plan) for plan in _fitting(plans, finest[0], budget)]
    return found


def with_edges(plan: ExecutionPlan, topology: Topology, size: int) -> ExecutionPlan:
    """A plan on groups of so many chunks of a topology, which have no edges, with those that it runs on."""
    if size == 1:
        return plan
    order = plan.schedules[None]
    made = sketch_plan(topology.in_groups(plan.topology), order, plan.shape, plan.strategy, plan.choice, once=plan.once)
    return replace(made, workspace=plan.workspace)


def _paired(plans: Sequence[ExecutionPlan]) -> list[ExecutionPlan]:
    """The same plans with every two chunks of all their views as one, without edges."""
    topology = _pairs(plans[0].topology)
    views: dict[View, Topology] = {hops: _pairs(view) for hops, view in plans[0].views.items()}
    found = []
    for plan in plans:
        larger = sketch_plan(topology, topology.input_order, plan.shape, plan.strategy, plan.choice, views)
        found.append(replace(larger, workspace=plan.workspace))
    return found


def probed(plan: ExecutionPlan, probe: Probe) -> dict[str, int]:
    """What layers take in each pass, remembered in ``topology.memo``: a slab of buffers is nothing to them."""
    key, memo = ("probed", plan.choice.fuse, plan.apart), plan.topology.memo
    if key not in memo:
        memo[key] = probe(plan)
    found: dict[str, int] = memo[key]
    return found


def _pairs(view: Topology) -> Topology:
    """Remembered in ``view.memo``."""
    if "pairs" not in view.memo:
        view.memo["pairs"] = view.grouped_sets(2)
    pairs: Topology = view.memo["pairs"]
    return pairs


def _fitting(plans: Sequence[ExecutionPlan], finest: ExecutionPlan, budget: int) -> list[ExecutionPlan]:
    """Those that fit; where setup passes take the most memory, also with these in the finest chunks: what they exchange
    is often the widest of all."""
    found = []
    for plan in plans:
        finely = _setting_up_finely(plan, finest)
        tried = [plan, finely] if smallest_budget(finely) < smallest_budget(plan) else [plan]
        found += [each for each in tried if smallest_budget(each) <= budget]
    return found


def _setting_up_finely(plan: ExecutionPlan, finest: ExecutionPlan) -> ExecutionPlan:
    if not plan.passes.setup:
        return plan
    at_finest = {p.name: finest.workspace[p.name] for p in plan.passes.setup if p.name in finest.workspace}
    return replace(
        plan,
        views=plan.views | {ONCE: finest.views[None]},
        schedules=plan.schedules | {ONCE: finest.schedules[None]},
        limits=plan.limits | {ONCE: finest.limits[None]},
        workspace=plan.workspace | at_finest,
    )

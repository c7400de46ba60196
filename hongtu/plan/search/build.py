"""Puts an execution plan together: first its passes and buffers, then the transfers that fill its caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hongtu.graph.topology import Topology
from hongtu.plan.cache.transfer import (
    BatchLimits,
    TransferCounts,
    batch_limits,
    count_transfers,
    plan_transfers,
)
from hongtu.plan.cache.writers import Writers, find_writers
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes.builder import plan_passes
from hongtu.plan.passes.definition import Pass
from hongtu.plan.passes.shapes import NetworkShape
from hongtu.plan.passes.strategy import ONCE, Choice, Strategy, View


def sketch_plan(
    topology: Topology,
    schedule: np.ndarray,
    shape: NetworkShape,
    strategy: Strategy,
    choice: Choice,
    known_views: Mapping[Any, Topology] | None = None,
    once: tuple[Topology, np.ndarray] | None = None,
) -> ExecutionPlan:
    """A plan at one grain whose transfers are not planned yet: its memory is that of the smallest caches.

    Args:
        schedule: int32 [m, B], chunk of each partition per batch.
        known_views: those of a plan with the same topology and receptive fields.
        once: the chunks and the schedule of setup passes, where they have their own.
    """
    prune = bool(choice.fields)
    passes = plan_passes(shape, strategy, fuse=choice.fuse, save=choice.save, prune=prune, halo=choice.halo)
    views: dict[View, Topology] = {}
    for hops in dict.fromkeys((None, *(p.hops for p in passes.every))):
        if known_views is not None and hops in known_views:
            views[hops] = known_views[hops]
            continue
        everything = hops is None or bool(choice.fields[hops].all())
        views[hops] = topology if everything else topology.pruned(choice.fields[hops])
    schedules: dict[View, np.ndarray] = dict.fromkeys(views, schedule)
    if once is not None and passes.setup:
        views[ONCE], schedules[ONCE] = once
    limits = {key: batch_limits(views[key], schedules[key], strategy.reuse, choice.prefetch) for key in views}
    return ExecutionPlan(topology, shape, strategy, choice, passes, views, schedules, limits)


def plan_caches(
    plan: ExecutionPlan, budget: int | None, peer_cost: float = 0.0, *, count: bool = False, alike: bool = False
) -> ExecutionPlan:
    """The same plan with its transfers.

    Args:
        budget: bytes per device that lookahead caches may fill; None for caches with room for every row.
        peer_cost: seconds that a row of a peer takes, in those of a row of the host.
        count: only count the rows of training passes, to compare plans.
        alike: passes on the same chunks have caches as small as the smallest of them, and one plan.
    """
    plan = _priced_like(plan, transfers={}, writers={})
    planned: dict[str, TransferCounts] = {}
    known: dict[tuple[int, tuple[int, ...] | None], TransferCounts] = {}
    lookahead, prefetch = plan.strategy.reuse == "lookahead", plan.choice.prefetch
    exchanging = [p for p in (*plan.passes.train, *plan.passes.setup, *plan.passes.evaluate) if p.exchange or p.flush]
    for p in exchanging:
        if count and p.when != "train":
            continue
        if {p.exchange, p.flush} & plan.resident:
            planned[p.name] = plan.resident_plans[plan.view_of(p)]
            continue
        view = id(plan.view(p))
        capacity = plan.capacities(p, budget) if lookahead and budget is not None else None
        if alike and capacity is not None:
            others = (
                q for q in exchanging if plan.view(q) is plan.view(p) and not {q.exchange, q.flush} & plan.resident
            )
            capacity = tuple(map(min, zip(*(plan.capacities(q, budget) for q in others), strict=True)))
        elif p.when != "train" and capacity is not None:
            capacity = _reusable(capacity, [slots for at, slots in known if at == view], plan.limits_of(p))
        if (view, capacity) not in known:
            arguments = plan.view(p), plan.schedule(p)
            known[view, capacity] = (
                count_transfers(*arguments, capacity, prefetch, peer_cost)
                if count and lookahead
                else plan_transfers(*arguments, plan.strategy.reuse, capacity, prefetch, peer_cost)
            )
        planned[p.name] = known[view, capacity]
    plan = _priced_like(plan, transfers=planned)
    return plan if count else _priced_like(plan, writers=_plan_writers(plan))


def _priced_like(plan: ExecutionPlan, **transfers: Any) -> ExecutionPlan:
    """The same with other transfers, on which prices do not depend."""
    found = replace(plan, **transfers)
    vars(found).update((name, value) for name, value in vars(plan).items() if name == "prices")
    return found


def most_array_bytes(plan: ExecutionPlan) -> int:
    """Of the transfers of all passes at most, if each has a plan of its own: five numbers of every interval, and a slot
    of every source."""
    exchanging = (p for p in plan.passes.every if p.exchange or p.flush)
    return sum(4 * (5 + 1) * len(plan.view(p).sources) for p in exchanging)


def _plan_writers(plan: ExecutionPlan) -> dict[str, Writers]:
    """Of the gradient tensors on the host whose first pass may leave rows out, or write to them several times."""
    found = {}
    for k, p in enumerate(plan.passes.train):
        for name in p.creates:
            view = plan.view(p)
            if name in plan.resident or not p.leaves_out(name, pruned=view.active is not None):
                continue
            if (edges := plan.edges_of(p, name)) is not None:  # of which backward reads all
                left_out = np.ones(view.num_vertices, dtype=np.bool_)
                left_out[view.active] = False
                unwritten = np.flatnonzero(np.repeat(left_out, np.diff(edges.in_edge_start)))
                found[name] = Writers((), None, unwritten.astype(np.int32))
            else:
                transfers = plan.exchange_plan(p) if name == p.flush else None
                needed = _needed(plan, name, plan.passes.train[k + 1 :])
                found[name] = find_writers(p, name, view, plan.schedule(p), transfers, needed)
    return found


def _needed(plan: ExecutionPlan, name: str, passes: Sequence[Pass]) -> np.ndarray | None:
    """bool [V], the rows of a tensor that these passes read or add to; None for all."""
    if name in plan.passes.on_host:
        return None
    wanted = np.zeros(plan.topology.num_vertices, dtype=np.bool_)
    for p in passes:
        if name in (*p.inputs, *p.gradients, *p.written, p.flush):
            active = plan.view(p).active
            if active is None:
                return None
            wanted[active] = True
        transfers = plan.exchange_plan(p) if name == p.flush else None
        for device in () if transfers is None else transfers.devices:
            wanted[device.loads.row] = True
    return wanted


def _reusable(
    capacity: tuple[int, ...], known: list[tuple[int, ...] | None], limits: list[BatchLimits]
) -> tuple[int, ...]:
    """The most slots that another pass has been planned with and that fit: planning takes longer than what they save
    outside of training."""
    fits = [
        slots
        for slots in known
        if slots is not None and all(b.slots <= s <= c for b, s, c in zip(limits, slots, capacity, strict=True))
    ]
    return max(fits, default=capacity)


def make_plan(
    topology: Topology,
    schedule: np.ndarray,
    shape: NetworkShape,
    strategy: Strategy,
    budget: int | None = None,
    choice: Choice | None = None,
) -> ExecutionPlan:
    """Plan a run at one grain; arguments as above."""
    return plan_caches(sketch_plan(topology, schedule, shape, strategy, choice or Choice()), budget)

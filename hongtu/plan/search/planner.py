"""Chooses how a run goes within the device budget: its grain, and which of the optional savings pay."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import inf

import numpy as np

from hongtu.compiled import SMALL
from hongtu.config import BudgetShare, in_bytes, size
from hongtu.errors import BudgetError
from hongtu.graph.halo import Halo, receptive_field
from hongtu.graph.topology import Topology
from hongtu.hardware import CPU, Hardware
from hongtu.plan.cost.seconds import least_seconds, predict_seconds
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes.shapes import NetworkShape
from hongtu.plan.passes.strategy import Choice, Strategy, View
from hongtu.plan.search.build import make_plan, most_array_bytes, plan_caches, sketch_plan
from hongtu.plan.search.grains import Probe, fitting_plans, probed, smallest_budget, with_edges
from hongtu.plan.search.residents import choose_residents, every_tensor

SLABS = True, False  # one takes a little more memory; it is the choice where an epoch is predicted to be as fast
SWEEPS = 2.5  # over a group's rows, that starting it may take as long as
WORTH_IT = 0.6  # pruning is off where more than this part of all layers' edges remains: it costs planning
BESIDE = 8  # groups of chunks: what crosses beside the last of them is little


@dataclass(frozen=True, eq=False)
class GraphShape:
    """The graph as the planner sees it.

    Attributes:
        topology: the artifact's chunks, the finest grain.
        paper_schedule: int32 [m, n], Algorithm 4's order.
        original_id: int32 [V], to name a vertex in a refusal; None: its new id.
        loss_vertices: bool [V], the vertices with a loss (new ids); None: not known, nothing is pruned.
        halo: what ranks fetch of one another, where they do.
    """

    topology: Topology
    paper_schedule: np.ndarray
    original_id: np.ndarray | None = None
    loss_vertices: np.ndarray | None = None
    halo: Halo | None = None


def plan_run(
    graph: GraphShape,
    shape: NetworkShape,
    strategy: Strategy,
    budget: int | None,
    probe: Probe,
    hardware: Hardware = CPU,
    host_memory: int | None = None,
    grouped: Callable[[], object] = lambda: None,
    largest: int | None = None,
) -> ExecutionPlan:
    """Plan a training run within a device budget.

    Args:
        budget: bytes per device, or None for no limit.
        probe: returns the bytes that layers take at most inside each pass of a plan; ``whole``: of one without a limit.
        hardware: what plans are compared for.
        host_memory: bytes of the host, where these are limited: passes share plan arrays that could take most of them.
        grouped: called when groups have the structure that the graph has in smaller chunks.
        largest: chunks of a group within a budget, at most; None: as many as there are.

    Raises:
        BudgetError: when no grain fits; names the smallest budget that works.
    """
    topology, halo = graph.topology, graph.halo
    fields = _fields(graph, shape, strategy) if halo is None else halo.fields
    staging = (0,) if not hardware.staged else (2, 1) if strategy.overlap else (1,)
    try:
        if budget is None:
            choice = Choice(fields=fields, halo=halo, staging=staging[0])
            roomy = host_memory is None
            chosen = _unlimited(graph, shape, strategy, choice, hardware, roomy=roomy)
            chosen = replace(chosen, probe=partial(probe, whole=True))
        else:
            orders = _orders(graph, strategy)
            fuses = (False, True)[: 1 + (strategy.fuse_last_layer and shape.trains)]
            slabs = SLABS if hardware.staged else SLABS[:1]
            passes = [Choice(fields=fields, halo=halo, fuse=f, slab=slab) for slab in slabs for f in fuses]
            finest = _finest(topology, orders, shape, strategy, passes, staging, probe)
            most = inf if largest is None else largest
            found = [fitting for plans in finest for fitting in fitting_plans(plans, budget, probe, hardware, most)]
            if not found:
                leanest = min((plan for plans in finest for plan in plans), key=smallest_budget)
                raise _refusal(leanest, budget, graph.original_id)
            size, cheapest = _cheapest(found, budget, hardware)
            for view in (view for plans in finest for plan in plans for view in plan.views.values()):
                view.memo.pop("pairs", None)
            del finest, found  # other grains take as much memory as the plan
            cheapest = with_edges(cheapest, topology, size)
            if size > 1:
                grouped()
            alike = host_memory is not None and 2 * most_array_bytes(cheapest) > host_memory
            chosen = plan_caches(cheapest, budget, hardware.peer_cost, alike=alike)
        taken = smallest_budget(chosen)  # known before the views forget what it follows from
        assert budget is None or taken <= budget
        chosen.forget()
        return chosen
    finally:
        topology.memo.clear()


def _orders(graph: GraphShape, strategy: Strategy) -> list[np.ndarray]:
    """Orders of the artifact's own chunks to compare: in Algorithm 4's we never move more than the paper's reuse."""
    own, paper = _schedule(graph, graph.topology, strategy), np.asarray(graph.paper_schedule)
    return [own] if strategy.reuse != "lookahead" or np.array_equal(own, paper) else [own, paper]


def _finest(
    topology: Topology,
    orders: list[np.ndarray],
    shape: NetworkShape,
    strategy: Strategy,
    passes: list[Choice],
    staging: tuple[int, ...],
    probe: Probe,
) -> list[list[ExecutionPlan]]:
    """Probed plans on the artifact's own chunks, a list for each choice of passes."""
    found: list[list[ExecutionPlan]] = []
    views: dict[View, Topology] = {}
    for choice in passes:
        plans = []
        for order, sets in itertools.product(orders, staging):
            plans.append(sketch_plan(topology, order, shape, strategy, replace(choice, staging=sets), views))
            views |= plans[-1].views
        workspace = probed(plans[0], probe)
        found.append([replace(plan, workspace=workspace) for plan in plans])
    return found


def _cheapest(found: list[tuple[int, ExecutionPlan]], budget: int, hardware: Hardware) -> tuple[int, ExecutionPlan]:
    """Of plans and the same with what may stay on the devices, the one whose epoch is predicted to be the shortest."""
    least, best = inf, found[0]
    bounds = [least_seconds(plan, hardware) for _, plan in found]
    for k in np.argsort(bounds, kind="stable"):
        if bounds[k] >= least:
            break
        size, plan = found[k]
        counted = plan_caches(plan, budget, hardware.peer_cost, count=True)
        resident = [choice for choice in choose_residents(counted, budget) if choice != plan.choice]
        kept = [plan_caches(replace(plan, choice=c), budget, hardware.peer_cost, count=True) for c in resident]
        for variant in (counted, *kept):
            seconds = predict_seconds(variant, hardware).total
            if seconds < least:
                least, best = seconds, (size, variant)
    return best


def _unlimited(
    graph: GraphShape, shape: NetworkShape, strategy: Strategy, choice: Choice, hardware: Hardware, *, roomy: bool
) -> ExecutionPlan:
    """Everything stays on the devices, in chunks that are large beside the cost of starting one; where ranks send each
    other rows, or in more, of which some can work while rows of others cross.

    Args:
        roomy: the chunks' structure stays, too, on devices that are the host.
    """
    topology = graph.topology
    choice = replace(choice, fuse=strategy.fuse_last_layer, save=strategy.resident and strategy.save)
    plan = sketch_plan(topology, _schedule(graph, topology, strategy), shape, strategy, choice)
    if strategy.resident:
        stays = roomy or choice.staging > 0
        sorts = topology.num_edges + topology.num_vertices > SMALL and topology.num_edges < np.iinfo(np.int32).max
        ordered = stays and sorts and not choice.staging
        choice = replace(choice, resident=every_tensor(plan.passes), structure=stays, ordered=ordered)
    sizes = {1}
    if strategy.group:
        sizes = {_group_size(plan, hardware)} | ({-(-topology.chunks // BESIDE)} if choice.halo else set())
    plans = []
    for size_of_group in sizes:
        grouped = topology.grouped(size_of_group) if strategy.group else topology
        free = choice.resident and strategy.schedule != "paper"
        order = _order(grouped, choice.halo) if free else _schedule(graph, grouped, strategy)
        plans.append(make_plan(grouped, order, shape, strategy, choice=choice))
    return plans[0] if len(plans) == 1 else min(plans, key=lambda plan: predict_seconds(plan, hardware).total)


def _group_size(plan: ExecutionPlan, hardware: Hardware) -> int:
    """Chunks of a group where starting one takes about as long as a few sweeps over its rows, and the allocator has the
    memory that a layer wants for them."""
    topology, item = plan.topology, plan.shape.itemsize
    widest = max(plan.passes.width.values()) * item
    rows = SWEEPS * hardware.chunk_seconds * hardware.memory_bandwidth / widest
    size = int(rows / max(topology.num_vertices / (topology.partitions * topology.chunks), 1))
    if hardware.largest_reused is not None:
        inside = max([widest, *(work.widest * item for work in plan.shape.stage_work)])
        size = min(size, int(hardware.largest_reused // (max(int(topology.num_dst.max()), 1) * inside)))
    groups = -(-topology.chunks // max(1, min(size, topology.chunks)))
    return -(-topology.chunks // groups)  # all about the same


def _order(topology: Topology, halo: Halo | None) -> np.ndarray:
    """Where every row stays, the order moves nothing. First come chunks with rows that other ranks wait for, or that
    read rows of others, who wait for their gradients; then the largest, for what one leaves free is enough for the
    next."""
    awaited = np.zeros(topology.partitions * topology.chunks, dtype=np.int64)
    for rounds in () if halo is None else filter(None, dict.fromkeys(halo.fetched)):
        given, taken = np.zeros((2, topology.num_vertices), dtype=bool)
        for crossing in rounds:
            given[np.concatenate(crossing.gives)] = taken[np.concatenate(crossing.takes)] = True
        for rows, start in ((given, topology.chunk_start), (taken[topology.sources], topology.source_start)):
            awaited += np.diff(np.concatenate([[0], np.cumsum(rows)])[start])
    keys = (each.reshape(topology.partitions, topology.chunks) for each in (-topology.num_dst, -awaited))
    return np.lexsort(tuple(keys), axis=1).astype(np.int32)


def _fields(graph: GraphShape, shape: NetworkShape, strategy: Strategy) -> tuple[np.ndarray, ...]:
    if not strategy.prune or graph.loss_vertices is None:
        return ()
    masks = receptive_field(graph.topology, graph.loss_vertices, shape.layers_above(shape.last_norm))
    return tuple(masks) if pays(graph.topology, masks) else ()


def pays(topology: Topology, masks: list[np.ndarray]) -> bool:
    """Whether the layers' receptive fields (all masks but the last) have clearly fewer vertices and edges."""
    degree = np.diff(np.asarray(topology.in_edge_start)) + 1
    left = sum(int(degree[mask].sum()) for mask in masks[:-1])
    return left < WORTH_IT * (len(masks) - 1) * int(degree.sum())


def _schedule(graph: GraphShape, topology: Topology, strategy: Strategy) -> np.ndarray:
    """Of the graph's own chunks, or groups of them."""
    if strategy.schedule == "paper":
        return np.asarray(graph.paper_schedule)
    return topology.input_order


def _refusal(plan: ExecutionPlan, budget: int, original_id: np.ndarray | None) -> BudgetError:
    topology = plan.topology
    i = max(plan.devices, key=lambda k: plan.peak_bytes[f"device {k}"])
    p = max(plan.passes.every, key=lambda p: plan.pass_arena(p, i) + plan.taken_beside(p))
    own = topology.num_sources[i * topology.chunks : (i + 1) * topology.chunks]
    j = int(np.argmax(own))
    first, end = (int(x) for x in topology.chunk_start[i * topology.chunks + j : i * topology.chunks + j + 2])
    remedy = "give more memory, or preprocess with more --chunks or --partitions"
    of = ""
    if end - first == 1:  # no finer chunk divides it
        of = f"; it is the one vertex {first if original_id is None else int(original_id[first])} with all its in-edges"
        if topology.num_dst[i * topology.chunks : (i + 1) * topology.chunks].max() == 1:
            remedy = "only more memory helps"
    smallest = smallest_budget(plan)
    given, least = in_bytes(budget), size(smallest, up=True)
    if isinstance(budget, BudgetShare):
        given += f", {100 * budget.share:g}% of the {size(budget.whole)} that are likely to be held without a limit"
        least += f", {budget.percent(smallest)}" if smallest < budget.whole else ", 100%"
    return BudgetError(
        f"device_memory is {given}, the smallest that works is {smallest} ({least}): "
        f"device {i} in pass '{p.name}' takes {plan.pass_arena(p, i)} bytes and its layers up to "
        f"{plan.taken_beside(p)} (chunk ({i}, {j}) has the most sources, {int(own[j])}{of}); {remedy}",
        smallest,
    )

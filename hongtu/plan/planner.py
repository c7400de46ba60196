"""Chooses how a run goes within the device budget: its grain, and which of the optional savings pay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from heapq import heapify, heappop, heappush

import numpy as np

from hongtu.errors import BudgetError
from hongtu.plan.build import make_plan, plan_caches, sketch_plan
from hongtu.plan.cost import predict_seconds
from hongtu.plan.execution import ONCE, Choice, ExecutionPlan, View
from hongtu.plan.hardware import CPU, Hardware
from hongtu.plan.prune import pays, receptive_field
from hongtu.plan.residents import choose_residents, every_tensor
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
    loss_vertices: np.ndarray | None = None,
) -> ExecutionPlan:
    """Plan a training run within a device budget.

    Args:
        topology: the artifact's chunks, the finest grain.
        paper_schedule: int32 [m, n], Algorithm 4's order.
        budget: bytes per device, or None for no limit.
        probe: returns the bytes that layers take at most inside each pass of a plan.
        hardware: what plans are compared for.
        original_id: int32 [V], to name a vertex in a refusal; None: its new id.
        loss_vertices: bool [V], the vertices with a loss (new ids); None: not known, nothing is pruned.

    Raises:
        BudgetError: when no grain fits; names the smallest budget that works.
    """
    fields = _fields(topology, shape, strategy, loss_vertices)
    staging = (0,) if not hardware.staged else (2, 1) if strategy.overlap else (1,)
    if budget is None:
        choice = Choice(fields=fields, staging=staging[0])
        return _unlimited(topology, paper_schedule, shape, strategy, choice, hardware)
    starts: list[ExecutionPlan] = []
    known: dict[View, Topology] = {}
    for sets in staging:
        order, choice = _schedule(topology, paper_schedule, strategy), Choice(fields=fields, staging=sets)
        finest = sketch_plan(topology, order, shape, strategy, choice, known)
        finest, known = replace(finest, workspace=probe(finest)), finest.views
        orders = (finest, *(plan for _, plan in _reordered(finest, paper_schedule, None)))
        leanest = min(orders, key=smallest_budget)  # what a batch of all devices needs depends on the order
        starts += [plan for plan in (finest, leanest) if smallest_budget(plan) <= budget][:1]
    if not starts:
        raise _refusal(leanest, budget, original_id)
    return _limited(starts, paper_schedule, budget, probe, hardware)


def _limited(
    starts: list[ExecutionPlan], paper_schedule: np.ndarray, budget: int, probe: Probe, hardware: Hardware
) -> ExecutionPlan:
    """The cheapest of all grains, orders and variants.

    Args:
        starts: plans at the finest grain that fit.
    """
    if starts[0].strategy.fuse_last_layer:
        fused = [_fused(plan, probe) for plan in starts]
        starts = [*starts, *(plan for plan in fused if smallest_budget(plan) <= budget)]
    candidates = [(1, start) for start in starts]
    for start in starts:
        candidates += _reordered(start, paper_schedule, budget)
    if starts[0].strategy.group:
        candidates += _coarser(starts, paper_schedule, budget)

    def entry(k: int, plan: ExecutionPlan, *, probed: bool) -> tuple[float, int, bool, ExecutionPlan]:
        variant, seconds = _cheapest(plan, budget, hardware)
        return seconds, k, probed, variant

    queue = [entry(k, plan, probed=size == 1) for k, (size, plan) in enumerate(candidates)]
    heapify(queue)
    while True:
        _, k, probed, variant = heappop(queue)  # never the last one: the finest grain is among them and fits
        if probed:
            break
        size, plan = candidates[k]
        plan = _with_edges(plan, starts[0].topology.grouped(size))
        plan = replace(plan, workspace=probe(plan))  # it was an estimate
        if smallest_budget(plan) <= budget:
            heappush(queue, entry(k, plan, probed=True))
    chosen = plan_caches(variant, budget, hardware.peer_cost)
    for candidate in (*(plan for _, plan in candidates), chosen):
        for view in candidate.views.values():
            view.memo.clear()
    return chosen


def _fused(plan: ExecutionPlan, probe: Probe) -> ExecutionPlan:
    """The same with forward, loss and backward of the last layer in one pass."""
    choice, order = replace(plan.choice, fuse=True), plan.schedules[None]
    fused = sketch_plan(plan.topology, order, plan.shape, plan.strategy, choice, plan.views, plan.once)
    return replace(fused, workspace=probe(fused))


def _cheapest(plan: ExecutionPlan, budget: int, hardware: Hardware) -> tuple[ExecutionPlan, float]:
    """The cheaper of a plan and the same with what may stay on the devices, only counted, and its seconds."""
    variants = [plan_caches(plan, budget, hardware.peer_cost, count=True)]
    if plan.strategy.resident:
        choice = choose_residents(variants[0], budget)
        if choice != plan.choice:
            variants.append(plan_caches(replace(plan, choice=choice), budget, hardware.peer_cost, count=True))
    seconds = [predict_seconds(variant, hardware).total for variant in variants]
    best = int(np.argmin(seconds))
    return variants[best], seconds[best]


def _with_edges(plan: ExecutionPlan, topology: Topology) -> ExecutionPlan:
    """A plan made on neighbour sets alone, with the edges that it runs on."""
    return sketch_plan(topology, plan.schedules[None], plan.shape, plan.strategy, plan.choice, once=plan.once)


def _unlimited(
    topology: Topology,
    paper_schedule: np.ndarray,
    shape: NetworkShape,
    strategy: Strategy,
    choice: Choice,
    hardware: Hardware,
) -> ExecutionPlan:
    """Everything stays on the devices, in chunks that are large beside the cost of starting one."""
    choice = replace(choice, fuse=strategy.fuse_last_layer, keep=strategy.resident and strategy.keep)
    plan = sketch_plan(topology, _schedule(topology, paper_schedule, strategy), shape, strategy, choice)
    if strategy.resident:
        choice = replace(choice, resident=every_tensor(plan.passes), structure=choice.staging > 0)
    if strategy.group:
        topology = topology.grouped(_group_size(plan, hardware))
    free = choice.resident and strategy.schedule != "paper"
    schedule = _largest_first(topology) if free else _schedule(topology, paper_schedule, strategy)
    return make_plan(topology, schedule, shape, strategy, choice=choice)


def _group_size(plan: ExecutionPlan, hardware: Hardware) -> int:
    """Chunks of a group where starting one takes about as long as a sweep over its rows, and the allocator has the
    memory that a layer wants for them."""
    topology, item = plan.topology, plan.shape.itemsize
    widest = max(plan.passes.width.values()) * item
    rows = (hardware.stage_seconds + hardware.aggregate_stage_seconds) * hardware.memory_bandwidth / widest
    size = int(rows / max(topology.num_vertices / (topology.partitions * topology.chunks), 1))
    if hardware.largest_reused is not None:
        inside = max([widest, *(work.widest * item for work in plan.shape.stage_work)])
        size = min(size, int(hardware.largest_reused // (int(topology.num_dst.max()) * inside)))
    groups = -(-topology.chunks // max(1, min(size, topology.chunks)))
    return -(-topology.chunks // groups)  # all about the same


def _largest_first(topology: Topology) -> np.ndarray:
    """Where every row stays, the order moves nothing; what one chunk leaves free is then enough for the next."""
    sizes = topology.num_dst.reshape(topology.partitions, topology.chunks)
    return np.argsort(-sizes, axis=1, kind="stable").astype(np.int32)


def _fields(
    topology: Topology, shape: NetworkShape, strategy: Strategy, loss_vertices: np.ndarray | None
) -> tuple[np.ndarray, ...]:
    if not strategy.prune or loss_vertices is None:
        return ()
    masks = receptive_field(topology, loss_vertices, shape.layers_above(shape.last_norm))
    return tuple(masks) if pays(topology, masks) else ()


def smallest_budget(plan: ExecutionPlan) -> int:
    """Bytes per device with which a plan runs: planned buffers plus the probed workspace bound."""
    return max(plan.device_bytes.values())


def _schedule(topology: Topology, paper_schedule: np.ndarray, strategy: Strategy) -> np.ndarray:
    if strategy.schedule == "paper":
        return np.asarray(paper_schedule)
    return topology.input_order


def _reordered(
    finest: ExecutionPlan, paper_schedule: np.ndarray, budget: int | None
) -> list[tuple[int, ExecutionPlan]]:
    """The finest plan in Algorithm 4's order, if it fits: with it we never move more than the paper's reuse would."""
    schedule = np.asarray(paper_schedule)
    if finest.strategy.reuse != "lookahead" or np.array_equal(schedule, finest.schedules[None]):
        return []
    plan = sketch_plan(finest.topology, schedule, finest.shape, finest.strategy, finest.choice, finest.views)
    plan = replace(plan, workspace=finest.workspace)
    return [(1, plan)] if budget is None or smallest_budget(plan) <= budget else []


def _coarser(starts: list[ExecutionPlan], paper_schedule: np.ndarray, budget: int) -> list[tuple[int, ExecutionPlan]]:
    """Plans with ever larger groups of chunks, as long as they should fit; their workspace is estimated.

    Args:
        starts: plans at the finest grain, in the order of the input.

    Returns:
        chunks per group, and a plan without edges.
    """
    found: list[tuple[int, ExecutionPlan]] = []
    finer = [(start, start) for start in starts]
    size = 2
    while finer and size < 2 * starts[0].topology.chunks:
        views = dict.fromkeys(view for _, plan in finer for view in (plan.topology, *_grouped_views(plan).values()))
        views = {view: view.grouped_sets(2) for view in views}
        coarser = [(start, _grouped(plan, start, views, paper_schedule, budget)) for start, plan in finer]
        finer = [(start, plan) for start, plan in coarser if smallest_budget(plan) <= budget]
        found += [(size, plan) for _, plan in finer]
        size *= 2
    return found


def _grouped(
    finer: ExecutionPlan,
    finest: ExecutionPlan,
    grouped: dict[Topology, Topology],
    paper_schedule: np.ndarray,
    budget: int,
) -> ExecutionPlan:
    """A plan on the groups of another's views, without edges."""
    topology, known = grouped[finer.topology], {hops: grouped[view] for hops, view in _grouped_views(finer).items()}
    schedule = _schedule(topology, paper_schedule, finest.strategy)
    plan = sketch_plan(topology, schedule, finest.shape, finest.strategy, finest.choice, known)
    growth = max(
        _ratio(getattr(view, name), getattr(finest.views[hops], name))
        for hops, view in plan.views.items()
        for name in ("num_dst", "num_sources", "chunk_edges")
    )
    plan = replace(plan, workspace={name: int(taken * growth) for name, taken in finest.workspace.items()})
    return plan if smallest_budget(plan) <= budget else _setting_up_finely(plan, finest)


def _grouped_views(plan: ExecutionPlan) -> dict[View, Topology]:
    """Those whose chunks are grouped with the plan's."""
    return {hops: view for hops, view in plan.views.items() if hops != ONCE}


def _setting_up_finely(plan: ExecutionPlan, finest: ExecutionPlan) -> ExecutionPlan:
    """A plan whose setup passes run in the finest chunks: what they exchange is often the widest of all."""
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


def _ratio(coarse: np.ndarray, fine: np.ndarray) -> float:
    return float(coarse.max()) / max(float(fine.max()), 1.0)


def _refusal(plan: ExecutionPlan, budget: int, original_id: np.ndarray | None) -> BudgetError:
    topology = plan.topology
    i = max(range(topology.partitions), key=lambda k: plan.peak_bytes[f"device {k}"])
    p = plan.tightest_pass(i)
    own = topology.num_sources[i * topology.chunks : (i + 1) * topology.chunks]
    j = int(np.argmax(own))
    first, end = (int(x) for x in topology.chunk_start[i * topology.chunks + j : i * topology.chunks + j + 2])
    remedy = "give more memory, or preprocess with more --chunks or --partitions"
    of = ""
    if end - first == 1:  # no finer chunk divides it
        of = f"; it is the one vertex {first if original_id is None else int(original_id[first])} with all its in-edges"
        if topology.num_dst[i * topology.chunks : (i + 1) * topology.chunks].max() == 1:
            remedy = "only more memory helps"
    return BudgetError(
        f"device_memory is {budget} bytes, the smallest that works is {smallest_budget(plan)}: device {i} in pass "
        f"'{p.name}' takes {plan.pass_arena(p, i)} bytes and its layers up to {plan.workspace.get(p.name, 0)} "
        f"(chunk ({i}, {j}) has the most sources, {int(own[j])}{of}); {remedy}",
        smallest_budget(plan),
    )

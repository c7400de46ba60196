"""The search for a plan, without torch: budgets from the smallest on, every candidate, what may stay on the devices."""

from __future__ import annotations

import gc
import itertools
from dataclasses import replace

import numpy as np
import pytest

from hongtu.errors import BudgetError
from hongtu.graph.topology import build_topology
from hongtu.hardware import CPU, H200
from hongtu.plan.cost.seconds import computing_seconds, predict_seconds, sketch_seconds
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes.definition import FEATURES, OUTPUT, gradient
from hongtu.plan.passes.strategy import ONCE, Choice, get_strategy
from hongtu.plan.search.build import make_plan, plan_caches, sketch_plan
from hongtu.plan.search.grains import LITTLE, fitting_plans, smallest_budget, with_edges
from hongtu.plan.search.planner import SWEEPS, GraphShape, plan_run
from hongtu.plan.search.residents import choose_residents, every_tensor
from tests import tiny

FULL, PAPER = get_strategy("full"), get_strategy("paper")
MODELS = {"gcn": tiny.GCN, "gat": tiny.GAT}
SLOW = replace(CPU, host_link=1e5, chunk_seconds=1e-5)
STAGED = replace(H200, host_link=1e6, chunk_seconds=1e-5)
machines = pytest.mark.parametrize("hardware", [SLOW, STAGED], ids=["cpu", "staged"])
models = pytest.mark.parametrize("model", MODELS)


def topology(m=2, n=8, vertices=64, edges=200, seed=0):
    """Neighbours are near one another, so that order and grain matter."""
    rng = np.random.default_rng(seed)
    destination = np.sort(rng.integers(0, vertices, edges))
    source = (destination + rng.integers(-12, 13, edges)) % vertices
    start = np.searchsorted(destination, np.arange(vertices + 1))
    cuts = np.linspace(0, vertices, m * n + 1).astype(np.int64)
    return build_topology(m, cuts, start, source, np.ones(edges, dtype=np.float32))


def probe(plan):
    """Layers take 20 bytes for every destination of the largest chunk."""
    return {p.name: 20 * int(plan.view(p).num_dst.max()) for p in plan.passes.every}


def other_order(chunks):
    rng = np.random.default_rng(5)
    orders = [rng.permutation(chunks.chunks) for _ in range(chunks.partitions)]
    return np.stack(orders).astype(np.int32)


def search(chunks, budget, model, strategy=FULL, hardware=SLOW, **options):
    graph = {name: options.pop(name) for name in ("loss_vertices", "original_id", "halo") if name in options}
    graph = GraphShape(chunks, other_order(chunks), **graph)
    return plan_run(graph, MODELS[model], strategy, budget, probe, hardware, **options)


def smallest(*given, **options):
    with pytest.raises(BudgetError) as refused:
        search(given[0], 1, *given[1:], **options)
    return refused.value.smallest


@pytest.mark.long
@machines
@models
def test_budgets_from_the_smallest_on(model, hardware):
    """None is exceeded, none below the smallest works, and more memory is never predicted slower."""
    chunks, seconds = topology(), []
    least = smallest(chunks, model, hardware=hardware)
    with pytest.raises(
        BudgetError, match=rf"{least - 1} bytes.*, the smallest that works is {least}\b.*: device 0 in pass"
    ):
        search(chunks, least - 1, model, hardware=hardware)
    for share in (1, 1.1, 1.5, 2, 4, 50):
        budget = int(share * least)
        plan = search(chunks, budget, model, hardware=hardware)
        assert max(plan.device_bytes.values()) <= budget
        assert set(plan.transfers) == {p.name for p in plan.passes.every if p.exchange or p.flush}
        assert not chunks.memo and not any(view.memo for view in plan.views.values())
        seconds.append(predict_seconds(plan, hardware).total)
    assert seconds == sorted(seconds, reverse=True) and seconds[-1] < 0.9 * seconds[0]


@pytest.mark.long
@machines
@models
def test_no_candidate_is_predicted_faster(model, hardware):
    """All grains, orders, sets of staging memory, fusion, and whatever may stay: each counted on its own."""
    chunks = topology()
    least = smallest(chunks, model, hardware=hardware)
    for share in (1.0, 1.5, 2.5):
        budget, tried = int(share * least), 0
        plan = search(chunks, budget, model, hardware=hardware)
        counted = plan_caches(plan, budget, hardware.peer_cost, count=True)
        chosen = predict_seconds(counted, hardware).total
        staging, slabs = ((1, 2), (True, False)) if hardware.staged else ((0,), (True,))
        for fuse, sets, size, slab in itertools.product((False, True), staging, (1, 2, 4, 8), slabs):
            grouped = chunks.grouped(size) if size > 1 else chunks
            for order in (grouped.input_order, other_order(chunks))[: 1 + (size == 1)]:
                sketch = sketch_plan(grouped, order, MODELS[model], FULL, Choice(fuse=fuse, staging=sets, slab=slab))
                sketch = replace(sketch, workspace=probe(sketch))
                if smallest_budget(sketch) > budget:
                    continue
                found = plan_caches(sketch, budget, hardware.peer_cost, count=True)
                for choice in (found.choice, *choose_residents(found, budget)):
                    tried += 1
                    other = plan_caches(replace(sketch, choice=choice), budget, hardware.peer_cost, count=True)
                    assert chosen <= predict_seconds(other, hardware).total * (1 + 1e-9)
        assert tried >= 2


def test_a_refusal_names_the_pass_the_chunk_and_the_vertex():
    """All 12 vertices read by vertex 5, each vertex a chunk."""
    start = np.repeat([0, 12], [6, 7])
    chunks = build_topology(1, np.arange(13), start, np.arange(12), np.ones(12, dtype=np.float32))
    with pytest.raises(
        BudgetError, match=r"device 0 in pass '.*' takes \d+ .*chunk \(0, 5\) has the most sources, 12; "
    ) as refused:
        search(chunks, 200, "gat")
    assert "the one vertex 5 with all its in-edges); only more memory helps" in str(refused.value)
    ids = np.arange(100, 112)
    with pytest.raises(BudgetError, match="the one vertex 105"):
        search(chunks, 200, "gat", original_id=ids)
    with pytest.raises(BudgetError, match="or preprocess with more --chunks"):
        search(topology(1, 2), 200, "gat")


def test_without_a_budget_everything_stays():
    chunks = topology()
    plan = search(chunks, None, "gat")
    assert plan.choice.fuse and plan.choice.save and plan.choice.structure and plan.rows["load"] == 0
    assert plan.resident == every_tensor(plan.passes) and OUTPUT not in plan.resident
    assert not plan.choice.ordered and search(chunks, None, "gat", hardware=STAGED).choice.structure
    lean = search(chunks, None, "gat", replace(FULL, resident=False))
    assert not lean.resident and not lean.choice.save and lean.rows["load"] > 0
    assert search(chunks, None, "gat", PAPER).schedules[None].tolist() == other_order(chunks).tolist()


def test_chunks_are_as_large_as_starting_one_is_dear():
    """Four vertices in a chunk, rows of 16 bytes: at a byte a second, 128 seconds are worth 8 rows, two chunks."""
    fast = replace(CPU, memory_bandwidth=1.0, largest_reused=None)
    for seconds, chunks in ((128.0, 4), (64.0, 8), (192.0, 3), (10_000.0, 1), (320.0, 2), (484.0, 2)):
        plan = search(topology(), None, "gcn", hardware=replace(fast, chunk_seconds=seconds / SWEEPS))
        assert plan.topology.chunks == chunks, seconds
    plan = search(topology(), None, "gcn", hardware=replace(fast, chunk_seconds=1e4, largest_reused=4 * 16 * 2))
    assert plan.topology.chunks == 4  # the allocator hands two chunks' rows out again, no more


def test_where_everything_stays_the_largest_chunk_comes_first():
    chunks = topology(2, 3, vertices=60)
    cuts = np.array([0, 5, 25, 30, 40, 50, 60])
    uneven = build_topology(2, cuts, chunks.in_edge_start, chunks.global_sources(), chunks.edge_weight)
    plan = search(uneven, None, "gcn", replace(FULL, group=False))
    assert plan.schedules[None].tolist() == [[1, 0, 2], [0, 1, 2]]


def test_what_the_loss_needs_is_computed_where_that_is_much_less():
    chunks, few, most = topology(), np.zeros(64, dtype=bool), np.ones(64, dtype=bool)
    few[3] = most[3:] = True
    plan = search(chunks, None, "gat", loss_vertices=few)
    assert len(plan.choice.fields) == 3 and set(plan.views) == {0, 1, 2, None}
    assert plan.views[0].active.tolist() == [3] and plan.views[None] is plan.topology
    assert search(chunks, None, "gat", loss_vertices=most).choice.fields == ()
    assert search(chunks, None, "gat", replace(FULL, prune=False), loss_vertices=few).choice.fields == ()


# --------------------------------------------------------------------------------------------------------------- grains


def probed(chunks, model="gcn", strategy=FULL, **choice):
    plan = sketch_plan(chunks, chunks.input_order, MODELS[model], strategy, Choice(**choice))
    return replace(plan, workspace=probe(plan))


def test_grains_double_until_starting_chunks_is_little():
    plan = probed(topology())
    sizes = [size for size, _ in fitting_plans([plan], 1 << 30, probe, replace(SLOW, chunk_seconds=1.0))]
    assert sorted(set(sizes)) == [1, 2, 4, 8]
    limited = fitting_plans([plan], 1 << 30, probe, replace(SLOW, chunk_seconds=1.0), largest=4)
    assert {size for size, _ in limited} == {1, 2, 4}
    arithmetic, starting = computing_seconds(plan, SLOW)
    little = SLOW.chunk_seconds * LITTLE * arithmetic / starting / 2
    enough = replace(CPU, chunk_seconds=little, call_seconds=1e-30)
    assert [size for size, _ in fitting_plans([plan], 1 << 30, probe, enough)] == [1]
    assert [size for size, _ in fitting_plans([probed(topology(), strategy=PAPER)], 1 << 30, probe, SLOW)] == [1]


def test_grains_fit_and_their_groups_have_what_was_counted():
    chunks = topology()
    plan = probed(chunks)
    for budget in range(smallest_budget(plan) - 1, 3 * smallest_budget(plan), 100):
        for size, found in fitting_plans([plan], budget, probe, replace(SLOW, chunk_seconds=1.0)):
            assert smallest_budget(found) <= budget and found.topology.chunks == 8 // size
            made = with_edges(found, chunks, size)
            assert made.device_bytes == found.device_bytes and made.workspace == found.workspace
            assert len(made.topology.local_source) == 200


def test_setup_may_run_in_finer_chunks():
    """The features are wider than all that is exchanged later."""
    wide = tiny.network(tiny.layer(40, trained=False), tiny.layer(3), features=40, constant_layers=1)
    chunks = topology()
    plan = sketch_plan(chunks, chunks.input_order, wide, FULL, Choice(fuse=True))
    plan = replace(plan, workspace=probe(plan))
    found = fitting_plans([plan], int(1.2 * smallest_budget(plan)), probe, replace(SLOW, chunk_seconds=1.0))
    finely = [(size, each) for size, each in found if ONCE in each.views]
    assert finely
    for size, each in finely:
        assert each.views[ONCE].chunks == 8 and each.topology.chunks == 8 // size and each.once is not None
        names = [p.name for p in each.passes.setup]
        assert [each.workspace[name] for name in names] == [plan.workspace[name] for name in names]
        assert with_edges(each, chunks, size).device_bytes == each.device_bytes


# ------------------------------------------------------------------------------------------------------------ residents


def planned(model, choice=None, budget=None):
    chunks = tiny.topology()
    plan = sketch_plan(chunks, chunks.input_order, MODELS[model], FULL, choice or Choice())
    return plan_caches(plan, budget, count=False)


def test_every_tensor_that_may_stay():
    assert every_tensor(planned("gcn").passes) == {"z0", "a0", "z1", "a1", gradient("z1"), gradient(OUTPUT)}
    tensors = every_tensor(planned("gat").passes)
    assert tensors == {FEATURES, *(x for n in ("z0", "s0.1", "z1", "s1.1") for x in (n, gradient(n))), gradient(OUTPUT)}


def test_what_saves_the_most_bytes_per_byte_stays_first():
    """GCN on 8 rows, 4 on each device. Written once and read once (a0: read twice), each saves 4 bytes per
    byte; z1 and its gradient take 6 rows for each on device 0, and save 4 * 8 + 2 * 5 rows: 3.5. Nothing reads z0."""
    plan, seen = planned("gcn"), set()
    units = [{"a0"}, {"a1"}, {gradient(OUTPUT)}, {"z1", gradient("z1")}]

    def taken(resident):
        choice = replace(plan.choice, resident=frozenset(resident))
        return max(replace(plan, choice=choice, transfers={}).device_bytes.values())

    for budget in range(taken(()), taken(()) + 260, 20):
        expected = set()
        for unit in units:
            expected |= unit if taken(expected | unit) <= budget else set()
        assert [choice.resident for choice in choose_residents(plan, budget)] == [expected]
        seen.add(frozenset(expected))
    assert len(seen) > 3


def test_structure_stays_with_what_fits_and_without():
    plan = planned("gcn", Choice(staging=1))
    (only,) = choose_residents(plan, max(plan.device_bytes.values()))
    assert not only.structure
    both = choose_residents(plan, 1 << 20)
    assert [choice.structure for choice in both] == [True, False] and both[0].resident == both[1].resident
    assert choose_residents(make_plan(plan.topology, plan.schedules[None], tiny.GCN, PAPER), 1 << 20) == []


@pytest.mark.parametrize("budget", [700, 1000, 2000, None])
def test_caches_fill_the_budget(budget):
    plan = planned("gat", budget=budget)
    for p in plan.passes.train:
        if p.name in plan.transfers:
            capacities = plan.capacities(p, budget) if budget else (8, 8)
            for i, (limits, slots) in enumerate(zip(plan.limits_of(p), capacities, strict=True)):
                assert limits.slots <= plan.capacity(p, i) <= slots <= 8
            if budget and max(plan.device_bytes.values()) <= budget:
                assert max(plan.pass_arena(p, i) for i in range(2)) <= budget


# ------------------------------------------------------------------------------------------------------------- captures


@models
@pytest.mark.parametrize("hardware", [SLOW, STAGED], ids=["CPU", "GPU"])
@pytest.mark.parametrize(
    "strategy", [FULL, replace(FULL, fuse_last_layer=False), PAPER], ids=["full", "apart", "paper"]
)
def test_layers_run_once_for_all_plans_in_which_they_do_the_same(model, strategy, hardware):
    """In groups of a size, with the last layer fused or not; that buffers lie in a slab is nothing to them."""
    seen, chunks = [], topology()

    def counted(plan):
        seen.append((plan.topology.chunks, plan.choice.fuse))
        return probe(plan)

    plan_run(GraphShape(chunks, other_order(chunks)), MODELS[model], strategy, 1 << 30, counted, hardware)
    assert len(seen) == len(set(seen)) and {fuse for _, fuse in seen} == {False, strategy.fuse_last_layer}
    assert not chunks.memo, "another run's layers may take more"


@models
@pytest.mark.parametrize("budget", [None, 1.0, 1.5, 4.0])
def test_one_gpu_that_does_captured_passes_again_pays_no_dispatch(model, budget):
    """Chunks that Python would take long to start; what moves and is computed costs as much as ever."""
    hardware = replace(STAGED, chunk_seconds=1.0)
    limit = None if budget is None else int(budget * smallest(topology(), model, hardware=hardware))
    plan = search(topology(), limit, model, hardware=hardware)
    eager = replace(plan, strategy=replace(FULL, capture=False), shape=plan.shape)
    found, other = predict_seconds(plan, hardware), predict_seconds(eager, hardware)
    assert (found.dispatch == 0) == plan.captured == (not plan.program.eager)
    assert plan.captured or budget in (1.0, 1.5)  # where there may be no room for a slab
    assert other.dispatch > 0 and eager.program.eager
    assert replace(found, dispatch=0, hidden=0) == replace(other, dispatch=0, hidden=0)
    assert (plan.bytes, plan.device_bytes) == (eager.bytes, eager.device_bytes)


@pytest.mark.parametrize(
    ("strategy", "shape", "hardware"),
    [
        (replace(FULL, capture=False), tiny.GCN, STAGED),
        (FULL, replace(tiny.GCN, repeats=False), STAGED),
        (FULL, tiny.GCN, replace(STAGED, devices=2)),
        (FULL, tiny.GCN, SLOW),
        (PAPER, tiny.GCN, STAGED),
    ],
    ids=["no capture", "a model of the user's", "two GPUs", "CPU", "paper"],
)
def test_everybody_else_pays_dispatch(strategy, shape, hardware):
    chunks = topology()
    plan = plan_run(GraphShape(chunks, other_order(chunks)), shape, strategy, 1 << 30, probe, hardware)
    assert predict_seconds(plan, hardware).dispatch > 0


@pytest.mark.long
def test_a_slab_is_worth_what_python_would_take():
    """It needs memory that rows could have."""
    chunks, slow, found = topology(m=1), replace(STAGED, chunk_seconds=1e-4), set()
    least = smallest(chunks, "gcn", hardware=slow)
    for times in np.arange(1.2, 4.0, 0.2):
        both = [search(chunks, int(times * least), "gcn", used, slow).choice.slab for used in STRATEGIES]
        found.add(tuple(both))
    assert (True, False) in found and (False, True) not in found


STRATEGIES = FULL, replace(FULL, capture=False)


@pytest.mark.parametrize(
    ("hardware", "linked", "counts"),
    [(CPU, False, True), (CPU, True, False), (H200, False, False)],
    ids=["cpu", "linked", "captured"],
)
def test_a_sketch_counts_the_starts_of_passes_that_python_starts(hardware, linked, counts):
    """Not of those that a GPU captures, nor where the number of chunks is not known yet."""
    graph = topology(m=1)
    sketch = sketch_plan(graph, graph.input_order, tiny.GCN, FULL, Choice())
    slow = replace(hardware, chunk_seconds=1.0)
    slower = sketch_seconds(sketch, slow, linked=linked) - sketch_seconds(sketch, hardware, linked=linked)
    assert (slower > 0.9 * len(sketch.passes.train)) == counts and (slower == 0) != counts


@models
@machines
def test_what_was_not_chosen_is_freed_at_once(model, hardware):
    """By reference counts: arrays of all candidates together are as large as the graph several times."""
    chunks = topology()
    budget = 2 * smallest(chunks, model, hardware=hardware)
    gc.collect()
    gc.disable()
    try:
        plan = search(chunks, budget, model, hardware=hardware)
        assert plan.peak_bytes
        assert [x for x in gc.get_objects() if isinstance(x, ExecutionPlan)] == [plan]
    finally:
        gc.enable()

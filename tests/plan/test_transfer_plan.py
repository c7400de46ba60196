"""Transfer plans in programs of one pass, which the checker reads and the slow interpreter runs, against dense
products, on many tiny random graphs."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from hongtu.errors import BudgetError
from hongtu.graph.topology import build_topology
from hongtu.plan.cache.transfer import plan_transfers
from hongtu.plan.memory.buffers import Buffer
from hongtu.plan.passes.definition import FEATURES, OUTPUT, gradient
from hongtu.plan.program import moves
from hongtu.plan.program.moves import Copy, call, with_drops
from hongtu.plan.program.program import PassProgram, Program
from hongtu.plan.program.ref import Ref, Stores
from hongtu.plan.program.rows import DESTINATIONS, FRONT, SOURCES, OfChunk, Picked, Picks, SlotsOfSources
from tests.checker.check import check_program
from tests.checker.held import ProgramError
from tests.interpreter import Interpreter

CASES = 300  # tiny graphs per policy


def random_case(rng: np.random.Generator, max_vertices: int = 12, max_chunks: int = 4):
    """A random topology with awkward pieces: empty chunks, hubs, duplicates, loops, isolated vertices."""
    num_vertices = int(rng.integers(1, max_vertices + 1))
    m, n = int(rng.integers(1, 5)), int(rng.integers(1, max_chunks + 1))
    num_edges = int(rng.integers(0, 3 * max_vertices + 4))
    src = rng.integers(0, num_vertices, num_edges)
    if rng.random() < 0.3:
        src[rng.random(num_edges) < 0.5] = 0  # a hub read by everyone
    dst = np.sort(rng.integers(0, num_vertices, num_edges))
    in_edge_start = np.searchsorted(dst, np.arange(num_vertices + 1))
    cuts = np.sort(rng.integers(0, num_vertices + 1, m * n - 1))
    chunk_start = np.concatenate([[0], cuts, [num_vertices]])
    weight = rng.normal(size=num_edges).astype(np.float32) if rng.random() < 0.5 else None
    topology = build_topology(m, chunk_start, in_edge_start, src, weight)
    schedule = np.stack([rng.permutation(n) for _ in range(m)]).astype(np.int32)
    dense = np.zeros((num_vertices, num_vertices))
    np.add.at(dense, (dst, src), 1.0 if weight is None else weight)
    return topology, schedule, dense


def bring(name, rows, where="plan"):
    return Copy(link="topology", dst=Ref(tensor=name, rows=FRONT), src=Ref(tensor=name, where=where, rows=rows))


def cache_of(name, picks, at, access="read"):
    return Ref(tensor=name, rows=Picked(picks, "slot", at), access=access)


def peers(name, picks, at, access="read"):
    return Ref(tensor=name, where="peer", rows=Picked(picks, "peer_slot", at), access=access)


def program_of(topology, schedule, plan):
    """Forward A times the features; backward A^T times the labels, with the features' rows brought and A times them
    once more."""
    devices, count = tuple(plan.devices), topology.num_vertices

    def a_pass(direction):
        backward = direction == "backward"
        begin, end = ([Picks(devices, mirrors, of) for mirrors in (False, True)] for of in (backward, not backward))
        weight = topology.edge_weight is not None
        matrix = ("indptr", "local_source", "slot_of_source", "edge_weight" if weight else None)
        body = [
            bring("load_slots", Picked(begin[0], "slot")),
            bring("load_rows", Picked(begin[0], "row")),
            Copy(link="load", dst=cache_of("cache", begin[0], "load_slots"),
                 src=Ref(tensor=FEATURES, where="host", rows=Picked(begin[0], "row", "load_rows"))),
            bring("pull_to", Picked(begin[1], "slot")),
            bring("pull_from", Picked(begin[1], "peer_slot")),
            Copy(link="pull", dst=cache_of("cache", begin[1], "pull_to"), src=peers("cache", begin[1], "pull_from")),
            bring("indptr", OfChunk("pointers"), "graph"),
            bring("local_source", OfChunk("edges"), "graph"),
            bring("slot_of_source", SlotsOfSources("sources", devices=devices)),
            *[bring("edge_weight", OfChunk("edges"), "graph")] * weight,
        ]  # fmt: skip
        values, gradients = (
            Ref(tensor=name, rows=SOURCES, access=access)
            for name, access in (("cache", "read"), ("gradient_cache", Stores(False)))
        )
        out = Ref(tensor=OUTPUT, where="host", access=Stores(True))
        compute = [
            call("new", gives="a", columns=2),
            call("sum", *matrix, "a", gives="a", at=values, mean=False),
            call("write", "a", gives="a", at=out, holds=False),
        ]
        sends = [Copy(link="write", dst=out, src=Ref(tensor=OUTPUT, rows=FRONT))]
        if backward:
            compute += [call("transpose_sum", *matrix, "labels", at=gradients, mean=False)]
            body += [
                bring("push_from", Picked(end[1], "slot")),
                bring("push_to", Picked(end[1], "peer_slot")),
                bring("flush_slots", Picked(end[0], "slot")),
                bring("labels", DESTINATIONS, "host"),
                *(call("zero_rows", at=cache_of("gradient_cache", picks, name, Stores(True)))
                  for picks, name in ((begin[0], "load_slots"), (begin[1], "pull_to"))),
            ]  # fmt: skip
            flushed = Ref(tensor=gradient(FEATURES), where="host", rows=Picked(end[0], "row"),
                          access=(Stores(False),) * len(devices))  # fmt: skip
            sends = [
                Copy(link="push",
                     dst=peers("gradient_cache", end[1], "push_to", Stores(False)),
                     src=cache_of("gradient_cache", end[1], "push_from")),
                *sends,
                Copy(link="flush", dst=flushed, src=cache_of("gradient_cache", end[0], "flush_slots")),
            ]  # fmt: skip
        names = {x.dst.tensor: "int64" for x in body if isinstance(x, Copy) and x.link == "topology"}
        names |= {"labels": "float", "edge_weight": "float"}
        rows = 2 * count + topology.num_edges
        buffers = tuple(
            {name: Buffer((rows, 2) if name == "labels" else (rows,), dtype) for name, dtype in names.items()}
            | {name: Buffer((device.capacity, 2), "float") for name in ("cache", "gradient_cache")}
            for device in devices
        )
        made = [OUTPUT, gradient(FEATURES)][: 1 + backward]
        order = range(schedule.shape[1])
        return PassProgram(
            name=direction, view=topology, schedule=schedule, order=order[::-1] if backward else order, sets=1,
            buffers=buffers, staging=({},) * len(devices), width={}, itemsize=8,
            before=tuple(moves.Place(name=n, where="host", rows=(count,), shape=(2,), zero=True) for n in made),
            body=(*body, moves.Compute(body=with_drops(compute), graph=False, saves=False), *sends), after=(), frees=(),
        )  # fmt: skip

    return Program(setup=(a_pass("forward"),), train=(a_pass("backward"),), evaluate=())


def check_products(topology, schedule, plan, dense, rng):
    program = program_of(topology, schedule, plan)
    check_program(program)
    h, g = rng.normal(size=(2, topology.num_vertices, 2))
    run = Interpreter(topology.partitions, None, {FEATURES: h, "labels": g})
    run.run(program.setup)
    np.testing.assert_allclose(run.host.pop(OUTPUT), dense @ h, atol=1e-12)
    assert run.moved == {"load": plan.rows_loaded, "pull": plan.rows_pulled}
    run.run(program.train)
    np.testing.assert_allclose(run.host[OUTPUT], dense @ h, atol=1e-12)
    np.testing.assert_allclose(run.host[gradient(FEATURES)], dense.T @ g, atol=1e-12)
    assert run.moved == {
        "load": 2 * plan.rows_loaded, "flush": plan.rows_loaded, "pull": 2 * plan.rows_pulled, "push": plan.rows_pulled,
    }  # fmt: skip


def paper_volumes(topology, schedule):
    """(V_ori, V_+ru, pulls of the merged buffer) by sets."""
    m, n = schedule.shape
    sets = [[set(topology.neighbour_set(i * n + schedule[i, b]).tolist()) for b in range(n)] for i in range(m)]
    own = [set(range(*topology.partition_start[i : i + 2])) for i in range(m)]
    v_ori = sum(len(s) for row in sets for s in row)
    transition = [set().union(*(sets[i][b] for i in range(m))) for b in range(n)]
    v_ru = sum(len(transition[b] - (transition[b - 1] if b else set())) for b in range(n))
    pulls = sum(len((sets[i][b] - own[i]) - (sets[i][b - 1] if b else set())) for i in range(m) for b in range(n))
    return v_ori, v_ru, pulls


@pytest.mark.long
@pytest.mark.parametrize("reuse", ["none", "paper"])
def test_plan_computes_the_dense_products(reuse):
    rng = np.random.default_rng(7)
    for _ in range(CASES):
        topology, schedule, dense = random_case(rng)
        plan = plan_transfers(topology, schedule, reuse)
        check_products(topology, schedule, plan, dense, rng)
        v_ori, v_ru, pulls = paper_volumes(topology, schedule)
        expected = (v_ori, 0) if reuse == "none" else (v_ru, pulls)
        assert (plan.rows_loaded, plan.rows_pulled) == expected


def test_dropping_one_load_is_caught():
    rng = np.random.default_rng(3)
    caught = tried = 0
    for _ in range(200):
        topology, schedule, _ = random_case(rng)
        plan = plan_transfers(topology, schedule, "paper")
        device = int(rng.integers(topology.partitions))
        loads = plan.devices[device].loads
        if len(loads) == 0:
            continue
        tried += 1
        plan.devices[device] = dataclasses.replace(plan.devices[device], loads=without(loads, rng.integers(len(loads))))
        with pytest.raises(ProgramError):
            check_program(program_of(topology, schedule, plan))
        caught += 1
    assert caught == tried > 100


def without(table, k):
    """The intervals less number k."""
    from hongtu.plan.cache.intervals import make_intervals

    keep = np.arange(len(table)) != k
    columns = (table.row[keep], table.slot[keep], table.first[keep], table.last[keep])
    peers = (table.peer[keep], table.peer_slot[keep]) if len(table.peer) else ()
    return make_intervals(*columns, len(table.first_start) - 1, *peers)


@pytest.mark.long
@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_lookahead_computes_the_dense_products_within_its_capacity(prefetch):
    rng, costs = np.random.default_rng(11 + prefetch), np.random.default_rng(prefetch)
    evicting = 0
    for _ in range(CASES // 5):
        topology, schedule, dense = random_case(rng, 30, 10)
        devices = range(topology.partitions)
        needs = [lookahead_need(topology, schedule, prefetch, i) for i in devices]
        capacity = max(needs) + int(rng.integers(0, 2))
        peer_cost = float(costs.choice([0, 0.1, 1, 10]))
        plan = plan_transfers(topology, schedule, "lookahead", capacity, prefetch, peer_cost)
        unlimited = plan_transfers(topology, schedule, "lookahead")
        assert max(device.capacity for device in plan.devices) <= capacity
        check_products(topology, schedule, plan, dense, rng)
        read = len(np.unique(topology.sources)) if len(topology.sources) else 0
        assert unlimited.rows_loaded == read <= plan.rows_loaded
        evicting += plan.rows_loaded > read
        check_prefetch(plan, prefetch)
        if capacity == max(needs):
            with pytest.raises(BudgetError, match="slots"):
                plan_transfers(topology, schedule, "lookahead", capacity - 1, prefetch)
    assert evicting  # some were short of slots


def lookahead_need(topology, schedule, prefetch, device):
    """Slots that one device needs at least: the distinct rows of its fullest window of batches."""
    m, n = schedule.shape
    lo, hi = topology.partition_start[device : device + 2]
    sets = [[set(topology.neighbour_set(i * n + schedule[i, b]).tolist()) for b in range(n)] for i in range(m)]
    rows = [sets[device][b] | {r for i in range(m) for r in sets[i][b] if lo <= r < hi} for b in range(n)]
    return max(len(set().union(*rows[b : b + prefetch + 1])) for b in range(n))


def check_prefetch(plan, prefetch):
    """No load for batch b writes a slot that batches b - prefetch .. b - 1 still read."""
    for device in plan.devices:
        tables = (device.loads, device.pulls)
        slot, first, last = (np.concatenate([getattr(t, name) for t in tables]) for name in ("slot", "first", "last"))
        for s in np.unique(slot):
            mine = np.argsort(first[slot == s])
            begins, ends = first[slot == s][mine], last[slot == s][mine]
            assert np.all(np.maximum(begins[1:] - prefetch, 0) > ends[:-1])


@pytest.mark.long
def test_lookahead_never_moves_more_than_the_paper_at_its_capacity():
    rng = np.random.default_rng(5)
    fewer = together = 0
    for _ in range(CASES):
        topology, schedule, _ = random_case(rng, 30, 10)
        paper = plan_transfers(topology, schedule, "paper")
        capacity = max(device.capacity for device in paper.devices)
        fewest = plan_transfers(topology, schedule, "lookahead", capacity)
        fewer += fewest.rows_loaded < paper.rows_loaded
        for peer_cost in (0.0, 0.3, 3.0):
            plan = plan_transfers(topology, schedule, "lookahead", capacity, peer_cost=peer_cost)
            assert fewest.rows_loaded <= plan.rows_loaded <= paper.rows_loaded
            assert plan.rows_pulled <= min(paper.rows_pulled, fewest.rows_pulled)
            cost = [p.rows_loaded + peer_cost * p.rows_pulled for p in (plan, fewest)]
            assert cost[0] <= cost[1]
            together += cost[0] < cost[1]
    assert fewer > CASES // 6 and together > CASES // 30


def test_lookahead_loads_as_few_rows_as_any_choice_of_gaps():
    """Brute force over every set of kept gaps, one device."""
    rng = np.random.default_rng(9)
    tried = 0
    while tried < 60:
        topology, schedule, _ = random_case(rng, 30, 10)
        if topology.partitions != 1 or schedule.shape[1] < 3:
            continue
        rows = [set(topology.neighbour_set(int(c)).tolist()) for c in schedule[0]]
        uses = {r: [b for b in range(len(rows)) if r in rows[b]] for r in set().union(*rows)}
        gaps = [(r, j, k) for r, at in uses.items() for j, k in itertools.pairwise(at)]
        if not 1 <= len(gaps) <= 10:
            continue
        tried += 1
        capacity = max(map(len, rows))
        kept = max(
            bin(choice).count("1")
            for choice in range(1 << len(gaps))
            if all(
                len(rows[t]) + sum(choice >> g & 1 and j < t < k for g, (_, j, k) in enumerate(gaps)) <= capacity
                for t in range(len(rows))
            )
        )
        loads = sum(map(len, rows)) - kept
        assert plan_transfers(topology, schedule, "lookahead", capacity).rows_loaded == loads

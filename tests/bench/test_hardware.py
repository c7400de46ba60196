"""Hardware profiles and what seconds and charts are made of; no torch."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import fields, replace

import numpy as np
import pytest

from hongtu.errors import InputError
from hongtu.graph.topology import build_topology
from hongtu.hardware import CPU, PROFILES, Hardware, load_hardware
from hongtu.plan.cache.transfer import plan_transfers
from hongtu.plan.cost.seconds import Seconds, pass_seconds, predict_seconds
from hongtu.plan.cost.work import FINDING, FRESH, LOSS_SWEEPS
from hongtu.plan.passes.shapes import EdgeSweeps, LayerShape, NetworkShape, Products, StageWork, Sweeps
from hongtu.plan.passes.strategy import STRATEGIES, Choice
from hongtu.plan.report import LoadCounter, traffic_chart
from hongtu.plan.search.build import make_plan
from hongtu.preprocess.reorganize import count_volume
from tests import problems, training
from tests.models import SIX

SVG = "{http://www.w3.org/2000/svg}"


def random_topology(seed, m, n, v=60, e=300):
    rng = np.random.default_rng(seed)
    chunk_start = np.concatenate([[0], np.sort(rng.integers(0, v + 1, m * n - 1)), [v]])
    destination = np.sort(rng.integers(0, v, e))
    in_edge_start = np.searchsorted(destination, np.arange(v + 1))
    return build_topology(m, chunk_start, in_edge_start, rng.integers(0, v, e))


WORK = (
    StageWork(products=Products(10, 8), entry=Products(7, 3), sweeps=Sweeps(5, 7, 2, 6)),
    StageWork(products=Products(20, 9), mapped=Products(4, 2), combine=Sweeps(1, 3, 4, 8)),
)
FUNCTION = (
    EdgeSweeps(walks=1, rows=5, destinations=3, sources=6, edges=1.5, calls=4),
    EdgeSweeps(walks=3, rows=20, destinations=7, sources=8, edges=2.5, calls=8),
)


def shape(work=WORK, **layer):
    fields = {"z": 4, "s": (None,), "a": 4, "linear": True, "reduce": "sum", "weighted": False, "z_is_input": False}
    one = LayerShape(**(fields | {"uses_statistics": False} | layer))
    return NetworkShape(
        features=6, layers=(one,), output=3, itemsize=4, model_bytes=100, label_bytes=8, stage_work=work
    )


def free(**costs):
    """A machine on which everything costs nothing, except what is named."""
    rates = {name: 1e30 for name, value in CPU.to_dict().items() if isinstance(value, float)}
    return Hardware(name="free", **rates | {name: 1e-30 for name in rates if name.endswith("_seconds")} | costs)


@pytest.mark.parametrize("name", PROFILES)
def test_shipped_profiles(name, tmp_path):
    profile = load_hardware(name)
    assert profile.name == name
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(profile.to_dict()))
    assert load_hardware(file) == profile == load_hardware(str(file))
    assert profile.usable_memory is None or 0 < profile.usable_memory < profile.device_memory


def test_device_links_are_faster_than_the_host_link():
    for name in ("a100x4", "h200"):
        profile = load_hardware(name)
        assert profile.host_link < profile.peer_link < profile.memory_bandwidth


@pytest.mark.parametrize("name", PROFILES)
def test_no_link_is_faster_than_memory(name):
    rates = {field.name for field in fields(Hardware) if field.type == "float"}
    assert len(rates) == 8
    profile = load_hardware(name)
    for link in (rate for rate in rates if rate.endswith("_link")):
        assert getattr(profile, link) <= profile.memory_bandwidth


@pytest.mark.parametrize(
    "text, message",
    [
        ("no json", "not valid JSON"),
        ("[1]", "not a hardware profile"),
        (json.dumps({"name": "x"}), "missing ['call_seconds'"),
        (json.dumps(CPU.to_dict() | {"speed": 3}), "unknown ['speed']"),
        (json.dumps(CPU.to_dict() | {"flops": 0}), "flops is 0"),
        (json.dumps(CPU.to_dict() | {"flops": "fast"}), "flops is 'fast'"),
        (json.dumps(CPU.to_dict() | {"host_link": float("inf")}), "host_link is inf"),
        (json.dumps(CPU.to_dict() | {"devices": 1.5}), "devices is 1.5"),
        (json.dumps(CPU.to_dict() | {"device_memory": True}), "device_memory is True"),
        (json.dumps(CPU.to_dict() | {"name": ""}), "name is ''"),
    ],
)
def test_bad_profile_files(text, message, tmp_path):
    file = tmp_path / "bad.json"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        load_hardware(file)
    assert str(file) in str(caught.value) and message in str(caught.value)


def test_unknown_profile_names_the_known_ones():
    with pytest.raises(InputError, match=r"cpu, a100x4, a5000, h200.*doctor --measure"):
        load_hardware("abacus")


def test_equation_4_is_the_papers():
    machine = Hardware(**CPU.to_dict() | {"host_link": 4e9, "memory_bandwidth": 40e9, "peer_link": 10e9})
    seconds = 40 / 4 + 20 / 20 + 40 / 10
    assert machine.equation4(100, 60, 40, 1_000_000_000, 4) == pytest.approx(seconds)
    four = Hardware(**machine.to_dict() | {"devices": 4})
    assert four.equation4(100, 60, 40, 1_000_000_000, 2) == pytest.approx(seconds / 2)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("m, n", [(1, 1), (2, 3), (4, 8)])
def test_seconds_are_bytes_over_rates(strategy, m, n):
    topology = random_topology(3, m, n)
    plan = make_plan(topology, topology.input_order, shape(), STRATEGIES[strategy])
    slow = free(host_link=2.0, peer_link=4.0)
    seconds, moved = predict_seconds(plan, slow), plan.bytes
    assert seconds.load == moved["load"] / 2 and seconds.flush == moved["flush"] / 2
    assert seconds.peer == (moved["pull"] + moved["push"]) / 4 and seconds.accumulate == 0  # a flush adds
    assert seconds.contiguous == pytest.approx((moved["read"] + moved["write"] + moved["topology"]) / 2)
    assert seconds.total == pytest.approx(sum(seconds.to_dict().values()))
    assert predict_seconds(plan, replace(slow, staged=True)).accumulate == moved["flush"] / 2


def test_compute_counts_edges_and_parameters():
    topology = random_topology(3, 2, 3)
    plan = make_plan(topology, topology.input_order, shape(), STRATEGIES["full"])
    e, v, busy = 300, 60, int(np.count_nonzero(topology.num_dst))
    arithmetic, item = predict_seconds(plan, free(flops=2.0)), 4
    assert arithmetic.aggregate < 1e-20  # sums wait for memory
    products = (10 + 20) * 3 - 7 - 4  # the features get no gradient, and what is mapped is not computed again
    products += 10 + 20  # gradients of weights
    assert arithmetic.rowwise == pytest.approx(v * products)
    memory = predict_seconds(plan, free(memory_bandwidth=1.0))
    assert memory.aggregate == pytest.approx(e * (2 * FINDING + 3 * 4 * item))  # read; read and written
    rows = 5 + (5 + 7) + 3 * LOSS_SWEEPS  # stage 0 forward, and again for its gradients; the loss
    rows += 2 * 4  # what the aggregate gives, and its gradient
    rows += 1 + 3  # its own operations, forward and for its gradient
    rows += (8 + 9) * 3 - 3 - 2 + (8 + 9)  # products, and gradients of weights
    assert memory.rowwise == pytest.approx(rows * v * item)
    fresh = predict_seconds(plan, free(memory_bandwidth=1.0, largest_reused=1))
    assert fresh.rowwise == pytest.approx(FRESH * memory.rowwise) and fresh.aggregate == memory.aggregate
    cached = predict_seconds(
        plan, free(memory_bandwidth=1.0, cache=1 << 20)
    )  # once in every chunk, however large it is
    assert cached.aggregate == pytest.approx(e * 2 * FINDING + 3 * 4 * item * int(topology.num_sources.sum()))
    assert predict_seconds(plan, free(chunk_seconds=1.0)).dispatch == pytest.approx(
        (4 + 2) * busy
    )  # and exchanged rows
    calls = 2 + (2 + 6)  # stage 0 forward, and again for its gradients
    calls += 4 + 8  # the aggregate's own, forward and for its gradients
    assert predict_seconds(plan, free(call_seconds=1.0)).dispatch == pytest.approx(calls * busy)
    nobody = make_plan(topology, topology.input_order, shape(work=()), STRATEGIES["full"])
    assert predict_seconds(nobody, free(flops=2.0)).rowwise < 1e-20


def widest(plan, p):
    """Columns of a pass's widest rows of destinations."""
    return max(plan.passes.width[name] for name in (*p.inputs, *p.gradients, *p.written))


def test_functions_of_edges_run_again_in_backward():
    topology = random_topology(3, 2, 3)
    functions = shape(work=(StageWork(), StageWork(function=FUNCTION)), linear=False, reduce=None)
    plan = make_plan(topology, topology.input_order, functions, STRATEGIES["full"], choice=Choice(fuse=False))
    forward, backward = (p for p in plan.passes.train if p.layer == 0)
    once, again = FUNCTION[0], FUNCTION[0] + FUNCTION[1]
    edges, item, busy = 300, 4, int(np.count_nonzero(topology.num_dst))
    sources, vertices = int(topology.num_sources.sum()), 60
    for p, work, moved in ((forward, once, 2), (backward, again, 2 + 3)):  # z side by side; its gradient, and added
        memory = pass_seconds(plan, p, free(memory_bandwidth=1.0))
        assert memory.aggregate == pytest.approx(edges * (work.rows * item + FINDING * work.walks))
        own = LOSS_SWEEPS * 3 if p.loss else 0
        rows = vertices * (work.destinations + own) + sources * (work.sources + moved * 4) + edges * work.edges
        assert memory.rowwise == pytest.approx(rows * item)
        # in chunks where sources' rows or others take more than the allocator hands out again
        limit = int(np.median(topology.num_sources)) * 4 * item
        fresh, seconds = free(memory_bandwidth=1.0, largest_reused=limit), 0.0
        for i in range(2):
            num_dst, num_sources, num_edges = (
                count.reshape(2, 3)[i] for count in (topology.num_dst, topology.num_sources, topology.chunk_edges)
            )
            every = num_dst.sum() * (work.destinations + own) + num_sources.sum() * (work.sources + moved * 4)
            large = np.maximum(num_dst * widest(plan, p), num_sources * 4) * item > limit
            times = 1 + (FRESH - 1) * num_dst[large].sum() / num_dst.sum()
            seconds += times * (every + num_edges.sum() * work.edges) * item
        assert memory.rowwise < pass_seconds(plan, p, fresh).rowwise == pytest.approx(seconds)
        assert pass_seconds(plan, p, free(call_seconds=1.0)).dispatch == pytest.approx(work.calls * busy)
        cached = pass_seconds(plan, p, free(memory_bandwidth=1.0, cache=1 << 20))
        assert cached.aggregate == pytest.approx(edges * FINDING * work.walks + work.rows * item * sources)
        nothing = pass_seconds(plan, p, free(memory_bandwidth=1.0, cache=1))
        assert nothing.aggregate == pytest.approx(memory.aggregate, rel=0.05)
    two = replace(functions, layers=functions.layers * 2, stage_work=(StageWork(), *functions.stage_work[1:] * 2))
    kept = make_plan(topology, topology.input_order, two, STRATEGIES["full"], choice=Choice(save=True))
    [backward] = [p for p in kept.passes.train if p.layer == 0 and p.direction == "backward"]
    assert backward.exchange is None and backward.flush == "grad z0"  # what is kept has its sources' rows
    calls = pass_seconds(kept, backward, free(call_seconds=1.0))
    assert calls.dispatch == pytest.approx(FUNCTION[1].calls * busy)  # nothing runs again


def test_devices_work_at_the_same_time():
    topology = random_topology(5, 4, 2)
    plan = make_plan(topology, topology.input_order, shape(), STRATEGIES["full"])
    one = predict_seconds(plan, CPU)
    four = predict_seconds(plan, Hardware(**CPU.to_dict() | {"devices": 4}))
    many = predict_seconds(plan, Hardware(**CPU.to_dict() | {"devices": 9}))
    assert one.total / 4 <= four.total < one.total and many == four
    assert four.accumulate == pytest.approx(one.accumulate)  # one host adds for all
    overlapping = Choice(staging=2)
    beside = make_plan(topology, topology.input_order, shape(), STRATEGIES["full"], choice=overlapping)
    sums = predict_seconds(plan, CPU)
    least = max(sums.load + sums.peer + sums.contiguous, sums.aggregate + sums.rowwise + sums.dispatch)
    assert least <= predict_seconds(beside, CPU).total < sums.total
    assert Seconds().total == 0


@pytest.mark.parametrize("m, n", [(1, 1), (1, 9), (3, 5)])
def test_loads_are_counted_as_planned(m, n):
    for seed in range(10):
        topology = random_topology(seed, m, n, v=40, e=90)
        schedule = topology.input_order
        counter = LoadCounter(topology, schedule)
        paper = plan_transfers(topology, schedule, "paper")
        assert counter.paper_rows == paper.rows_loaded
        sets = topology.source_start, topology.sources, topology.partition_start
        assert counter.paper_rows == count_volume(*sets, schedule).v_ru
        assert counter.floor == len(np.unique(topology.sources))
        assert list(counter.smallest) == [device.capacity for device in paper.devices]
        for extra in (0, 1, 5):
            capacity = tuple(slots + extra for slots in counter.smallest)
            planned = plan_transfers(topology, schedule, "lookahead", capacity)
            assert counter.lookahead_rows(capacity) == planned.rows_loaded
        rows = [loaded for _, loaded in counter.curve()]
        assert rows == sorted(rows, reverse=True) and rows[-1] == counter.floor


@pytest.mark.long
@pytest.mark.parametrize("m, n", [(1, 1), (2, 4), (3, 9)])
def test_traffic_chart_of_any_topology(m, n):
    for seed in range(3):
        topology = random_topology(seed, m, n)
        texts = [x.text for x in ElementTree.fromstring(traffic_chart(topology, "t")).iter(f"{SVG}text")]
        assert f"lookahead, {m} x {n} chunks" in texts and "floor: every row read, once" in texts
    empty = build_topology(1, np.array([0, 3]), np.zeros(4, np.int64), np.empty(0, np.int64))
    ElementTree.fromstring(traffic_chart(empty, "no edges"))


def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path):
    (tmp_path / "profile").write_text("[" * 100_000)
    with pytest.raises(InputError, match="not valid JSON"):
        load_hardware(tmp_path / "profile")


@pytest.mark.parametrize("budget", ["smallest", "40KiB", None])
def test_a_plan_is_drawn_above_its_floor(budget, monkeypatch):
    """By the vertices and the grain of its own passes; what stays on the devices is no point."""
    drawn = []
    monkeypatch.setattr("hongtu.plan.report.traffic", lambda curves, title, plan: drawn.extend([curves, title, plan]))
    trainer = training.make_trainer(SIX[0], problems.awkward(), (2, 3), device_memory=budget)
    traffic_chart(trainer.artifact.topology, "rows", trainer.plan)
    curves, title, points = drawn
    assert all(rows >= min(row["floor"] for row in curves) > 0 for _, rows in points)
    assert bool(points) == (title == "rows") == (budget is not None)

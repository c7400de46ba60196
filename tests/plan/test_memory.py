"""Traffic and memory of two-layer models on eight vertices, added up by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hongtu.graph.topology import build_topology
from hongtu.plan.memory.buffers import Buffer
from hongtu.plan.memory.structure import Array
from hongtu.plan.passes.definition import FEATURES
from hongtu.plan.passes.strategy import Choice, get_strategy
from hongtu.plan.program.compile import compile_plan
from hongtu.plan.program.program import device_traffic, host_peaks
from hongtu.plan.search.build import make_plan
from tests import tiny
from tests.tiny import named

V, ITEM = tiny.V, 4
FULL, PAPER = "full", "paper"


def test_traffic_of_a_pass_by_hand():
    """Forward 0 of GCN on device 0: two chunks of 2 destinations with 3 edges and 3 sources each; 2 rows of 4 numbers
    loaded, 2 pulled; statistics are 3 numbers, ids 8 bytes. Backward 1: 2 rows of 3 numbers flushed, 2 pushed."""
    plan = tiny.plan(tiny.GCN, PAPER)
    program = compile_plan(plan)
    found = device_traffic(named(program, "forward 0"), 0)
    structure = 4 * 8 + 4 * 12 + 6 * 8 + 6 * 4 + 6 * 4 + 6 * 4  # ids, statistics, pointers, sources, slots, weights
    assert found.bytes == {
        "load": 2 * 16, "flush": 0, "pull": 2 * 16, "push": 0, "read": 4 * 16, "write": 4 * (16 + 12),
        "topology": structure + 4 * (2 + 2 + 2 + 2), "fetch": 0, "send": 0, "disk": 0,
    }  # fmt: skip
    assert found.rows == {"load": 2, "flush": 0, "pull": 2, "push": 0, "fetch": 0, "send": 0}
    found = device_traffic(named(program, "backward 1"), 1)
    structure = 4 * 8 + 4 * 12 + 6 * 8 + 5 * 4 + 5 * 4 + 5 * 4
    assert found.bytes == {
        "load": 0, "flush": 3 * 12, "pull": 0, "push": 2 * 12, "read": 4 * (12 + 8), "write": 4 * 12,
        "topology": structure + 4 * (3 + 2 + 2 + 2 + 3), "fetch": 0, "send": 0, "disk": 0,
    }  # fmt: skip
    total = plan.pass_traffic(plan.passes.train[1]).bytes
    assert total["load"] == (2 + 3) * 16 and total["pull"] == (2 + 2) * 16


def test_traffic_of_the_loss_and_of_set_up():
    plan = tiny.plan(tiny.GAT, FULL, Choice(resident=frozenset({FEATURES}), structure=True))
    assert plan.setup_traffic.bytes["read"] == V * 16
    per_device = [4 * 8 + 6 * 8 + edges * 8 + 4 * 8 + sources * (4 + 4 * 6) for edges, sources in ((6, 6), (5, 5))]
    assert plan.setup_traffic.bytes["topology"] == sum(per_device) == sum(plan.structure_bytes(i) for i in (0, 1))
    loss = tiny.plan(tiny.GCN, PAPER)
    (p,) = (p for p in loss.passes.train if p.loss)
    assert loss.device_traffic(p, 0).bytes["read"] == 4 * (12 + 8 + 1)  # z1, labels, bits of the loss


def test_device_memory_of_a_pass_by_hand():
    """Forward 0 of GCN: buffers for the largest chunk, plan arrays for the largest batch, a cache of 4 slots."""
    plan = tiny.plan(tiny.GCN, PAPER)
    p = plan.passes.train[1]
    chunk = 2 * 16 + 2 * 8 + 2 * 12 + 3 * 8 + 3 * 4 + 3 * 4 + 3 * 4 + 2 * 16  # z0, ids, ..., weights, aggregate
    assert plan.pass_arena(p, 0) == 100 + chunk + 4 * (2 + 2 + 2 + 2) + 4 * 16
    assert plan.pass_arena(p, 1) == 100 + chunk + 4 * (3 + 3 + 1 + 1) + 4 * 16
    assert plan.prices[0][p.name].peak(9) == plan.pass_arena(p, 0) + 5 * 16
    both = tiny.plan(tiny.GAT, PAPER)
    p = both.passes.train[3]  # backward 1 has rows and their gradients in two caches of as many slots
    names = both.buffers(p, 0)
    assert names["cache"] == names["gradient_cache"] and names["cache"].shape == (4, 3)
    twice = tiny.plan(tiny.GCN, PAPER, Choice(staging=2))
    buffers, beside = twice.buffers(twice.passes.train[1], 0), twice.host_staging(twice.passes.train[1], 0)
    assert {name: buffer.sets for name, buffer in buffers.items() if buffer.sets != 2} == {"aggregate": 1, "cache": 1}
    assert buffers["deliver z1"].shape == (2, 3) and "z0" not in beside and "load_rows" in beside
    back = twice.passes.train[3]
    assert {"flush_rows", "deliver grad z1"} <= set(twice.buffers(back, 0)) and {"flush_rows", "add grad z1"} <= set(
        twice.host_staging(back, 0)
    )


def test_tensors_count_from_their_pass_until_they_are_freed():
    """On the host: features 16 bytes a row; z0 and a0 16, z1 and a1 12, grad output 8, gradients as their tensors."""
    plan = tiny.plan(tiny.GCN, PAPER)
    program = compile_plan(plan)
    rows = [peak // V for peak in host_peaks(program.train, {FEATURES: 16 * V})]
    assert rows == [
        16 + 16,
        16 + 16 + 12 + 16,
        16 + 12 + 16 + 8 + 12,
        16 + 16 + 8 + 12 + 12,
        16 + 16 + 12 + 16,
        16 + 16 + 16,
    ]
    stays = tiny.plan(tiny.GCN, PAPER, Choice(resident=frozenset({"a0"})))
    order = [p.name for p in stays.passes.train]
    bare = tiny.plan(tiny.GCN, PAPER)
    for name in order:
        p, q = (next(p for p in plan.passes.train if p.name == name) for plan in (stays, bare))
        holds = name in ("forward 0", "forward 1", "backward 1", "backward 0")
        saved = 2 * 16 if name == "backward 0" else 0  # its staging
        assert stays.pass_arena(p, 0) - bare.pass_arena(q, 0) == 4 * 16 * holds - saved


def test_capacities_that_fill_a_budget():
    plan = tiny.plan(tiny.GCN, PAPER)
    p = plan.passes.train[1]
    at_least = plan.pass_arena(p, 0)
    assert plan.capacities(p, at_least) == (4, 4) and plan.capacities(p, 1) == (4, 4)
    assert plan.capacities(p, at_least + 2 * 16) == (6, 6) and plan.capacities(p, at_least + 2 * 16 - 1)[0] == 5
    assert plan.capacities(p, 1 << 20) == (V, V)
    layers = replace(plan, workspace={p.name: 16})
    assert layers.capacities(p, at_least + 2 * 16) == (5, 5)
    assert layers.device_bytes["device 0"] == max(plan.device_bytes["device 0"], at_least + 16)


def test_statistics_of_a_vertex_are_three_numbers():
    plain = tiny.network(*(replace(layer, uses_statistics=False) for layer in tiny.GCN.layers), constant_layers=1)
    with_and_without = (tiny.plan(shape, PAPER).host_bytes["pageable host"] for shape in (tiny.GCN, plain))
    assert next(with_and_without) - next(with_and_without) == V * 3 * ITEM


def test_what_stays_has_rows_of_the_partition_and_slots_for_those_of_peers():
    """Partitions of two and six vertices, each of which reads rows of the other."""
    source, destination = np.array(tiny.EDGES).T
    start = np.searchsorted(destination, np.arange(V + 1))
    chunks = build_topology(2, np.array([0, 1, 2, 5, 8]), start, source)
    choice = Choice(fuse=True, resident=frozenset({"z1", "grad z1"}))
    plan = make_plan(chunks, chunks.input_order, tiny.GCN, get_strategy(FULL), choice=choice)
    capacities = [device.capacity for device in plan.resident_plans[None].devices]
    assert [plan.resident_rows("z1", i) for i in (0, 1)] == capacities and capacities[0] > 2 and capacities[1] > 6
    assert plan.resident_bytes("z1", 1) == capacities[1] * 3 * ITEM


def test_bytes_of_buffers_and_arrays():
    assert Buffer((3, 4), "float", sets=2).nbytes(8) == 192 and Buffer((3,), "int32").nbytes(8) == 12
    assert (
        Buffer((3, 47), "float", 2, padded=True).nbytes(4) == 2 * 3 * 192 and Buffer((3, 47), "float").nbytes(4) == 564
    )
    assert Array("destinations", "float", 3).shape(5) == (5, 3) and Array("edges", "int32").shape(5) == (5,)
    plan = tiny.plan(tiny.GCN, PAPER, Choice(staging=2))
    assert plan.buffers(plan.passes.train[3], 1)["flush_rows"].shape == (3, 3)  # rows that a batch loads, columns of z1


def test_vertices_have_two_numbers_of_their_degrees_where_layers_agree_on_them():
    rows = {}
    for keys in ((None, None), ((True, False), (True, False)), ((True, False), (True, True))):
        layers = [replace(layer, factors=key) for layer, key in zip(tiny.GCN.layers, keys, strict=True)]
        plan = tiny.plan(tiny.network(*layers, constant_layers=1), PAPER)
        buffers = plan.buffers(plan.passes.train[0], 0)
        rows[keys] = plan._pageable, *(buffers[name].shape[1] for name in ("statistics", "factors") if name in buffers)
    (every, three), (fewer, two), (same, other) = rows.values()
    assert (three, two, other) == (3, 2, 3) and every == same == fewer + tiny.V * plan.shape.itemsize

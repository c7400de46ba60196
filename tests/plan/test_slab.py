"""Where planned buffers lie in a device's slab, added up by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hongtu.hardware import aligned
from hongtu.plan.memory.buffers import Buffer
from hongtu.plan.memory.slab import Price, stacked
from hongtu.plan.passes.definition import FEATURES
from hongtu.plan.passes.strategy import Choice
from hongtu.plan.program import moves
from tests import tiny
from tests.tiny import named

STAYS = frozenset({FEATURES, "z1", "grad z1"})


def plan(**choice):
    return tiny.plan(tiny.GCN, "full", Choice(staging=2, **choice))


def test_arrays_that_one_copy_brings_are_one_piece_for_each_set():
    buffers = {
        "ids": Buffer((3,), "int64", 2),
        "weights": Buffer((5,), "float", 2),
        "aggregate": Buffer((3, 4), "float"),
    }
    buffers["flush_rows"] = Buffer((2, 4), "float", 2)
    beside = {name: buffers[name] for name in ("ids", "weights", "flush_rows")}
    assert stacked(buffers, beside, 2, 4) == 2 * aligned(3 * 8 + 5 * 4) + 256 + 256
    price = Price(100, 256, (4, 8), slab=True, at={})
    assert price.peak(65) == 100 + 256 + 512 + 768
    assert price.slots(100 + 256 + 2 * 255 + 12 * 7) == 7 and price._replace(rows=()).slots(1 << 20) is None


def test_tensors_that_are_there_together_lie_apart_and_below_what_passes_stack():
    for choice in ({"resident": STAYS}, {"resident": STAYS, "structure": True}, {"resident": STAYS, "fuse": True}):
        made = plan(**choice)
        for i, slab in enumerate(made.slabs):
            there: dict[str, tuple[int, int]] = {}
            highest = []
            for p in (*made.program.train, *made.program.evaluate):
                for x in p.before:
                    if isinstance(x, moves.Place) and x.where == "device":
                        row = Buffer((x.rows[i], *x.shape), x.dtype, padded=x.padded).nbytes(4)
                        there[x.name] = x.at[i], x.at[i] + row
                spans = sorted(there.values())
                assert all(a[1] <= b[0] for a, b in pairwise(spans)) and not [s for s, _ in spans if s % 256]
                top = aligned(spans[-1][1]) if spans else 0
                highest.append(top + stacked(p.buffers[i], p.staging[i], 2, 4))
                for x in p.frees:
                    there.pop(x.name, None)
            assert slab == max(highest) and not there


def test_the_same_tensor_has_the_same_place_whatever_was_there_before():
    made = plan(resident=STAYS)
    (place,) = (x for x in named(made.program, "forward 0").before if isinstance(x, moves.Place) and x.name == "z1")
    assert place.at == (0, 0)


def test_a_slab_is_there_beside_whatever_layers_take_in_any_pass():
    bare = plan()
    lowest = min(bare.passes.train, key=lambda p: bare.pass_arena(p, 0))
    taking = replace(bare, workspace={lowest.name: 1000})
    assert taking.device_bytes["device 0"] == 100 + bare.slabs[0] + 1000 == bare.device_bytes["device 0"] + 1000
    assert taking.arena_bytes["device 0"] == 100 + bare.slabs[0]


def test_caches_fill_what_a_slab_leaves_of_a_budget():
    made = plan()
    p = next(p for p in made.passes.train if p.exchange)
    for more in range(0, 1200, 100):
        budget = made.pass_arena(p, 0) + more
        slots = made.capacities(p, budget)
        for i in (0, 1):
            fewest = made.capacity(p, i)
            larger = made.pass_arena(p, i) - aligned(fewest * 16) + aligned(slots[i] * 16)
            assert larger <= max(budget, made.pass_arena(p, i)) and slots[i] >= fewest
    assert made.capacities(p, 1 << 20) == (tiny.V, tiny.V)

"""The new form says of a program what today's says: bytes and peaks, and what it may not leave out."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from hongtu.metrics import Traffic
from hongtu.plan.program.program import device_traffic, host_peaks
from tests.ledger.folds import LedgerError, Values, link_of, peaks, slab, traffic
from tests.ledger.form import HOST, All, Alloc, Call, Chunk, Column, Copy, Free, Op, Ref, Rows, Space
from tests.ledger.lower import given
from tests.ledger.plans import PLANS, lowered, planned

LEFT_OUT, SHORT = 8, 4  # of every plan


def start(name):
    return {x.ref.key: x for x in given(planned(name))}


def verdict(name, lists):
    """All that the folds say of lists, one for each pass."""
    try:
        values, there = Values(start(name)), start(name)
        for ops in lists:
            values.check(ops)
        moved = [{i: (of.bytes, of.rows) for i, of in traffic(ops, there).items()} for ops in lists]
        left, there = sorted(there), start(name)
        return moved, left, [dict(peaks(ops, there)) for ops in lists]
    except LedgerError as error:
        return str(error)


def test_few_kinds():
    assert len(get_args(Op)) + len(get_args(Rows)) + len((Ref, Space)) <= 12


@pytest.mark.parametrize("name", PLANS)
def test_bytes_of_every_link(name):
    plan, there = planned(name), start(name)
    whole = Traffic()
    for one in lowered(name):
        found = traffic(one.ops, there)
        for i in range(plan.topology.partitions):
            expected = device_traffic(one.p, i)
            assert (found[i].bytes, found[i].rows) == (expected.bytes, expected.rows), one.p.name
            whole += found[i] if one.p in plan.program.train else Traffic()
    assert whole.bytes == plan.bytes and whole.rows == plan.rows


@pytest.mark.parametrize("name", PLANS)
def test_peaks_of_every_memory(name):
    plan, there = planned(name), start(name)
    program = plan.program
    found = [peaks(one.ops, there) for one in lowered(name)]
    setup, train = len(program.setup), len(program.train)
    both = ((program.train, found[setup : setup + train]), (program.evaluate, found[setup + train :]))
    for group, own in both:
        assert [of["pinned host"] for of in own] == list(host_peaks((*program.setup, *group), plan._lasting(group)))[
            setup:
        ]
    lists = [one.ops for one in lowered(name)]
    groups = lists[setup : setup + train], lists[setup + train :]
    arena = plan.arena_bytes
    assert plan.slabs in ((), tuple(slab(groups, i) for i in range(plan.topology.partitions)))
    assert arena["pinned host"] == max(of["pinned host"] for of in both[0][1])
    for i in range(plan.topology.partitions):
        device, model = f"device {i}", plan.shape.model_bytes
        arenas = [plan.prices[i]["setup"].peak(0), *(plan.pass_arena(p, i) for p in plan.passes.setup)]
        assert [model + of[device] for of in found[:setup]] == arenas
        stays = start(name)
        for ops in lists[:setup]:
            peaks(ops, stays)
        always = model + sum(x.nbytes for x in stays.values() if x.ref.space == Space("device", i))
        if plan.slabs:
            assert arena[device] == always + slab(groups, i)
        else:
            assert arena[device] == model + max(of[device] for of in both[0][1])
            every = (*plan.passes.train, *plan.passes.evaluate)
            assert [model + of[device] for of in found[setup:]] == [plan.pass_arena(p, i) for p in every]
    if plan.spilled:
        refs = [ref for ops in lists for x in ops if isinstance(x, Copy) for ref in (x.src, x.dst)]
        assert max(ref.rows.end for ref in refs if ref.tensor == "file") <= plan.disk.nbytes["disk"]


def is_found_by_numbers_alone(x):
    """What adds to parameters, to moments or to sums on the host, and zeros where there are values: the interpreter
    notices it."""
    if isinstance(x, Call):
        return x.kernel in ("zero", "gather_moments") or not x.writes
    return isinstance(x, Copy) and x.src.space.kind == x.dst.space.kind == "window"


def without(lists, a, b, instead=()):
    return [[*ops[:b], *instead, *ops[b + 1 :]] if k == a else ops for k, ops in enumerate(lists)]


@pytest.mark.parametrize("name", PLANS)
def test_what_is_left_out_is_found(name):
    lists = [list(one.ops) for one in lowered(name)]
    complete, rng = verdict(name, lists), np.random.default_rng(len(name))
    assert not isinstance(complete, str), complete
    every = [(a, b) for a, ops in enumerate(lists) for b, x in enumerate(ops) if not is_found_by_numbers_alone(x)]
    every = [
        (a, b) for a, b in every if not (isinstance(lists[a][b], Free) and not isinstance(lists[a][b].ref.rows, All))
    ]
    for a, b in rng.permutation(every)[:LEFT_OUT]:
        assert verdict(name, without(lists, a, b)) != complete, lists[a][b]


def one_row_less(ref):
    if isinstance(ref.rows, Chunk):
        return replace(ref, rows=Chunk(ref.rows.first, ref.rows.end - 1))
    return replace(ref, rows=Column(ref.rows.index[:-1], ref.rows.at)) if isinstance(ref.rows, Column) else ref


@pytest.mark.parametrize("name", PLANS)
def test_a_row_less_is_found(name):
    lists = [list(one.ops) for one in lowered(name)]
    complete, rng = verdict(name, lists), np.random.default_rng(len(name))
    counted = [(a, b) for a, ops in enumerate(lists) for b, x in enumerate(ops) if isinstance(x, Copy) and link_of(x)]
    for a, b in rng.permutation(counted)[:SHORT]:
        x = lists[a][b]
        mode = x.mode if isinstance(x.mode, str) else x.mode[:-1]
        less = replace(x, src=one_row_less(x.src), dst=one_row_less(x.dst), mode=mode)
        assert verdict(name, without(lists, a, b, [less])) != complete


def test_memory_that_is_made_twice_or_never():
    ref, zero = Ref("z1", HOST), Call("zero", (), (Ref("z1", HOST, Chunk(0, 3)),), HOST)
    for ops in ([Alloc(ref), Alloc(ref)], [Free(ref)], [zero], [Alloc(ref, 2, 4, 4), zero]):
        with pytest.raises(LedgerError):
            Values({}).check(ops)

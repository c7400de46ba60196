"""Deliberate faults in programs, drawn at random: the checker finds each before anything runs."""

from __future__ import annotations

import functools
from dataclasses import fields, replace

import numpy as np
import pytest

from hongtu.hardware import CPU, H200
from hongtu.plan.cache.transfer import DeviceTransfers
from hongtu.plan.memory.host import Kept
from hongtu.plan.passes.strategy import Strategy
from hongtu.plan.program import moves
from hongtu.plan.program.moves import Call, Copy
from hongtu.plan.program.on_disk import Laid
from hongtu.plan.program.ref import Ref, Stores
from hongtu.plan.program.rows import Picked, Picks, SlotsOfSources
from tests.checker.check import check_program
from tests.checker.held import ProgramError
from tests.plan.test_listing import program_of
from tests.staged import everything, on_disk

FAULTS = 200
SMALL = {"strategy": Strategy(resident=False, group=False), "memory": 30_000}
PROGRAMS = (
    {"model": "gcn"} | SMALL, {"model": "sage", "strategy": "paper"}, {"model": "gat", "hardware": H200} | SMALL,
    {"model": "gin", "hardware": H200},
    {"model": "gcn", "kept": 1} | SMALL, {"model": "sage", "hardware": H200, "kept": 1} | SMALL,
)  # fmt: skip


@functools.cache
def program(number):
    """Of a plan that has all but some of every partition's chunks on a disk, where it says ``kept``."""
    options = {"hardware": CPU} | PROGRAMS[number]
    kept = options.pop("kept", None)
    if kept is None:
        return program_of(**options)
    with on_disk(fit=functools.partial(everything, kept=kept)):
        return program_of(**options, host_memory=1, spill=True)


def without(body, k):
    return (*body[:k], *body[k + 1 :])


def changed_body(p, change):
    """The pass with another body of ``compute``."""
    body = tuple(replace(x, body=change(x.body)) if isinstance(x, moves.Compute) else x for x in p.body)
    return replace(p, body=body)


def changed(x, **operands):
    """A copy with other operands of the side on which rows may be on the disk."""
    side = "src" if x.src.kept is not None else "dst"
    return replace(x, **{side: replace(getattr(x, side), **operands)})


def drop_move(p, rng):
    """An instruction on rows is left out. What waits are there for: tests/ledger."""
    found = [k for k, x in enumerate(p.body) if isinstance(x, Copy | Call | moves.Ship) and x.verb != "spill"]
    if found:
        k = int(rng.choice(found))
        return replace(p, body=without(p.body, k)), p.body[k].verb


def drop_placed(p, rng):
    found = [k for k, x in enumerate(p.before) if isinstance(x, moves.Place)]
    if found:
        k = int(rng.choice(found))
        return replace(p, before=without(p.before, k)), p.before[k].name


def drop_free(p, rng):
    """The engine itself frees the gradient of the features, if a pass does not: then it is no fault."""
    found = [k for k, x in enumerate(p.frees) if x.name != "grad features"]
    if found:
        k = int(rng.choice(found))
        return replace(p, frees=without(p.frees, k)), p.frees[k].name


def drop_register(p, rng):
    """A register is not dropped, or dropped where it is still read, or read where it was never made."""
    (compute,) = (x for x in p.body if isinstance(x, moves.Compute)) if p.body else (None,)
    found = [k for k, x in enumerate(compute.body) if x.drops or x.kernel in ("view", "stage")]
    if found:
        k = int(rng.choice(found))
        x = compute.body[k]
        if x.drops and rng.random() < 0.7:
            left = str(rng.choice(x.drops))
            kept = tuple(name for name in x.drops if name != left)
            return changed_body(
                p, lambda body: (*body[:k], replace(x, drops=kept), *body[k + 1 :])
            ), f"{x.kernel} drops"
        if x.kernel not in ("view", "stage") or not x.gives:
            return None
        return changed_body(p, lambda body: without(body, k)), x.kernel


def inverted(stores):
    return Stores(not stores.where if isinstance(stores.where, bool) else ~stores.where)


def swap_stores(p, rng):
    """Store for add, or add for store."""
    found = [k for k, x in enumerate(p.body) if x.verb in ("write", "flush")]
    if found:
        k = int(rng.choice(found))
        stores = p.body[k].dst.access
        if not isinstance(stores, tuple):
            other = inverted(stores)
        elif any(np.any(part.where) for part in stores):
            other = tuple(map(inverted, stores))
        else:
            return None
        into = replace(p.body[k].dst, access=other)
        body = [replace(x, dst=into) if at == k else x for at, x in enumerate(p.body)]
        return replace(p, body=tuple(body)), p.body[k].verb


def swap_stores_inside(p, rng):
    """The same where a chunk's rows are written, to be delivered or to stay."""
    (compute,) = (x for x in p.body if isinstance(x, moves.Compute)) if p.body else (None,)
    found = [k for k, x in enumerate(compute.body) if x.kernel == "write"]
    if found:
        k = int(rng.choice(found))
        x = compute.body[k]
        other = replace(x, at=replace(x.at, access=inverted(x.at.access)))
        return changed_body(p, lambda body: (*body[:k], other, *body[k + 1 :])), f"{x.kernel} {x.at.where}"


def replace_devices(p, old, new):
    """The pass with other transfers wherever it had these."""

    def other(x):
        values = {}
        for field in fields(x):
            value = getattr(x, field.name)
            if isinstance(value, Picked | Ref):
                values[field.name] = other(value)
            elif isinstance(value, Picks | SlotsOfSources) and value.devices[0] is old[0]:
                values[field.name] = replace(value, devices=new)
        return replace(x, **values)

    return replace(p, body=tuple(other(x) for x in p.body))


def wrong_slots(p, rng):
    """Two slots of a chunk's sources, of loads or of pulls, swapped; or a pull from another row."""
    rows = [ref.rows for x in p.body for ref in vars(x).values() if isinstance(ref, Ref)]
    found = [v.picks if isinstance(v, Picked) else v for v in rows if isinstance(v, Picked | SlotsOfSources)]
    if not found:
        return None
    devices = found[0].devices
    i = int(rng.integers(len(devices)))
    device: DeviceTransfers = devices[i]
    column = str(rng.choice(["sources", "loads.slot", "pulls.slot", "pulls.peer_slot"]))
    if column == "sources" and not any(isinstance(v, SlotsOfSources) for v in found):
        return None  # they stay on the device, filled by another pass
    table = None if column == "sources" else getattr(device, column.split(".")[0])
    values = (device.slot_of_source if table is None else getattr(table, column.split(".")[1])).copy()
    if len(np.unique(values)) < 2:
        return None
    a = int(rng.integers(len(values)))
    b = int(rng.choice(np.flatnonzero(values != values[a])))
    values[[a, b]] = values[[b, a]]
    if table is None:
        device = replace(device, slot_of_source=values)
    else:
        room, name = column.split(".")
        device = replace(device, **{room: replace(table, **{name: values})})
    return replace_devices(p, devices, tuple(device if k == i else d for k, d in enumerate(devices))), column


def wrong_chunk(p, rng):
    """A batch runs another batch's chunk once more."""
    if p.schedule.shape[1] < 2:
        return None
    schedule, i = p.schedule.copy(), int(rng.integers(len(p.schedule)))
    a, b = rng.choice(schedule.shape[1], 2, replace=False)
    busy = p.view.num_dst[i * p.view.chunks + schedule[i, [a, b]]]
    if not busy.all():
        return None
    schedule[i, a] = schedule[i, b]
    return replace(p, schedule=schedule), f"device {i}, batch {a}"


def drop_spilled(p, rng):
    """What goes to the disk, or comes from it, is left out."""
    side = str(rng.choice(["recalls", "body"]))
    body = getattr(p, side)
    found = [k for k, x in enumerate(body) if x.verb in ("recall", "spill") and _is_used(x)]
    if found:
        k = int(rng.choice(found))
        return replace(p, **{side: without(body, k)}), body[k].verb


def fewer_spilled(p, rng):
    """Of rows that a later pass loads from the disk, those of some chunk do not go there."""
    found = [
        (x, k, i)
        for x in p.body
        if x.verb == "spill" and isinstance(x.dst.rows, Laid)
        for k, region in enumerate(x.dst.rows.takers)
        for i, buckets in enumerate(region.buckets)
        if len(buckets)
    ]
    if found:
        x, k, i = found[int(rng.integers(len(found)))]
        region = x.dst.rows.takers[k]
        buckets = region.buckets[i]
        begins = int(buckets.chunk_start[np.flatnonzero(buckets.count.sum(0))[0] + 1])
        fewer = tuple(replace(b, begins=begins) if b is buckets else b for b in region.buckets)
        takers = tuple(replace(region, buckets=fewer) if r is region else r for r in x.dst.rows.takers)
        other = changed_spill(x, replace(x.dst.rows, takers=takers))
        return replace(p, body=tuple(other if y is x else y for y in p.body)), x.dst.tensor


def changed_spill(x, rows):
    return replace(x, dst=replace(x.dst, rows=rows))


def elsewhere_spilled(p, rng):
    """Rows go to another place of the disk than that where they are read."""
    found = [x for x in p.body if x.verb == "spill" and isinstance(x.dst.rows, Laid) and x.dst.rows.own is not None]
    if found:
        x = found[int(rng.integers(len(found)))]
        other = changed_spill(x, replace(x.dst.rows, own=x.dst.rows.own + 1))
        return replace(p, body=tuple(other if y is x else y for y in p.body)), x.dst.tensor


def _is_used(x):
    """Whether another instruction needs what it moves."""
    laid = x.dst.rows
    return not isinstance(laid, Laid) or laid.own is not None or bool(laid.takers)


def other_memory(p, rng):
    """Rows that are on the disk are taken for rows in memory, or the other way round."""
    kept = {k: x.src.kept or x.dst.kept for k, x in enumerate(p.body) if x.verb in ("read", "write")}
    found = [k for k in kept if kept[k] is not None]
    if found:
        k = int(rng.choice(found))
        start = kept[k].start
        kept = None if rng.random() < 0.5 else Kept(start, start)
        body = [changed(x, kept=kept) if at == k else x for at, x in enumerate(p.body)]
        return replace(p, body=tuple(body)), f"{p.body[k].verb}, {kept}"


def not_copied(p, rng):
    """A device that has memory of its own, or wants some of a chunk's rows, is to work on what came from the disk."""
    reads = [x for x in p.body if x.verb == "read" and x.src.kept is not None and not x.in_place]
    if reads:
        read = reads[int(rng.integers(len(reads)))]
        body = tuple(replace(x, in_place=True) if x is read else x for x in p.body)
        return replace(p, body=body), read.dst.tensor


def other_rows(p, rng):
    """A chunk's rows are written as if they were all of its vertices', or only some."""
    (compute,) = (x for x in p.body if isinstance(x, moves.Compute)) if p.body else (None,)
    found = [k for k, x in enumerate(compute.body) if x.kernel == "write"]
    if found:
        k = int(rng.choice(found))
        x = compute.body[k]
        other = replace(x, takes=x.takes[:1] if len(x.takes) > 1 else (*x.takes, "row_in_chunk"))
        return changed_body(p, lambda body: (*body[:k], other, *body[k + 1 :])), x.at.where


KINDS = (
    drop_move, drop_move, drop_placed, drop_free, drop_register, swap_stores, swap_stores_inside, wrong_slots,
    wrong_slots, wrong_chunk, drop_spilled, drop_spilled, other_memory, not_copied,
    other_rows,
)  # fmt: skip
ON_DISK = fewer_spilled, elsewhere_spilled


def draw(seed, kinds=KINDS):
    """(what was done, the faulty program)."""
    rng = np.random.default_rng(seed)
    while True:
        number, kind = int(rng.integers(len(PROGRAMS))), kinds[int(rng.integers(len(kinds)))]
        whole = program(number)
        passes = list(whole.train)
        k = int(rng.integers(len(passes)))
        found = kind(passes[k], rng)
        if found is not None:
            passes[k], what = found
            text = f"{PROGRAMS[number]['model']}, pass '{passes[k].name}': {kind.__name__}, {what}"
            return text, replace(whole, train=tuple(passes))


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_programs_are_sound(number):
    check_program(program(number))


@pytest.mark.parametrize("kinds", [KINDS, ON_DISK], ids=["any", "on disk"])
@pytest.mark.parametrize("block", range(10))
def test_faults_are_found(block, kinds):
    through = []
    for seed in range(block * FAULTS // 10, (block + 1) * FAULTS // 10):
        what, faulty = draw(seed, kinds)
        try:
            check_program(faulty)
        except ProgramError:
            continue
        through.append(f"seed {seed}: {what}")
    assert not through, "\n".join(through)


def test_an_error_names_the_place():
    whole = program(0)
    p = whole.train[1]
    (k,) = (k for k, x in enumerate(p.body) if isinstance(x, Copy) and isinstance(x.src.rows, SlotsOfSources))
    faulty = replace(whole, train=(whole.train[0], replace(p, body=without(p.body, k)), *whole.train[2:]))
    with pytest.raises(ProgramError, match=f"pass '{p.name}', batch {p.order[0]}, compute: .*slot"):
        check_program(faulty)

"""From an execution plan to its program: what every saving, residency and first writer means for each instruction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from hongtu.plan.memory.buffers import Buffer
from hongtu.plan.memory.planned import PlannedMemory
from hongtu.plan.memory.structure import Array, device_entries
from hongtu.plan.passes.definition import FEATURES, OUTPUT, Pass, gradient
from hongtu.plan.program import copies, moves
from hongtu.plan.program.chunk_body import chunk_body, sort_edges
from hongtu.plan.program.moves import Copy, Instruction, call
from hongtu.plan.program.on_disk import Laid
from hongtu.plan.program.program import PassProgram, Program
from hongtu.plan.program.ref import Ref, Stores, on_host, own, stays_at, stores, where
from hongtu.plan.program.rows import DESTINATIONS, EDGE_FRONT, FRONT, PartOfChunk
from hongtu.plan.program.waits import with_waits


def compile_plan(plan: PlannedMemory) -> Program:
    """The program of a plan whose transfers are planned."""
    setup = [*_first_passes(plan), *(compile_pass(plan, p) for p in plan.passes.setup)]
    if plan.has_memory(FEATURES) and (FEATURES in plan.resident or FEATURES not in plan.passes.constant):
        setup[-1] = replace(setup[-1], frees=(*setup[-1].frees, moves.Free(name=FEATURES, where="host")))
    train = tuple(compile_pass(plan, p) for p in plan.passes.train)
    return Program(
        setup=tuple(setup),
        train=train,
        evaluate=tuple(compile_pass(plan, p) for p in plan.passes.evaluate),
        slabs=plan.slabs,
        eager=_eager(plan, train),
    )


def _eager(plan: PlannedMemory, train: tuple[PassProgram, ...]) -> str:
    """Why training passes are not captured; "" where they are."""
    if not plan.strategy.capture:
        return "the strategy captures nothing"
    if not plan.slabs:
        return "plan.slabs is empty: planned buffers have no fixed addresses"
    return next((f"{p.name}: {p.needs_host} needs the host" for p in train if p.needs_host), "")


def _first_passes(plan: PlannedMemory) -> Iterator[PassProgram]:
    """What goes to the devices to stay there: the structure of every view, the features."""
    others = {plan.structure_view(p) for p, *_ in plan.structure.values()} - {None}
    for view in (None, *sorted(others)):
        yield _first_pass(plan, view)


def _first_pass(plan: PlannedMemory, view: int | None) -> PassProgram:
    before, recalled, body = list[Instruction](), list[Instruction](), list[Instruction]()
    for stays, (p, source, array) in plan.structure.items():
        if plan.structure_view(p) == view:
            there = stays_at(plan, p, stays, array)
            before.append(_place_structure(there, array))
            body.append(copies.bring(copies.array_of(plan, p, source, array), there))
    for p in plan.edge_orders.values():
        if plan.structure_view(p) == view:
            before += [_place_structure(stays_at(plan, p, *stays), stays[1]) for stays in plan.edge_order(p).values()]
            body.append(moves.Compute(body=sort_edges(plan, p), graph=False, saves=False))
    if FEATURES in plan.resident and view is None:
        start = tuple(begins["destinations"] for begins in plan.spans_of(None))
        before.append(_place(plan, FEATURES, None, zero=False))
        into = Ref(tensor=FEATURES, rows=PartOfChunk("destinations", start=start), access=Stores(True))
        body.append(Copy(link="read", dst=into, src=on_host(plan, FEATURES, DESTINATIONS)))
    staging: tuple[dict[str, Buffer], ...] = tuple({} for _ in plan.devices)
    if view is None and (takers := plan.disk.takers.get(("", FEATURES))):
        recalled.append(copies.recall(plan, None, FEATURES))
        body.append(copies.spill(plan, FEATURES, Laid(None, None, tuple(takers))))
        columns, dtype = plan.passes.width[FEATURES], plan.host_dtype(FEATURES)
        most = (entries.most["destinations"] for entries in device_entries(plan.topology))
        staging = tuple({f"disk {FEATURES}": Buffer((rows, columns), dtype)} for rows in most)
    schedule = plan.schedules.get(view, plan.topology.input_order)
    name = "setup" if view is None else f"setup of {view} hops"
    return PassProgram(
        name=name, view=plan.views[view], schedule=schedule, order=range(schedule.shape[1] if body else 0), sets=1,
        buffers=tuple({} for _ in plan.devices), staging=staging, width=plan.passes.width, itemsize=plan.shape.itemsize,
        before=tuple(before), recalls=tuple(recalled), body=tuple(body), after=(), frees=(),
    )  # fmt: skip


def _place_structure(there: Ref, array: Array) -> moves.Place:
    assert isinstance(there.rows, PartOfChunk)
    rows = tuple(int(ends[-1]) for ends in there.rows.start)
    return moves.Place(name=there.tensor, where="device", rows=rows, shape=array.shape(0)[1:], dtype=array.dtype)


def _place(plan: PlannedMemory, name: str, p: Pass | None, *, zero: bool | np.ndarray) -> moves.Place:
    """A tensor that a pass makes, or set-up."""
    shape = (plan.passes.width[name],)
    if where(plan, name) == "host":
        held, kept, dtype = plan.in_memory(name, p), plan.kept.get(name), plan.host_dtype(name)
        return moves.Place(name=name, where="host", rows=(held,), shape=shape, dtype=dtype, zero=zero, kept=kept)
    rows, at = tuple(plan.resident_rows(name, i) for i in plan.devices), () if p is None else plan.place_of(p, name)
    return moves.Place(name=name, where="device", rows=rows, shape=shape, zero=zero, at=at, padded=plan.apart)


def compile_pass(plan: PlannedMemory, p: Pass) -> PassProgram:
    """What one pass runs; its transfers may only be counted."""
    schedule = np.asarray(plan.schedule(p))
    order = range(schedule.shape[1])
    recalled, spilled = tuple(copies.recalls(plan, p)), tuple(copies.spills(plan, p))
    sets, keeps = max(plan.choice.staging, 1), plan.keeps_scripts(p)
    ahead = plan.disk_sets(p) - 1 if recalled or spilled else 0
    body, staged = tuple(_body(plan, p, spilled)), plan.choice.staging > 0
    recalled, body = with_waits(recalled, body, len(plan.devices), sets, ahead, staged=staged, keeps=keeps)
    return PassProgram(
        name=p.name,
        view=plan.view(p),
        schedule=schedule,
        order=order[::-1] if p.direction == "backward" else order,
        sets=sets,
        buffers=tuple(plan.buffers(p, i) for i in plan.devices),
        staging=tuple(plan.host_staging(p, i) for i in plan.devices),
        width=plan.passes.width,
        itemsize=plan.shape.itemsize,
        keeps=keeps,
        before=tuple(_before(plan, p)),
        recalls=recalled,
        ahead=ahead,
        body=body,
        after=tuple(_after(plan, p)),
        frees=tuple(moves.Free(name=n, where=where(plan, n)) for n in p.frees if plan.has_memory(n)),
    )


def _before(plan: PlannedMemory, p: Pass) -> Iterator[Instruction]:
    pruned = plan.view(p).active is not None
    for name in p.creates:
        if where(plan, name) != "chunk" and plan.has_memory(name):
            writers = plan.writers.get(name)
            edges = p.edge_loss and name == gradient(OUTPUT)
            zero = edges or p.leaves_out(name, pruned=pruned)  # rows without a writer are zero
            yield _place(plan, name, p, zero=zero if writers is None else writers.unwritten)
    for crossing in plan.crossings.fetched(p):
        yield moves.Cross(tensor=p.exchange, crossing=crossing, link="fetch", dtype=plan.host_dtype(p.exchange))
    if p.moments is not None and p.direction == "forward":
        yield call("begin_moments", stage=p.stage, columns=plan.passes.width[p.moments])


def _after(plan: PlannedMemory, p: Pass) -> Iterator[Instruction]:
    if p.moments is not None and p.direction == "forward":
        yield call("end_moments", stage=p.stage)
    if p.layer is not None and plan.shape.layers[p.layer].norm and p.direction != "forward":
        yield call("sum_statistics", layer=p.layer)
    for crossing in plan.crossings.sent_back(p):
        yield moves.Cross(tensor=p.flush, crossing=crossing, link="send", dtype=plan.host_dtype(p.flush))
    if p.edge_loss:
        count = plan.shape.gathered[1]  # rows of other ranks
        others: dict[str, Any] = {"others": count} if count else {}
        yield call("loss_over_edges", output=OUTPUT, gradient=gradient(OUTPUT), **others)


def _body(plan: PlannedMemory, p: Pass, spilled: tuple[Instruction, ...]) -> Iterator[Instruction]:
    """One batch: bring, compute, deliver; with signals where device and host have memories of their own. The last batch
    of the set was as many before this one as there are sets; slots that this one fills were retired by then, for the
    plan keeps every row that much longer."""
    staged, exchanged = plan.choice.staging > 0, copies.exchange(plan, p)
    brought = (*copies.bring_neighbours(exchanged), *copies.bring_chunk(plan, p))
    yield from copies.packed(plan, p, brought) if staged else brought
    if staged:
        yield moves.Signal(stream="load", event="brought")
    yield from (x for x in exchanged if x.verb == "zero_rows")
    saves = p.saves and p.direction == "forward"
    yield moves.Compute(body=chunk_body(plan, p), graph=p.saves or p.direction != "forward", saves=saves)
    yield from (x for x in exchanged if x.verb == "push")
    for name in p.written:
        if where(plan, name) == "host":
            front = EDGE_FRONT if name in plan.passes.of_edges else FRONT
            there = own(plan, p, name, stores(plan, p, name))
            yield Copy(link="write", dst=there, src=Ref(tensor=name, rows=front))
    yield from (x for x in exchanged if x.verb == "flush")
    yield from copies.posts(plan, p)
    if spilled:
        yield from spilled
        yield moves.Signal(stream="disk", event="spilled")
    if staged:
        yield moves.Signal(stream="flush", event="sent")
        yield moves.Signal(stream="host", event="added")

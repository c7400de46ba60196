"""From an execution plan to its program: what every saving, residency and first writer means for each instruction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import gcd

import numpy as np

from hongtu.graph.sparse_rows import PARTS
from hongtu.plan.memory.buffers import Buffer
from hongtu.plan.memory.disk import is_straight
from hongtu.plan.memory.planned import PlannedMemory
from hongtu.plan.memory.structure import FLOAT, Array
from hongtu.plan.passes.definition import FEATURES, OUTPUT, Pass, gradient
from hongtu.plan.program import moves, spilling, waiting
from hongtu.plan.program.chunk_body import chunk_body
from hongtu.plan.program.instruction import Contended, Given, Instruction
from hongtu.plan.program.operands import (
    STAYS,
    Picked,
    flushed,
    gradient_cache,
    stores,
    transfers_of,
    value_cache,
    where,
)
from hongtu.plan.program.origins import Column, HostRows, OfChunk, Origin, SlotsOfSources, SparsePart
from hongtu.plan.program.posting import posts
from hongtu.plan.program.program import PassProgram, Program


def compile_plan(plan: PlannedMemory) -> Program:
    """The program of a plan whose transfers are planned."""
    setup = [compile_pass(plan, p) for p in plan.passes.setup]
    first = _first_pass(plan)
    if plan.has_memory(FEATURES) and (FEATURES in plan.resident or FEATURES not in plan.passes.constant):
        done = moves.Free(name=FEATURES, where="host")
        setup = [*setup[:-1], replace(setup[-1], frees=(*setup[-1].frees, done))] if setup else []
        if not setup:
            first = replace(first, frees=(done,))
    train = tuple(compile_pass(plan, p) for p in plan.passes.train)
    return Program(
        setup=(first, *setup),
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
        return "the plan has no slab: planned buffers have no places of their own"
    return next((f"{p.name}: {p.needs_host} needs the host" for p in train if p.needs_host), "")


def _first_pass(plan: PlannedMemory) -> PassProgram:
    """What goes to the devices to stay there: the chunks' structure, the features."""
    before, recalls, body = list[Instruction](), list[Instruction](), list[Instruction]()
    devices = range(plan.topology.partitions)
    if plan.choice.structure:
        for stays, (p, source, array) in plan.structure.items():
            start = tuple(plan.structure_spans[i][array.over] for i in devices)
            rows = tuple(int(ends[-1]) for ends in start)
            buffer = STAYS.format(stays)
            before.append(
                moves.Place(name=buffer, where="device", rows=rows, shape=array.shape(0)[1:], dtype=array.dtype)
            )
            body.append(moves.Fill(name=source, origin=_origin(plan, p, source, array), buffer=buffer, start=start))
    if FEATURES in plan.resident:
        starts = plan.topology.partition_start
        start = tuple(
            plan.topology.chunk_start[i * plan.topology.chunks : (i + 1) * plan.topology.chunks + 1] - starts[i]
            for i in devices
        )
        before.append(_place(plan, FEATURES, zero=False))
        body.append(moves.Fill(name=FEATURES, origin=HostRows(), buffer=FEATURES, start=start, link="read"))
    staging: tuple[dict[str, Buffer], ...] = tuple({} for _ in devices)
    if takers := plan.disk.takers.get(("", FEATURES)):
        kept = plan.kept[FEATURES]
        recalls.append(spilling.RecallGiven(name=FEATURES, kept=kept))
        body.append(spilling.Spill(name=FEATURES, kept=kept, own=None, takers=tuple(takers)))
        chunks = np.diff(plan.topology.chunk_start).reshape(len(devices), -1).max(axis=1)
        columns = plan.passes.width[FEATURES]
        staging = tuple({f"disk {FEATURES}": Buffer((int(rows), columns), FLOAT)} for rows in chunks)
    schedule = plan.schedules.get(None, plan.topology.input_order)
    return PassProgram(
        name="setup", view=plan.topology, schedule=schedule, order=range(schedule.shape[1] if body else 0), sets=1,
        buffers=tuple({} for _ in devices), staging=staging,
        before=tuple(before), recalls=tuple(recalls), body=tuple(body), after=(), frees=(),
    )  # fmt: skip


HOST_ROWS = (
    "ids",
    "statistics",
    "factors",
    "edge_id_start",
)  # arrays of a chunk's structure that are rows of host tensors


def _place(plan: PlannedMemory, name: str, *, zero: bool | np.ndarray, at: tuple[int, ...] = ()) -> moves.Place:
    there = where(plan, name)
    devices = range(plan.topology.partitions)
    rows = (plan.in_memory(name),) if there == "host" else tuple(plan.resident_rows(name, i) for i in devices)
    shape, kept, apart = (plan.passes.width[name],), plan.kept.get(name), plan.apart and there == "device"
    return moves.Place(name=name, where=there, rows=rows, shape=shape, zero=zero, kept=kept, at=at, padded=apart)


def compile_pass(plan: PlannedMemory, p: Pass) -> PassProgram:
    """What one pass runs; its transfers may only be counted."""
    devices = range(plan.topology.partitions)
    schedule = np.asarray(plan.schedule(p))
    order = range(schedule.shape[1])
    recalls, spills = tuple(_recalls(plan, p)), tuple(_spills(plan, p))
    return PassProgram(
        name=p.name,
        view=plan.view(p),
        schedule=schedule,
        order=order[::-1] if p.direction == "backward" else order,
        sets=max(plan.choice.staging, 1),
        buffers=tuple(plan.buffers(p, i) for i in devices),
        staging=tuple(plan.host_staging(p, i) for i in devices),
        keeps=plan.keeps_scripts(p),
        before=tuple(_before(plan, p)),
        recalls=recalls,
        ahead=plan.disk_sets(p) - 1 if recalls or spills else 0,
        body=tuple(_body(plan, p, spills, recalls=bool(recalls))),
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
            at = plan.place_of(p, name) if name in plan.placed else ()
            yield _place(plan, name, zero=zero if writers is None else writers.unwritten, at=at)
    for crossing in plan.crossings.fetched(p):
        yield moves.Cross(tensor=str(p.exchange), crossing=crossing, link="fetch")
    if p.moments is not None and p.stage is not None and p.direction == "forward":
        yield moves.BeginMoments(stage=p.stage, columns=plan.passes.width[p.moments])


def _after(plan: PlannedMemory, p: Pass) -> Iterator[Instruction]:
    if p.moments is not None and p.stage is not None and p.direction == "forward":
        yield moves.EndMoments(stage=p.stage)
    if p.layer is not None and plan.shape.layers[p.layer].norm and p.direction != "forward":
        yield moves.SumStatistics(layer=p.layer)
    for crossing in plan.crossings.sent_back(p):
        yield moves.Cross(tensor=str(p.flush), crossing=crossing, link="send")
    if p.edge_loss:
        yield moves.LossOverEdges(output=OUTPUT, gradient=gradient(OUTPUT))


def _recalls(plan: PlannedMemory, p: Pass) -> Iterator[Instruction]:
    """What one batch has from the disk."""
    found: list[Instruction] = []
    region = plan.disk.loaded.get((p.name, str(p.exchange)))
    if region is not None:
        name, picks = str(p.exchange), Picked(plan, p).of("begin", mirrors=False)
        found.append(spilling.RecallPicks(tensor=name, kept=plan.kept[name], region=region, picks=picks))
    found += [_recall(plan, p, name) for name in (*p.inputs, *p.gradients) if name in plan.spilled]
    if found:
        if plan.choice.staging:
            yield waiting.Wait(stream="disk", event="brought", why="recall: the last rows have left staging")
        yield from found
        yield waiting.Signal(stream="disk", event="recalled")


def _body(plan: PlannedMemory, p: Pass, spills: tuple[Instruction, ...], *, recalls: bool) -> Iterator[Instruction]:
    """One batch: bring, compute, deliver; with waits where device and host have memories of their own. The last batch
    of the set was as many before this one as there are sets; slots that this one fills were retired by then, for the
    plan keeps every row that much longer. Where rows have been recalled, the disk had taken that batch's before."""
    staged = plan.choice.staging > 0
    if staged:
        yield waiting.Wait(stream="load", event="sent", why="load: the last batch is done with slots and staging")
        if not plan.keeps_scripts(p):
            why = "stage: the last copies are through"  # peers have pulled, too
            yield waiting.Wait(stream="dispatch", event="brought", why=why)
        elif plan.choice.staging == 1 and _is_pulled(plan, p):  # else rows that are pulled stay a batch longer
            yield waiting.Meet(stream="load", why="load: peers have pulled the last")
    if recalls:
        yield waiting.Wait(stream="load", event="recalled", why="load: the rows have come from the disk")
    brought = (*_bring_neighbours(plan, p, staged=staged), *_bring_chunk(plan, p))
    yield from _packed(plan, p, brought) if staged else brought
    if staged:
        yield waiting.Signal(stream="load", event="brought")
        yield waiting.Wait(
            stream="compute", event="brought", why="compute: inputs are there, the last results are away"
        )
    cache, picks = gradient_cache(plan, p), Picked(plan, p)
    if p.flush is not None and picks.loads:
        yield moves.Zero(cache=cache, picks=picks.of("begin", mirrors=False), slots="load_slots")
    if p.flush is not None and picks.shares:
        yield moves.Zero(cache=cache, picks=picks.of("begin", mirrors=True), slots="pull_to")
    saves = p.saves and p.direction == "forward"
    if spills and not recalls and not staged:
        yield waiting.Wait(stream="compute", event="spilled", why="compute: the disk has taken the last")
    yield moves.Compute(body=chunk_body(plan, p), graph=p.saves or p.direction != "forward", saves=saves)
    if p.flush is not None and picks.shares:
        if staged:
            yield waiting.Meet(stream="compute", why="push: the owner has computed")
        ends = picks.of("end", mirrors=True)
        yield moves.Push(cache=cache, picks=ends, contended=Contended(ends, range(plan.view(p).chunks)))
        if staged:
            yield waiting.Meet(stream="compute", why="compute: peers have pushed")
    if staged:
        yield waiting.Follow(stream="flush", other="compute", why="deliver: results are there")
        yield waiting.Wait(stream="flush", event="added", why="deliver: the host has taken the last")
    if spills and not recalls and staged:
        yield waiting.Wait(stream="flush", event="spilled", why="deliver: the disk has taken the last")
    for name in p.written:
        if where(plan, name) == "host":
            yield moves.Deliver(name=name, stores=stores(plan, p, name), kept=plan.kept.get(name))
    if p.flush is not None and picks.loads:
        ends, kept = picks.of("end", mirrors=False), plan.kept.get(p.flush)
        into = flushed(plan, p, p.flush)
        yield moves.Flush(tensor=p.flush, cache=cache, picks=ends, stores=into, to_bucket=kept)
    leaving = tuple(posts(plan, p))
    if staged and leaving:
        yield waiting.Follow(stream="host", other="flush", why="post: the rows are on the host")
    yield from leaving
    if spills:
        for other in ("flush", "host") if staged else ():
            yield waiting.Follow(stream="disk", other=other, why="spill: the rows are in staging")
        yield from spills
        yield waiting.Signal(stream="disk", event="spilled")
    if staged:
        yield waiting.Signal(stream="flush", event="sent")
        yield waiting.Signal(stream="host", event="added")


def _is_pulled(plan: PlannedMemory, p: Pass) -> bool:
    """Whether rows that a batch loads are pulled by peers, who need not have computed before the batch ends."""
    picks = Picked(plan, p)
    return picks.loads and picks.shares and p.exchange is not None and p.flush is None


def _packed(plan: PlannedMemory, p: Pass, brought: tuple[Instruction, ...]) -> Iterator[Instruction]:
    """First what goes through staging memory of the host, the largest numbers first; then what needs it."""
    buffers, staging = plan.buffers(p, 0), plan.host_staging(p, 0)

    def size(x: moves.Bring) -> int:
        """What the bytes of a row are a multiple of, up to 8."""
        return gcd(buffers[x.name].row_bytes(plan.shape.itemsize), 8)

    staged = [x for x in brought if isinstance(x, moves.Bring) and x.name in staging]
    packed = sorted(staged, key=size, reverse=True)
    yield from packed
    if packed:
        yield moves.Ship(names=tuple(x.name for x in packed))
    yield from (x for x in brought if x not in staged)


def _bring_neighbours(plan: PlannedMemory, p: Pass, *, staged: bool) -> Iterator[Instruction]:
    """Values into the caches, and which gradients begin and end."""
    picks = Picked(plan, p)
    loads, pulls = picks.of("begin", mirrors=False), picks.of("begin", mirrors=True)
    if picks.loads:
        yield moves.Bring(name="load_slots", origin=Column(loads, "slot"))
    if picks.loads and p.exchange is not None:
        from_bucket = (p.name, p.exchange) in plan.disk.loaded
        load = moves.Load(tensor=p.exchange, cache=value_cache(plan, p), picks=loads, from_bucket=from_bucket)
        yield moves.Bring(name="load_rows", origin=Column(loads, load.column))
        yield load
    if picks.shares:
        yield moves.Bring(name="pull_to", origin=Column(pulls, "slot"))
    if picks.shares and p.exchange is not None:
        if staged:
            yield waiting.Meet(stream="load", why="pull: the owner has loaded")
        yield moves.Bring(name="pull_from", origin=Column(pulls, "peer_slot"))
        yield moves.Pull(cache=value_cache(plan, p), picks=pulls)
    if picks.shares and p.flush is not None:
        ends = picks.of("end", mirrors=True)
        yield moves.Bring(name="push_from", origin=Column(ends, "slot"))
        yield moves.Bring(name="push_to", origin=Column(ends, "peer_slot"))
    if picks.loads and p.flush is not None:
        yield moves.Bring(name="flush_slots", origin=Column(picks.of("end", mirrors=False), "slot"))


def _bring_chunk(plan: PlannedMemory, p: Pass) -> Iterator[Instruction]:
    """The chunk's structure and its destinations' rows."""
    needs, pruned = plan.needs(p), plan.view(p).active is not None
    if pruned:
        yield moves.Bring(name="row_in_chunk", origin=OfChunk("destinations"))
    if not plan.structure_stays(p):
        for name, array in needs.structure.items():
            yield moves.Bring(name=name, origin=_origin(plan, p, name, array))
    if needs.identity and pruned:
        yield moves.Bring(name="active", origin=OfChunk("destinations"))
    if needs.labels:
        yield moves.Bring(name="labels", origin=HostRows(), link="read")
        yield moves.Bring(name="loss_bits", origin=HostRows(), link="read")
    for name in (*p.inputs, *p.gradients):
        if where(plan, name) == "host":
            sparse = plan.shape.sparse_input if name == FEATURES else None
            if sparse is None:
                in_place = name in plan.kept and not plan.choice.staging and not pruned  # the device is the host
                yield moves.Bring(name=name, origin=HostRows(plan.kept.get(name), in_place), link="read")
                continue
            numbers = sparse.numbers(plan.view(p))
            for part in PARTS:
                yield moves.Bring(name=f"{name} {part}", origin=SparsePart(part, numbers), link="read")


def _origin(plan: PlannedMemory, p: Pass, name: str, array: Array) -> Origin:
    """Whence an array of a chunk's structure comes."""
    if name == "slot_of_source":
        return SlotsOfSources(transfers_of(plan, p))
    return HostRows() if name in HOST_ROWS else OfChunk(array.over)


def _spills(plan: PlannedMemory, p: Pass) -> Iterator[Instruction]:
    """What one batch gives the disk."""
    disk = plan.disk
    for name in p.written:
        if name in plan.spilled:
            takers = disk.takers.get((p.name, name), ())
            own = disk.own.get((p.name, name))
            yield spilling.Spill(name=name, kept=plan.kept[name], own=own, takers=tuple(takers))
    if p.flush is not None and (p.name, p.flush) in disk.flushed:
        region, ends = disk.flushed[p.name, p.flush], Picked(plan, p).of("end", mirrors=False)
        yield spilling.SpillPicks(tensor=p.flush, kept=plan.kept[p.flush], region=region, picks=ends)


def _recall(plan: PlannedMemory, p: Pass, name: str) -> Instruction:
    """A pass's own rows of a tensor that lies on the disk."""
    if name == FEATURES:
        return spilling.RecallGiven(name=name, kept=plan.kept[name])
    disk, found = plan.disk, []
    for giver in disk.givers[p.name, name]:
        key = giver.name, name
        found.append(
            Given(
                view=plan.view(giver), schedule=plan.schedule(giver), own=disk.own.get(key),
                stores=stores(plan, giver, name), flushed=disk.flushed.get(key),
                flush_stores=flushed(plan, giver, name),
            )
        )  # fmt: skip
    straight = is_straight(p, name, disk, plan.view)
    return spilling.Recall(name=name, kept=plan.kept[name], given=tuple(found), straight=straight)

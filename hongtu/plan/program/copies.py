"""The copies of a batch: what comes to the devices from the host, and goes between the host and the disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import gcd
from typing import Literal

import numpy as np

from hongtu.graph.halo import Crossing
from hongtu.graph.sparse_rows import PARTS
from hongtu.plan.cache.transfer import TransferPlan
from hongtu.plan.cache.writers import last_steps
from hongtu.plan.memory.disk import is_straight, laid_rows
from hongtu.plan.memory.planned import PlannedMemory
from hongtu.plan.memory.structure import FLOAT, Array
from hongtu.plan.passes.definition import FEATURES, Pass
from hongtu.plan.program import moves
from hongtu.plan.program.moves import Call, Copy, Instruction, Link, call
from hongtu.plan.program.on_disk import ARTIFACT, Bucket, Given, Laid, Summed
from hongtu.plan.program.ref import (
    Ref,
    Stores,
    flushed,
    gradient_cache,
    on_host,
    own,
    own_rows,
    picks,
    stores,
    transfers_of,
    value_cache,
    where,
)
from hongtu.plan.program.rows import DESTINATIONS, FRONT, OfChunk, Picked, Selection, SlotsOfSources, SparsePart

# arrays of a chunk's structure that are rows of host tensors
HOST_ROWS = ("ids", "statistics", "factors", "edge_id_start")
SIDES: tuple[Literal["begin"], Literal["end"]] = "begin", "end"
EXCHANGE = "load", "pull", "zero_rows", "push", "flush"  # in a batch


def bring(src: Ref, dst: Ref | None = None, link: Link = "topology", *, in_place: bool = False) -> Copy:
    """An array to the device: to the register of its name, or where it stays."""
    return Copy(link=link, dst=dst or Ref(tensor=src.tensor, rows=FRONT), src=src, in_place=in_place)


def array_of(plan: PlannedMemory, p: Pass, name: str, array: Array) -> Ref:
    """Whence an array of a chunk's structure comes."""
    if name == "slot_of_source":
        return Ref(tensor=name, where="plan", rows=SlotsOfSources("sources", devices=transfers_of(plan, p)))
    if name in HOST_ROWS:
        return Ref(tensor=name, where="host")
    return Ref(tensor=name, where="graph", rows=OfChunk(array.over))


def exchange(plan: PlannedMemory, p: Pass) -> list[Copy | Call]:
    """What a pass does in every batch with the rows that go through its caches, in the order of ``EXCHANGE``."""
    devices, values, gradients = transfers_of(plan, p), value_cache(plan, p), gradient_cache(plan, p)
    found = list[Copy | Call]()
    if any(len(device.loads) for device in devices):
        begin, end = (picks(plan, p, side, mirrors=False) for side in SIDES)
        slots = Picked(begin, "slot", "load_slots")
        if p.exchange is not None:
            bucket = (p.name, p.exchange) in plan.disk.loaded
            rows = Picked(begin, "place" if bucket else "row", "load_rows")
            there = on_host(plan, p.exchange, rows, window=bucket)
            found.append(Copy(link="load", dst=Ref(tensor=values, rows=slots), src=there))
        if p.flush is not None:
            found.append(call("zero_rows", at=Ref(tensor=gradients, rows=slots, access=Stores(True))))
            rows = Picked(end, "place" if p.flush in plan.kept else "row")
            there = on_host(plan, p.flush, rows, flushed(plan, p, p.flush))
            ended = Ref(tensor=gradients, rows=Picked(end, "slot", "flush_slots"))
            found.append(Copy(link="flush", dst=there, src=ended))
    if any(len(device.pulls) for device in devices):
        begin, end = (picks(plan, p, side, mirrors=True) for side in SIDES)
        slots = Picked(begin, "slot", "pull_to")
        if p.exchange is not None:
            there = Ref(tensor=values, where="peer", rows=Picked(begin, "peer_slot", "pull_from"))
            found.append(Copy(link="pull", dst=Ref(tensor=values, rows=slots), src=there))
        if p.flush is not None:
            found.append(call("zero_rows", at=Ref(tensor=gradients, rows=slots, access=Stores(True))))
            rows = Picked(end, "peer_slot", "push_to")
            there = Ref(tensor=gradients, where="peer", rows=rows, access=Stores(False))
            ended = Ref(tensor=gradients, rows=Picked(end, "slot", "push_from"))
            found.append(Copy(link="push", dst=there, src=ended))
    return sorted(found, key=lambda x: EXCHANGE.index(x.verb))


def bring_neighbours(exchanged: list[Copy | Call]) -> Iterator[Copy]:
    """Values into the caches, each copy behind the plan's arrays that say which rows it moves; those of gradients."""
    known = set[str]()
    for x in exchanged:
        ends = [x.at] if isinstance(x, Call) else sorted((x.dst, x.src), key=lambda ref: ref.where != "device")
        for rows in (ref.rows for ref in ends):
            if isinstance(rows, Picked) and rows.at and rows.at not in known:
                known.add(rows.at)
                yield bring(Ref(tensor=rows.at, where="plan", rows=replace(rows, at="")))
        if isinstance(x, Copy) and x.on == "load":
            yield x


def bring_chunk(plan: PlannedMemory, p: Pass) -> Iterator[Copy]:
    """The chunk's structure and its destinations' rows."""
    needs, pruned = plan.needs(p), plan.view(p).active is not None
    if pruned:
        yield bring(Ref(tensor="row_in_chunk", where="graph"))
    for places, name in plan.edge_places(p).items():
        yield bring(Ref(tensor=places, where="graph", rows=own_rows(plan, p, name)))
    if not plan.structure_stays(p):
        for name, array in needs.structure.items():
            yield bring(array_of(plan, p, name, array))
    for name in ("labels", "loss_bits") if p.loss else ():
        yield bring(Ref(tensor=name, where="host"), link="read")
    for name in (*p.inputs, *p.gradients):
        if where(plan, name) == "host":
            sparse = plan.shape.sparse_input if name == FEATURES else None
            if sparse is None:
                source = own(plan, p, name)
                alike = not plan.choice.staging and not pruned and source.dtype == FLOAT  # the device is the host
                yield bring(source, link="read", in_place=alike and source.kept is not None)
                continue
            numbers = sparse.numbers(plan.view(p))
            for part in PARTS:
                there = Ref(tensor=name, where="host", rows=SparsePart(part, numbers))
                yield bring(there, Ref(tensor=f"{name} {part}", rows=FRONT), "read")


def packed(plan: PlannedMemory, p: Pass, brought: tuple[Copy, ...]) -> Iterator[Instruction]:
    """First what goes through staging memory of the host, the largest numbers first; then what needs it."""
    buffers, staging = plan.buffers(p, 0), plan.host_staging(p, 0)

    def size(x: Copy) -> int:
        """What the bytes of a row are a multiple of, up to 8."""
        return gcd(buffers[x.dst.tensor].row_bytes(plan.shape.itemsize), 8)

    staged = [x for x in brought if x.dst.tensor in staging]
    largest = sorted(staged, key=size, reverse=True)
    yield from largest
    if largest:
        yield moves.Ship(names=tuple(x.dst.tensor for x in largest))
    yield from (x for x in brought if x not in staged)


def recalls(plan: PlannedMemory, p: Pass) -> Iterator[Instruction]:
    """What one batch has from the disk."""
    found: list[Instruction] = []
    region = plan.disk.loaded.get((p.name, p.exchange))
    if region is not None:
        bucket = Bucket(region, picks(plan, p, "begin", mirrors=False))
        there, window = _ends(plan, p.exchange, bucket, FRONT)
        found.append(Copy(link=there.where, dst=window, src=there))
    found += [recall(plan, p, name) for name in (*p.inputs, *p.gradients) if name in plan.spilled]
    if found:
        yield from found
        yield moves.Signal(stream="disk", event="recalled")


def recall(plan: PlannedMemory, p: Pass | None, name: str) -> Copy:
    """A pass's own rows of a tensor that lies on the disk; the features are in the artifact."""
    disk, rows = plan.disk, ARTIFACT
    if p is not None and name != FEATURES:
        given = tuple(
            Given(
                view=plan.view(giver), schedule=plan.schedule(giver),
                own=disk.own.get((giver.name, name)), laid=laid_rows(plan, giver, name),
                stores=stores(plan, giver, name),
                flushed=disk.flushed.get((giver.name, name)), flush_stores=flushed(plan, giver, name),
            )
            for giver in disk.givers[p.name, name]
        )  # fmt: skip
        rows = Summed(given, is_straight(plan, disk, p, name), plan.edges_of(p, name))
    there, window = _ends(plan, name, rows)
    return Copy(link=there.where, dst=window, src=there)


def spills(plan: PlannedMemory, p: Pass) -> Iterator[Copy]:
    """What one batch gives the disk."""
    disk = plan.disk
    for name in p.written:
        if name in plan.spilled:
            takers = tuple(disk.takers.get((p.name, name), ()))
            own, edges = disk.own.get((p.name, name)), plan.edges_of(p, name)
            yield spill(plan, name, Laid(own, laid_rows(plan, p, name), takers, edges))
    if (p.name, p.flush) in disk.flushed:
        ends = picks(plan, p, "end", mirrors=False)
        yield spill(plan, p.flush, Bucket(disk.flushed[p.name, p.flush], ends))


def spill(plan: PlannedMemory, name: str, rows: Selection) -> Copy:
    """A chunk's rows, or those of a batch, to the disk."""
    there, window = _ends(plan, name, rows)
    return Copy(link=there.where, dst=there, src=window)


def _ends(plan: PlannedMemory, name: str, rows: Selection, through: Selection = DESTINATIONS) -> tuple[Ref, Ref]:
    """Rows below the host, and where it has them on their way."""
    memory = "disk" if rows is ARTIFACT else plan.below(name)
    there = Ref(tensor=name, where=memory, rows=rows, kept=plan.kept[name], dtype=plan.disk_dtype(name))
    return there, Ref(tensor=name, where="window", rows=through, dtype=plan.host_dtype(name))


def posts(plan: PlannedMemory, p: Pass) -> Iterator[moves.Post]:
    """Rows that leave for other ranks while a pass goes on: each behind the batch that is the last to change it."""
    leaving: list[tuple[str, Crossing, Literal["fetch", "send"]]] = [
        *((name, crossing, "fetch") for name, crossing in plan.crossings.next_fetched(p)),
        *((p.flush, crossing, "send") for crossing in plan.crossings.sent_back(p)[:1]),
    ]
    for name, crossing, link in leaving:
        transfers, steps = plan.transfers.get(p.name) if name == p.flush else None, None
        if transfers is None or isinstance(transfers, TransferPlan):
            last = last_steps(p, name, plan.view(p), np.asarray(plan.schedule(p)), transfers)
            steps = tuple(last[rows] for rows in crossing.leaving(link))
        yield moves.Post(tensor=name, crossing=crossing, link=link, steps=steps)

"""The copies of a batch: what comes to the devices from the host, and goes between the host and the disk."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import Literal

import numpy as np

from hongtu.graph.halo import Crossing
from hongtu.graph.sparse_rows import PARTS
from hongtu.plan.cache.transfer import TransferCounts
from hongtu.plan.cache.writers import last_steps
from hongtu.plan.memory.disk import is_straight
from hongtu.plan.memory.planned import PlannedMemory
from hongtu.plan.memory.structure import FLOAT, Array
from hongtu.plan.passes.definition import FEATURES, Pass
from hongtu.plan.program import moves
from hongtu.plan.program.instruction import Instruction
from hongtu.plan.program.moves import Copy, Link, Ref
from hongtu.plan.program.on_disk import ARTIFACT, Bucket, Given, Laid, Summed
from hongtu.plan.program.operands import Exchanged, flushed, own, own_rows, stores, transfers_of, value_cache, where
from hongtu.plan.program.rows import DESTINATIONS, FRONT, OfChunk, Picked, Picks, Selection, SlotsOfSources, SparsePart

# arrays of a chunk's structure that are rows of host tensors
HOST_ROWS = ("ids", "statistics", "factors", "edge_id_start")


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


def _column(picks: Picks, column: Literal["row", "place", "slot", "peer_slot"], name: str) -> Copy:
    """What the plan says of picked intervals."""
    return bring(Ref(tensor=name, where="plan", rows=Picked(picks, column)))


def bring_neighbours(plan: PlannedMemory, p: Pass) -> Iterator[Copy]:
    """Values into the caches, and which gradients begin and end."""
    exchanged = Exchanged(plan, p)
    loads, pulls = exchanged.picks("begin", mirrors=False), exchanged.picks("begin", mirrors=True)
    if exchanged.loads:
        yield _column(loads, "slot", "load_slots")
    if exchanged.loads and p.exchange is not None:
        bucket = (p.name, p.exchange) in plan.disk.loaded
        rows = Picked(loads, "place" if bucket else "row", "load_rows")
        yield _column(loads, rows.column, "load_rows")
        into = Ref(tensor=value_cache(plan, p), rows=Picked(loads, "slot", "load_slots"))
        there = Ref(
            tensor=p.exchange, where="window" if bucket else "host", rows=rows, kept=plan.kept.get(p.exchange),
            dtype=plan.host_dtype(p.exchange),
        )  # fmt: skip
        yield Copy(link="load", dst=into, src=there)
    if exchanged.shares:
        yield _column(pulls, "slot", "pull_to")
    if exchanged.shares and p.exchange is not None:
        yield _column(pulls, "peer_slot", "pull_from")
        cache = value_cache(plan, p)
        theirs = Ref(tensor=cache, where="peer", rows=Picked(pulls, "peer_slot", "pull_from"))
        yield Copy(link="pull", dst=Ref(tensor=cache, rows=Picked(pulls, "slot", "pull_to")), src=theirs)
    if exchanged.shares and p.flush is not None:
        ends = exchanged.picks("end", mirrors=True)
        yield _column(ends, "slot", "push_from")
        yield _column(ends, "peer_slot", "push_to")
    if exchanged.loads and p.flush is not None:
        yield _column(exchanged.picks("end", mirrors=False), "slot", "flush_slots")


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
    if "active" in needs.beside:
        yield bring(Ref(tensor="active", where="graph", rows=OfChunk("destinations")))
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
    region = plan.disk.loaded.get((p.name, str(p.exchange)))
    if region is not None:
        bucket = Bucket(region, Exchanged(plan, p).picks("begin", mirrors=False))
        there, window = _ends(plan, str(p.exchange), bucket, FRONT)
        found.append(Copy(link=there.where, dst=window, src=there))
    found += [recall(plan, p, name) for name in (*p.inputs, *p.gradients) if name in plan.spilled]
    if found:
        yield from found
        yield moves.Signal(stream="disk", event="recalled")


def recall(plan: PlannedMemory, p: Pass | None, name: str) -> Copy:
    """A pass's own rows of a tensor that lies on the disk; the features are in the artifact."""
    disk, found, rows = plan.disk, [], ARTIFACT
    if p is not None and name != FEATURES:
        for giver in disk.givers[p.name, name]:
            key = giver.name, name
            found.append(
                Given(
                    view=plan.view(giver), schedule=plan.schedule(giver), own=disk.own.get(key),
                    stores=stores(plan, giver, name), flushed=disk.flushed.get(key),
                    flush_stores=flushed(plan, giver, name),
                )
            )  # fmt: skip
        rows = Summed(tuple(found), is_straight(plan, disk, p, name), plan.edges_of(p, name))
    there, window = _ends(plan, name, rows)
    return Copy(link=there.where, dst=window, src=there)


def spills(plan: PlannedMemory, p: Pass) -> Iterator[Copy]:
    """What one batch gives the disk."""
    disk = plan.disk
    for name in p.written:
        if name in plan.spilled:
            laid = Laid(
                disk.own.get((p.name, name)), tuple(disk.takers.get((p.name, name), ())), plan.edges_of(p, name)
            )
            yield spill(plan, name, laid)
    if p.flush is not None and (p.name, p.flush) in disk.flushed:
        region, ends = disk.flushed[p.name, p.flush], Exchanged(plan, p).picks("end", mirrors=False)
        yield spill(plan, p.flush, Bucket(region, ends))


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
        *((str(p.flush), crossing, "send") for crossing in plan.crossings.sent_back(p)[:1]),
    ]
    for name, crossing, link in leaving:
        transfers, steps = plan.transfers.get(p.name) if name == p.flush else None, None
        if not isinstance(transfers, TransferCounts):
            last = last_steps(p, name, plan.view(p), np.asarray(plan.schedule(p)), transfers)
            steps = tuple(last[rows] for rows in crossing.leaving(link))
        yield moves.Post(tensor=name, crossing=crossing, link=link, steps=steps)

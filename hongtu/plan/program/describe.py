"""What each instruction does in one batch, in words: operands, rows of every device, bytes.

One method of ``Described`` for each kind, named by its verb. Legend: D destinations, S sources, E in-edges of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from hongtu.plan.memory.disk import Kept, Region
from hongtu.plan.program import computing, moves, spilling, waiting
from hongtu.plan.program.instruction import Instruction, Picks, Stores
from hongtu.plan.program.predict import placed_row
from hongtu.plan.program.program import PassProgram


@dataclass(frozen=True)
class Line:
    """One instruction in one batch.

    Attributes:
        what: its operands.
        rows: of every device; () where it moves none.
        unit: what these count.
        nbytes: that all devices move together; None where it moves none.
        note: why, or what is stored and what added.
    """

    what: str
    rows: tuple[int, ...] = ()
    unit: str = "rows"
    nbytes: int | None = None
    note: str = ""


class Described:
    """Says what the instructions of a pass do.

    Args:
        p: the pass.
        widths: columns of the vertex tensors that were placed.
        itemsize: bytes of the run's floating-point numbers.
        batch: where rows are counted; None outside of batches.
    """

    def __init__(self, p: PassProgram, widths: dict[str, int], itemsize: int, batch: int | None = None) -> None:
        self._p, self._widths, self._itemsize, self._batch = p, widths, itemsize, batch
        self._devices = range(len(p.buffers))

    def line(self, x: Instruction) -> Line:
        """What one instruction does."""
        found: Line = getattr(self, x.verb)(x)
        return found

    # ------------------------------------------------------------------------------------------------------- amounts

    def _chunks(self) -> list[int]:
        assert self._batch is not None
        return [self._p.chunk(i, self._batch) for i in self._devices]

    def _entries(self, name: str) -> tuple[int, ...]:
        """Of every device's chunk, the length of an array of its structure or the rows of a vertex tensor."""
        view = self._p.view
        counts = {
            "indptr": view.num_dst + 1, "local_source": view.chunk_edges, "edge_weight": view.chunk_edges,
            "edge_features": view.chunk_edges, "edge_type": view.chunk_edges, "sources": view.num_sources,
            "slot_of_source": view.num_sources,
        }.get(name, view.num_dst)  # fmt: skip
        return tuple(int(counts[chunk]) if view.num_dst[chunk] else 0 for chunk in self._chunks())

    def _row_bytes(self, name: str) -> int:
        """Bytes of a row of a buffer, or of a vertex tensor."""
        buffer = next((found[name] for found in self._p.buffers if name in found), None)
        if buffer is None:
            return self._widths.get(name, 1) * self._itemsize
        return buffer.row_bytes(self._itemsize)

    def _moved(self, what: str, name: str, rows: Sequence[int], *, unit: str = "rows", note: str = "") -> Line:
        return Line(what, tuple(rows), unit, sum(rows) * self._row_bytes(name), note)

    def _picked(self, picks: Picks) -> tuple[int, ...]:
        assert self._batch is not None
        return tuple(len(picks.column("row", i, self._batch)) for i in self._devices)

    def _destinations(self, chunk: int) -> np.ndarray:
        return np.r_[self._p.view.destinations(chunk)]

    def _stores(self, stores: Stores) -> str:
        if isinstance(stores.where, bool):
            return "store" if stores.where else "add"
        return _mixed(stores.where[self._destinations(chunk)] for chunk in self._chunks())

    # ------------------------------------------------------------------------------------------------ around batches

    def place(self, x: moves.Place) -> Line:
        zeros = "" if x.zero is False else "zeros" if x.zero is True else f"{len(x.zero)} rows begin as zeros"
        columns = f" of {prod(x.shape)}" if x.shape else ""
        return Line(
            f"{x.name} ({x.where}){columns}", x.rows, "rows", sum(x.rows) * placed_row(x, self._itemsize), zeros
        )

    def free(self, x: moves.Free) -> Line:
        return Line(f"{x.name} ({x.where})")

    def begin_moments(self, x: moves.BeginMoments) -> Line:
        return Line(f"mean and variance behind stage {x.stage}: {x.columns} columns")

    def end_moments(self, x: moves.EndMoments) -> Line:
        return Line(f"mean and variance behind stage {x.stage} to every network")

    def sum_statistics(self, x: moves.SumStatistics) -> Line:
        return Line(f"gradients of the statistics of layer {x.layer}, over all networks")

    def fetch(self, x: moves.Fetch) -> Line:
        return self._moved(f"host {x.tensor}[halo] = of the ranks that own them", x.tensor, (x.crossing.rows,))

    def send_back(self, x: moves.SendBack) -> Line:
        what = f"their owners' {x.tensor} += host {x.tensor}[halo]"
        return self._moved(what, x.tensor, (x.crossing.rows,))

    def post(self, x: moves.Post) -> Line:
        return Line(f"{x.link} begins: rows of host {x.tensor} that stay as they are leave")

    def loss_over_edges(self, x: moves.LossOverEdges) -> Line:
        return Line(f"{x.gradient} = loss over edges of {x.output}")

    # ------------------------------------------------------------------------------------------------------- streams

    def wait(self, x: waiting.Wait) -> Line:
        return Line(f"{x.stream} until '{x.event}'", note=x.why)

    def host_wait(self, x: waiting.HostWait) -> Line:
        return Line(f"until '{x.event}'", note=x.why)

    def signal(self, x: waiting.Signal) -> Line:
        return Line(f"'{x.event}' when {x.stream} is here")

    def follow(self, x: waiting.Follow) -> Line:
        return Line(f"{x.stream} until {x.other} is here", note=x.why)

    def meet(self, x: waiting.Meet) -> Line:
        return Line(f"{x.stream} of every device until all are here", note=x.why)

    # --------------------------------------------------------------------------------------------------------- moves

    def read(self, x: moves.Read) -> Line:
        what, rows = f"{x.name} = host {x.name}[chunk]", self._entries(x.name)
        if not x.in_place or x.kept is None:
            return self._moved(what, x.name, rows)
        here = (x.kept.has(i, int(self._p.view.chunk_start[chunk])) for i, chunk in enumerate(self._chunks()))
        return self._moved(what, x.name, [n * there for n, there in zip(rows, here, strict=True)], note="or in place")

    def read_sparse(self, x: moves.ReadSparse) -> Line:
        return Line(f"{x.name} start, column, value = host {x.name}[chunk]", self._entries(x.name))

    def bring(self, x: moves.Bring) -> Line:
        return self._moved(f"{x.name} = of chunk", x.name, self._entries(x.name), unit="entries")

    def bring_slots(self, x: moves.BringSlots) -> Line:
        assert self._batch is not None
        rows = [len(x.slots.of(i, self._batch)) for i in self._devices]
        return self._moved(f"{x.name} = of chunk", x.name, rows, unit="entries")

    def bring_picks(self, x: moves.BringPicks) -> Line:
        kind, which = "mirrors" if x.picks.mirrors else "loaded rows", "last" if x.picks.retiring else "first"
        what = f"{x.name} = {x.column} of {kind} whose {which} batch it is"
        return self._moved(what, x.name, self._picked(x.picks), unit="entries")

    def ship(self, x: moves.Ship) -> Line:
        return Line(f"{_listed(x.names)} in one copy")

    def fill(self, x: moves.Fill) -> Line:
        return Line(f"{x.buffer}[chunk] = of chunk", self._entries(x.name), "entries")

    def fill_rows(self, x: moves.FillRows) -> Line:
        return Line(f"{x.buffer}[chunk] = host {x.name}[chunk]", self._entries(x.name))

    def fill_slots(self, x: moves.FillSlots) -> Line:
        return Line(f"{x.buffer}[chunk] = slots of sources", self._entries("sources"), "entries")

    def load(self, x: moves.Load) -> Line:
        return self._moved(f"{x.cache}[load_slots] = host {x.tensor}[load_rows]", x.cache, self._picked(x.picks))

    def pull(self, x: moves.Pull) -> Line:
        return self._moved(f"{x.cache}[pull_to] = peer's {x.cache}[pull_from]", x.cache, self._picked(x.picks))

    def zero(self, x: moves.Zero) -> Line:
        return Line(f"{x.cache}[{x.slots}] = 0", self._picked(x.picks))

    def push(self, x: moves.Push) -> Line:
        return self._moved(f"peer's {x.cache}[push_to] += {x.cache}[push_from]", x.cache, self._picked(x.picks))

    def compute(self, x: moves.Compute) -> Line:
        kept = ", operations kept for a later pass" if x.saves else ", with gradients" if x.graph else ""
        return Line(f"on every chunk{kept}", self._entries("destinations"), "destinations")

    def deliver(self, x: moves.Deliver) -> Line:
        rows = self._entries(x.name)
        return self._moved(f"host {x.name}[chunk] <- {x.name}", x.name, rows, note=self._stores(x.stores))

    def flush(self, x: moves.Flush) -> Line:
        assert self._batch is not None
        rows = self._picked(x.picks)
        flags = (np.broadcast_to(x.stores[i].of(x.picks.of(i, self._batch)), rows[i]) for i in self._devices)
        what = f"host {x.tensor}[rows] <- {x.cache}[flush_slots]"
        return self._moved(what, x.cache, rows, note=_mixed(flags))

    # ---------------------------------------------------------------------------------------------------------- disk

    def lay_out(self, x: spilling.LayOut) -> Line:
        what = f"disk for {_count(x.takers, 'pass', 'passes')} <- {x.name} of the artifact"
        return Line(what, self._all_rows(), note=_but(x.kept))

    def recall(self, x: spilling.Recall) -> Line:
        what = f"host {x.name}[chunk] = disk, by {_count(x.given, 'pass', 'passes')}"
        note = "; ".join(filter(None, ("" if x.straight else "added up", _but(x.kept))))
        return Line(what, self._all_rows(), note=note)

    def recall_given(self, x: spilling.RecallGiven) -> Line:
        return Line(f"host {x.name}[chunk] = of the artifact", self._all_rows(), note=_but(x.kept))

    def recall_picks(self, x: spilling.RecallPicks) -> Line:
        return Line(f"host {x.tensor}[load_rows] = disk", self._in_bucket(x.region), note=_but(x.kept))

    def spill(self, x: spilling.Spill) -> Line:
        own = "" if x.own is None else ", to be read"
        takers = f", for {_count(x.takers, 'pass', 'passes')} to load" if x.takers else ""
        return Line(f"disk <- host {x.name}[chunk]{own}{takers}", self._all_rows(), note=_but(x.kept))

    def spill_picks(self, x: spilling.SpillPicks) -> Line:
        return Line(f"disk <- host {x.tensor}[rows]", self._in_bucket(x.region), note=_but(x.kept))

    def _all_rows(self) -> tuple[int, ...]:
        view = self._p.view
        return tuple(int(np.diff(view.chunk_start)[c]) if view.num_dst[c] else 0 for c in self._chunks())

    def _in_bucket(self, region: Region) -> tuple[int, ...]:
        return tuple(int(buckets.count[self._batch].sum()) for buckets in region.buckets)

    # ------------------------------------------------------------------------------------------------------- a chunk

    def here(self, x: computing.Here) -> Line:
        return Line(f"{x.name} = {x.buffer}[chunk]")

    def own(self, x: computing.Own) -> Line:
        return Line(f"{x.name} = device {x.tensor}[chunk]", note="" if x.written else "not yet written")

    def pick(self, x: computing.Pick) -> Line:
        return Line(f"{x.name} = {x.name}[row_in_chunk]")

    def front(self, x: computing.Front) -> Line:
        return Line(f"{x.name} = buffer {x.buffer}")

    def new(self, x: computing.New) -> Line:
        return Line(f"{x.name} = new, of {x.columns}", note="zeros" if x.zero else "")

    def take(self, x: computing.Take) -> Line:
        return Line(f"{x.name} = what the chunk has of it", note="for the last time" if x.last else "")

    def copy(self, x: computing.Copy) -> Line:
        return Line(f"{_listed(x.names)} in memory of their own")

    def dense(self, x: computing.Dense) -> Line:
        return Line(f"{x.name} = dense({x.name} start, column, value)")

    def drop(self, x: computing.Drop) -> Line:
        return Line(_listed(x.names))

    def enter(self, x: computing.Enter) -> Line:
        return Line(_listed(x.names), note="gradients will be wanted")

    def gather(self, x: computing.Gather) -> Line:
        return Line(f"{x.into} = {x.cache}[slot_of_source]", self._entries("sources"))

    def sum(self, x: computing.Sum) -> Line:
        how = "mean" if x.mean else "sum"
        weights = " * edge_weight" if x.weighted else ""
        return Line(f"{x.a} = {how} over in-edges of {x.cache}[slot_of_source]{weights}")

    def aggregate(self, x: computing.Aggregate) -> Line:
        return Line(f"{x.a} = aggregate of layer {x.layer} ({_listed((x.z, *x.s))})")

    def combine(self, x: computing.Combine) -> Line:
        return Line(f"{x.a} = combine of layer {x.layer} ({_listed((x.a, *x.s))})")

    def stage(self, x: computing.Stage) -> Line:
        given = _listed((x.base, *x.s, *x.values))
        note = "gradients only" if x.gradients_only else "as they are" if x.keeps_input else ""
        return Line(f"{_listed(x.gives)} = stage {x.stage} ({given})", note=note)

    def gather_moments(self, x: computing.GatherMoments) -> Line:
        return Line(f"of {x.name}")

    def loss(self, x: computing.Loss) -> Line:
        return Line(f"{x.gradient} = gradient of the loss at {x.output}")

    def add(self, x: computing.Add) -> Line:
        return Line(f"{x.name} = {' + '.join(x.parts)}")

    def write(self, x: computing.Write) -> Line:
        there = {
            "host": f"{x.name}, to be delivered",
            "device": f"device {x.name}[chunk]",
            "chunk": f"chunk's {x.name}",
        }
        how = "" if x.where == "host" else self._stores(x.stores)
        holds = "; what is saved lies there" if x.holds else ""
        return Line(f"{there[x.where]} <- {x.register}", note=f"{how}{holds}")

    def save(self, x: computing.Save) -> Line:
        return Line(f"stage {x.stage} for backward")

    def resume(self, x: computing.Resume) -> Line:
        return Line(f"stage {x.stage} as it was saved")

    def through_moments(self, x: computing.ThroughMoments) -> Line:
        return Line(f"{x.gradient} += by way of mean and variance of {x.x}")

    def differentiate(self, x: computing.Differentiate) -> Line:
        given = _listed("none" if name is None else name for name in x.gradients)
        return Line(f"{_listed(x.gives)} = backward({given})")

    def uncombine(self, x: computing.Uncombine) -> Line:
        given = _listed(name for name in x.gives if name is not None)
        return Line(f"{given} = backward of combine of layer {x.layer} ({x.gradient})")

    def transpose_sum(self, x: computing.TransposeSum) -> Line:
        how, weights = "mean" if x.mean else "sum", " * edge_weight" if x.weighted else ""
        return Line(f"{x.cache}[slot_of_source] += transpose of {how} over in-edges ({x.gradient}{weights})")

    def transpose_aggregate(self, x: computing.TransposeAggregate) -> Line:
        return Line(f"{x.cache}[slot_of_source] += transpose of aggregate of layer {x.layer} ({x.gradient})")

    def add_to_cache(self, x: computing.AddToCache) -> Line:
        return Line(f"{x.cache}[slot_of_source] += {x.gradient}", self._entries("sources"))


def _count(found: Sequence[object], one: str, more: str) -> str:
    return f"{len(found)} {one if len(found) == 1 else more}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"


def _mixed(stores: Iterable[np.ndarray]) -> str:
    """
    >>> _mixed([np.array([True, False]), np.array([True])])
    'store 2, add 1'
    """
    every = np.concatenate([np.asarray(part, dtype=np.bool_) for part in stores])
    stored, added = int(every.sum()), int((~every).sum())
    if stored and added:
        return f"store {stored}, add {added}"
    return "add" if added else "store"


def _but(kept: Kept) -> str:
    return f"but {kept.rows} rows in memory" if kept.rows else ""

"""Today's programs in the new form (``form.py``): what every instruction reads and writes, and where.

The order is that in which the executor gives instructions to streams. Legend: D destinations of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hongtu.hardware import aligned
from hongtu.plan.memory.buffers import Buffer
from hongtu.plan.memory.host import Kept
from hongtu.plan.memory.structure import FLOAT, SIZES, chunk_entries
from hongtu.plan.passes.definition import FEATURES
from hongtu.plan.program import moves
from hongtu.plan.program.moves import Instruction
from hongtu.plan.program.program import PassProgram, Program, script_bytes
from hongtu.plan.program.rows import DESTINATIONS, PartOfChunk, Picked, SlotsOfSources
from tests.checker.check import GIVEN
from tests.ledger.form import HOST, Alloc, Call, Chunk, Column, Copy, Free, Kind, Op, Ref, Space
from tests.ledger.lower_body import Body, mode_of
from tests.ledger.lower_disk import OnDisk

THROUGH = ("disk ", "bucket ", "parts ")  # names of a window of the disk
WAITS = (moves.Wait, moves.Signal, moves.Follow, moves.Meet)


class Drain(Instruction):
    """The dispatching thread waits for all streams when the batches of a pass are through: in no program."""

    why = "drain: the pass is done"


@dataclass(frozen=True, eq=False)
class Placed:
    """A wait of today's program where it stands in the list.

    Attributes:
        turn: which set of events it is about.
        device: a wait that is in no program, but in the devices: of one of them; None: of all.
    """

    wait: Instruction
    turn: int
    device: int | None = None


class Lowered(NamedTuple):
    """One pass: everything that runs, the waits between, and the batch of every operation."""

    p: PassProgram
    entries: tuple[Op | Placed, ...]
    batches: tuple[int, ...]
    staged: bool

    @property
    def ops(self) -> tuple[Op, ...]:
        return tuple(x for x in self.entries if not isinstance(x, Placed))


def lower(program: Program, width: dict[str, int], item: int) -> list[Lowered]:
    """The passes of set-up, of an epoch and of an evaluation.

    Args:
        width: columns of vertex tensors by name.
        item: bytes of a number.
    """
    whole = Lowering(program, width, item)
    return [whole.lower(p) for p in (*program.setup, *program.train, *program.evaluate)]


class Lowering:
    """What is there from pass to pass."""

    def __init__(self, program: Program, width: dict[str, int], item: int) -> None:
        self.program, self.width, self.item = program, width, item
        passes = (*program.setup, *program.train, *program.evaluate)
        self.staged = any(isinstance(x, moves.Wait) and x.event == "sent" for p in passes for x in p.body)
        self.posted: set[str] = set()
        self.pieces: dict[tuple[str, int], Ref] = {}  # by tensor and chunk, what the chunk keeps
        self.saved: dict[tuple[int, int], list[Ref]] = {}  # by stage and chunk
        self.stays: set[str] = set()  # tensors placed on the devices
        self.slots: dict[tuple[str, int], np.ndarray] = {}  # of sources, by where they stay and chunk

    def row(self, name: str) -> int:
        return self.width[name] * self.item

    def lower(self, p: PassProgram) -> Lowered:
        one, entries, batches = Lower(self, p), [], []
        for x in one.every():
            entries.append(x)
            batches += [] if isinstance(x, Placed) else [one.batch]
        return Lowered(p, tuple(entries), tuple(batches), self.staged)


class Lower(OnDisk):
    """One pass."""

    def __init__(self, at: Lowering, p: PassProgram) -> None:
        self.at, self.p, self.item, self.staged = at, p, at.item, at.staged
        self.devices, self.view = range(len(p.buffers)), p.view
        self.entries_of = chunk_entries(p.view)
        self.transient = 0

    # -------------------------------------------------------------------------------------------------------- places

    def device(self, i: int, name: str, lo: int, hi: int, step: int = 0) -> Ref:
        """Rows of a device's buffer, of the set of a batch."""
        buffer = self.p.buffers[i].get(name)
        base = 0 if buffer is None else step % buffer.sets * buffer.shape[0]
        assert buffer is None or hi <= buffer.shape[0], name
        return Ref(self._named(name), Space("device", i), Chunk(base + lo, base + hi))

    def _named(self, name: str) -> str:
        """A pass's buffer of rows that are picked has the name of the tensor that stays there."""
        return f"picked {name}" if name in self.at.stays else name

    def beside(self, i: int, name: str, lo: int, hi: int, step: int) -> Ref:
        """The same on the host's side."""
        buffer = self.p.staging[i][name]
        base = step % buffer.sets * buffer.shape[0]
        assert hi <= buffer.shape[0], name
        return Ref(name, Space(_side(name), i), Chunk(base + lo, base + hi))

    def some(self, ref: Ref, index: np.ndarray, at: Ref | None = None) -> Ref:
        """Rows of those rows."""
        base = ref.rows.first if isinstance(ref.rows, Chunk) else 0
        return Ref(ref.tensor, ref.space, Column(base + np.asarray(index, dtype=np.int64), at))

    def cache(self, i: int, name: str, slots: np.ndarray, at: Ref | None) -> Ref:
        return Ref(name, Space("device", i), Column(np.asarray(slots, dtype=np.int64), at))

    def script(self, i: int, lo: int, hi: int, *, host: bool = False) -> Ref:
        """Bytes of what one copy brings in this batch."""
        if host and self.p.keeps:
            return Ref(f"script {self.p.name} {self.batch}", Space("staging", i), Chunk(lo, hi))
        return Ref(f"script {self.step % self.p.sets}", Space("staging" if host else "device", i), Chunk(lo, hi))

    # ---------------------------------------------------------------------------------------------------- the passes

    def every(self) -> Iterator[Op | Placed]:
        p = self.p
        self.step, self.batch = 0, 0
        for x in p.before:
            yield from getattr(self, x.verb)(x)
        buffers = list(self._buffers())
        yield from buffers
        sets = max(p.sets, 1 + p.ahead)
        for step in range(len(p.order) + p.ahead if p.order else 0):
            for body, at in ((p.recalls, step), (p.body, step - p.ahead)):
                if body and 0 <= at < len(p.order):
                    self.step, self.batch, self.turn = at, p.order[at], at % sets
                    if body is p.body:
                        self._begin_batch()
                    yield from self._used_up(recalls=body is p.recalls)
                    for x in body:
                        yield from self._do(x)
        yield Placed(Drain(), 0)
        for x in p.after:
            yield from getattr(self, x.verb)(x)
        yield from (Free(x.ref) for x in buffers if not x.stays)
        for x in p.frees:
            yield from self.free(x)

    def _begin_batch(self) -> None:
        self.registers: dict[int, dict[str, Ref]] = {i: {} for i, _ in self.p.busy(self.batch)}
        self.brought: dict[tuple[int, str], Ref] = {}
        self.slots: dict[int, np.ndarray] = {}
        self.packed: list[list[tuple[int, int, bool]]] = [[] for _ in self.devices]

    def _used_up(self, *, recalls: bool) -> Iterator[Free]:
        """What the batch that had these sets last left in them is of no worth any more: of windows of the disk that
        recalls fill, or of everything else."""
        p = self.p
        filled = {x.dst.tensor for x in p.recalls if isinstance(x, moves.Copy)}
        for i in self.devices:
            for space in (Space("device", i), Space("staging", i)) if p.packed and not recalls else ():
                if not (p.keeps and space.kind == "staging"):
                    yield Free(Ref(f"script {self.step % p.sets}", space, Chunk(0, self.script_bytes(i))))
            for name, buffer in p.buffers[i].items() if not recalls else ():
                if name not in p.packed and name not in ("cache", "gradient_cache"):
                    yield Free(self.device(i, name, 0, buffer.shape[0], self.step))
            for name, buffer in p.staging[i].items():
                window = _side(name) == "window" and name.split(" ", 1)[1] in filled
                if name not in p.packed and window == recalls:
                    yield Free(self.beside(i, name, 0, buffer.shape[0], self.step))

    def _do(self, x: Instruction) -> Iterator[Op | Placed]:
        if isinstance(x, WAITS):
            yield Placed(x, self.turn)
        else:
            yield from getattr(self, x.verb)(x)

    def _buffers(self) -> Iterator[Alloc]:
        p = self.p
        for i in self.devices:
            script = self.script_bytes(i)
            for k in range(p.sets if p.packed else 0):
                yield Alloc(Ref(f"script {k}", Space("device", i)), script, 1, 1)
                if not p.keeps:
                    yield Alloc(Ref(f"script {k}", Space("staging", i)), script, 1, 1)
            for name, buffer in p.buffers[i].items():
                if name not in p.packed:
                    yield self._buffer(self._named(name), Space("device", i), buffer)
            for name, buffer in p.staging[i].items():
                if name not in p.packed:
                    yield self._buffer(name, Space(_side(name), i), buffer)

    def script_bytes(self, i: int) -> int:
        """Of one set of the arrays that one copy brings."""
        return sum(self.p.buffers[i][name].nbytes(self.item) // self.p.sets for name in self.p.packed)

    def _buffer(self, name: str, space: Space, buffer: Buffer) -> Alloc:
        rows = buffer.sets * buffer.shape[0]
        step = buffer.nbytes(self.item) // rows if rows else 0
        return Alloc(Ref(name, space), rows, buffer.row_bytes(self.item), step)

    def place(self, x: moves.Place) -> Iterator[Op]:
        row = int(np.prod(x.shape)) * (self.item if x.dtype == FLOAT else SIZES[x.dtype])
        spaces = [HOST] if x.where == "host" else [Space("device", i) for i in self.devices]
        self.at.stays |= {x.name} if x.where == "device" else set()
        for space, rows in zip(spaces, x.rows, strict=True):
            step = Buffer((1, *x.shape), x.dtype, padded=x.padded).nbytes(self.item)
            yield Alloc(Ref(x.name, space), rows, row, step, stays=True)
            if x.zero is True:
                yield Call("zero", (), (Ref(x.name, space),), space)
            elif isinstance(x.zero, np.ndarray) and len(x.zero):
                there = x.zero if x.kept is None else x.kept.places(x.zero)
                yield Call("zero", (), (Ref(x.name, space, Column(there)),), space)

    def free(self, x: moves.Free) -> Iterator[Op]:
        if x.where == "host":
            yield Free(Ref(x.name, HOST))
        elif x.where == "device":
            self.at.stays.discard(x.name)
            yield from (Free(Ref(x.name, Space("device", i))) for i in self.devices)
        else:
            for key in [key for key in self.at.pieces if key[0] == x.name]:
                yield Free(self.at.pieces.pop(key))

    def begin_moments(self, x: moves.Call) -> Iterator[Op]:
        for i in self.devices:
            ref = Ref("moments", Space("device", i))
            yield Alloc(ref, stays=True)
            yield Call("zero", (), (ref,), ref.space)

    def end_moments(self, x: moves.Call) -> Iterator[Op]:
        refs = tuple(Ref("moments", Space("device", i)) for i in self.devices)
        yield Call("end moments", refs, (), HOST)
        yield from map(Free, refs)

    def sum_statistics(self, x: moves.Call) -> Iterator[Op]:
        yield Call("sum statistics", (), (), HOST)  # of the model, which is no tensor of the program

    def loss_over_edges(self, x: moves.Call) -> Iterator[Op]:
        output, gradient = (Ref(x.settings[name], HOST) for name in ("output", "gradient"))
        yield Call("loss over edges", (output,), (gradient,), HOST)

    # --------------------------------------------------------------------------------------------- between the ranks

    def cross(self, x: moves.Cross) -> Iterator[Op]:
        """What did not leave before leaves; what others gave comes."""
        mode = "store" if x.link == "fetch" else "add"
        if x.tensor not in self.at.posted:
            for rank, rows in enumerate(x.crossing.leaving(x.link)):
                yield from self._leave(x.tensor, rank, rows, mode)
        self.at.posted.discard(x.tensor)
        for rank, rows in enumerate(x.crossing.arriving(x.link)):
            if len(rows):
                source = Ref(x.tensor, Space("rank", rank), Column(rows))
                yield Copy(Ref(x.tensor, HOST, Column(rows)), source, mode)

    def _leave(self, tensor: str, rank: int, rows: np.ndarray, mode: Any) -> Iterator[Op]:
        if len(rows):
            yield Copy(Ref(tensor, Space("rank", rank), Column(rows)), Ref(tensor, HOST, Column(rows)), mode)

    def post(self, x: moves.Post) -> Iterator[Op]:
        assert x.steps is not None
        self.at.posted.add(x.tensor)
        for rank, (rows, steps) in enumerate(zip(x.crossing.leaving(x.link), x.steps, strict=True)):
            yield from self._leave(x.tensor, rank, rows[steps == self.step], "store" if x.link == "fetch" else "add")

    # ---------------------------------------------------------------------------------------------------------- load

    def _bring(self, i: int, name: str, source: Ref, count: int, *, topology: bool = True) -> Iterator[Op]:
        """An array to the front of its buffer, or into what one copy will bring."""
        if name not in self.p.packed:
            self._keep(i, name, self.device(i, name, 0, count, self.step))
            if count:
                yield Copy(self.brought[i, name], source, topology=topology)
            return
        lo = self.packed[i][-1][1] if self.packed[i] else 0
        hi = lo + count * self.p.buffers[i][name].row_bytes(self.item)
        self.packed[i].append((lo, hi, topology))
        self._keep(i, name, self.script(i, lo, hi))
        if not self.p.keeps and hi > lo:
            yield Copy(self.script(i, lo, hi, host=True), source)

    def _keep(self, i: int, name: str, ref: Ref) -> None:
        self.brought[i, name] = ref
        if i in self.registers:
            self.registers[i][name] = ref

    def slots_of(self, i: int, number: int) -> np.ndarray:
        """int32 [S], of a chunk."""
        if number in self.slots:
            return self.slots[number]
        return self.at.slots[self.registers[i]["slot_of_source"].tensor, number]

    def topology(self, x: moves.Copy) -> Iterator[Op]:
        name, rows = x.dst.tensor, x.src.rows
        if isinstance(rows, Picked):
            for i in self.devices:
                given = Ref(f"{rows.column}s of {self.p.name}", HOST)
                yield from self._bring(i, name, given, len(rows.array(i, self.batch)))
            return
        for i, number in self.p.busy(self.batch):
            if isinstance(x.dst.rows, PartOfChunk):
                yield from self._fill(x, x.dst.rows, i, number)
                continue
            count = int(rows.lengths(self.view, i, np.array([number]), [self.batch])[0])
            given = self._given(x.src, i, number)
            if x.in_place and not self._in_memory(x.src.kept, i, number):
                self._keep(i, name, given)
            else:
                yield from self._bring(i, name, given, count, topology=x.link == "topology")

    read = topology

    def _given(self, src: moves.Ref, i: int, number: int) -> Ref:
        """Whence it comes."""
        if src.where == "host" and src.rows is DESTINATIONS:
            return self.own_rows(src.tensor, i, number, src.kept)
        if isinstance(src.rows, SlotsOfSources):
            self.slots[number] = src.rows.array(i, self.batch)
            return Ref(f"slots of {self.p.name}", HOST)
        return Ref(src.tensor, HOST)

    def ship(self, x: moves.Ship) -> Iterator[Op]:
        for i in self.devices:
            for lo, hi, topology in self.packed[i]:
                if hi > lo:
                    yield Copy(self.script(i, lo, hi), self.script(i, lo, hi, host=True), topology=topology)

    def _fill(self, x: moves.Copy, part: PartOfChunk, i: int, number: int) -> Iterator[Op]:
        own, slots = number - i * self.view.chunks, isinstance(x.src.rows, SlotsOfSources)
        lo, hi = (int(part.start[i][own + k]) for k in (0, 1))
        if isinstance(x.src.rows, SlotsOfSources):
            self.at.slots[x.dst.tensor, number] = x.src.rows.array(i, self.batch)
        if hi > lo:
            source = Ref("slots" if slots else x.src.tensor, HOST)
            into = Ref(x.dst.tensor, Space("device", i), Chunk(lo, hi))
            yield Copy(into, source, topology=x.link == "topology")

    def picked(self, i: int, ref: moves.Ref) -> Ref:
        """Rows of a device's cache, of a host tensor or of a bucket that are picked."""
        assert isinstance(ref.rows, Picked)
        index, at = ref.rows.array(i, self.batch), self.brought[i, ref.rows.at] if ref.rows.at else None
        if ref.where == "device":
            return self.cache(i, ref.tensor, index, at)
        if ref.rows.column == "place":
            return self.some(self.beside(i, f"bucket {ref.tensor}", 0, 0, self.step), index, at)
        return Ref(ref.tensor, HOST, Column(index, at))

    def load(self, x: moves.Copy) -> Iterator[Op]:
        for i in self.devices:
            source = self.picked(i, x.src)
            if len(source.rows.index):  # type: ignore[union-attr]
                yield Copy(self.picked(i, x.dst), source)

    def pull(self, x: moves.Copy) -> Iterator[Op]:
        yield from self._peers(x.dst, x.src, adds=False)

    def push(self, x: moves.Copy) -> Iterator[Op]:
        yield from self._peers(x.src, x.dst, adds=True)

    def _peers(self, here: moves.Ref, there: moves.Ref, *, adds: bool) -> Iterator[Op]:
        assert isinstance(here.rows, Picked) and isinstance(there.rows, Picked)
        for i in self.devices:
            own, theirs = here.rows.array(i, self.batch), there.rows.array(i, self.batch)
            for peer, part in here.rows.picks.by_peer(i, self.batch):
                mine = self.cache(i, here.tensor, own[part], self.brought[i, here.rows.at])
                other = self.cache(peer, there.tensor, theirs[part], self.brought[i, there.rows.at])
                yield Copy(other, mine, "add") if adds else Copy(mine, other)
            if adds and len(own):
                yield Free(self.cache(i, here.tensor, own, None))

    # ------------------------------------------------------------------------------------------------------- compute

    def zero_rows(self, x: moves.Call) -> Iterator[Op]:
        assert x.at is not None
        for i in self.devices:
            cache = self.picked(i, x.at)
            if len(cache.rows.index):  # type: ignore[union-attr]
                yield Call("zero rows", (), (cache,), cache.space)

    def compute(self, x: moves.Compute) -> Iterator[Op]:
        for i, number in self.p.busy(self.batch):
            yield from Body(self, i, number, self.registers[i]).run(x)

    # --------------------------------------------------------------------------------------------------------- flush

    def _rows(self, number: int) -> np.ndarray:
        rows: np.ndarray = np.r_[self.view.destinations(number)]
        return rows

    def _in_memory(self, kept: Kept | None, i: int, number: int) -> bool:
        return kept is None or kept.has(i, int(self.view.chunk_start[number]))

    def own_rows(self, name: str, i: int, number: int, kept: Kept | None) -> Ref:
        """The chunk's own rows of a tensor, on the host or in the window of the disk."""
        rows, pruned = self._rows(number), self.view.active is not None
        index = self.registers[i].get("row_in_chunk") if pruned and self.staged else None
        if not self._in_memory(kept, i, number):
            first = int(self.view.chunk_start[number])
            return self.some(self.beside(i, f"disk {name}", 0, 0, self.step), rows - first, index)
        return Ref(name, HOST, Column(rows if kept is None else kept.places(rows), index))

    def write(self, x: moves.Copy) -> Iterator[Op | Placed]:
        name, kept = x.dst.tensor, x.dst.kept
        for i, number in self.p.busy(self.batch) if self.staged else ():
            rows, count = self._rows(number), int(self.view.num_dst[number])
            target = self.own_rows(name, i, number, kept)
            source = self.device(i, f"deliver {name}", 0, count, self.step)
            stores = x.dst.access.among(rows) if self._in_memory(kept, i, number) else True  # type: ignore[union-attr]
            if stores is True:
                yield Copy(target, source)
            else:
                target = Ref(target.tensor, target.space, Column(target.rows.index))  # type: ignore[union-attr]
                yield from self._by_the_host(i, f"add {name}", source, target, stores)

    def _by_the_host(self, i: int, name: str, source: Ref, target: Ref, stores: Any) -> Iterator[Op | Placed]:
        """Rows leave, and the host puts them where they go."""
        count = len(target.rows.index)  # type: ignore[union-attr]
        staging = self.beside(i, name, 0, count, self.step)
        through = None if name != "flush_rows" else self.device(i, name, 0, count, self.step)
        yield Copy(staging, source, through=through)
        yield Placed(moves.Follow(stream="host", other="flush", why="add: the rows have arrived"), self.turn, i)
        yield Copy(target, staging, mode_of(stores))

    def flush(self, x: moves.Copy) -> Iterator[Op | Placed]:
        name, kept, picked = x.dst.tensor, x.dst.kept, x.dst.rows
        assert isinstance(picked, Picked) and isinstance(x.dst.access, tuple)
        for i in self.devices:
            cache, stores = self.picked(i, x.src), x.dst.access[i].among(picked.picks.intervals(i, self.batch))
            slots = cache.rows.index  # type: ignore[union-attr]
            if not len(slots):
                continue
            target, into = self.picked(i, x.dst), stores if kept is None else True
            if self.staged:
                yield from self._by_the_host(i, "flush_rows", cache, target, into)
            else:
                yield Copy(target, cache, mode_of(into))
            yield Free(self.cache(i, x.src.tensor, slots, None))
            if kept is not None and kept.rows:
                vertices = picked.picks.column("row", i, self.batch)
                order = np.argsort(vertices, kind="stable")
                places = kept.places(vertices[order])
                if len(places):
                    bucket = self.beside(i, f"bucket {name}", 0, len(places), self.step)
                    mode = mode_of(stores if isinstance(stores, bool) else stores[order[: len(places)]])
                    yield Copy(Ref(name, HOST, Column(places)), bucket, mode)


def _side(name: str) -> Kind:
    return "window" if name.startswith(THROUGH) else "staging"


def given(plan: Any) -> list[Alloc]:
    """What is there before the first pass: the features and what is pageable on the host, the memory of scripts that
    stay."""
    item, beside = plan.shape.itemsize, [name for name in GIVEN if name != FEATURES]
    found = [Alloc(Ref(name, HOST), plan.topology.num_vertices, stays=True) for name in beside]
    if plan.shape.sparse_input is None:
        row = plan.passes.width[FEATURES] * item
        found.append(Alloc(Ref(FEATURES, HOST), plan.in_memory(FEATURES), row, row, stays=True))
    for p in plan.program.train:
        for i in range(len(p.buffers)) if p.keeps and p.packed else ():
            for batch, nbytes in zip(p.order, script_bytes(p, i), strict=True):
                ref = Ref(f"script {p.name} {batch}", Space("staging", i))
                found.append(Alloc(ref, nbytes, 1, aligned(nbytes) / nbytes if nbytes else 1, stays=True))
    return found

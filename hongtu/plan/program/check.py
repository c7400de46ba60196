"""Reads a program before anything runs, and names the first instruction that cannot be right.

Registers are made before they are read, tensors placed before they are used and freed in the end; every source of a
chunk is in its slot; the first writer of a row stores and later ones add; gradients leave the caches once; what comes
from the disk was put there. What layers compute is not looked at, nor how streams wait for one another.
"""

from __future__ import annotations

from copy import deepcopy

import numpy as np

from hongtu.plan.passes.definition import FEATURES, OUTPUT, gradient
from hongtu.plan.program import moves
from hongtu.plan.program.check_slots import ProgramError, Slots, demand
from hongtu.plan.program.check_spilled import Spilled
from hongtu.plan.program.instruction import Instruction, Stores
from hongtu.plan.program.moves import Call, Copy, Ref
from hongtu.plan.program.program import PassProgram, Program
from hongtu.plan.program.rows import DESTINATIONS, SOURCES, OwnRows, PartOfChunk, Picked, SlotsOfSources

GIVEN = (  # on the host from the start
    FEATURES, "ids", "statistics", "factors", "edge_id_start", "labels", "loss_bits",
)  # fmt: skip
TAKEN = (OUTPUT, gradient(FEATURES))  # freed by whoever asked for them


def check_program(program: Program) -> None:
    """Read a program.

    Raises:
        ProgramError: names the pass, the batch, the device and the instruction that cannot be right.
    """
    rows = program.setup[0].view.num_vertices
    memory = _Memory(rows)
    for group, lasting in ((program.setup, True), (program.train, False), (program.evaluate, False)):
        before, disk = memory.alive, deepcopy(memory.disk)
        for p in group:
            _Pass(p, memory).check()
        left = sorted(f"{name} ({where})" for name, where in memory.alive - before if name not in TAKEN)
        demand(lasting or not left, f"after pass '{group[-1].name if group else ''}': {', '.join(left)} never freed")
        memory.disk = memory.disk if lasting else disk
        for name in TAKEN:
            memory.written.pop((name, "host"), None)


class _Memory:
    """The vertex tensors that exist, and which of their rows have a value."""

    def __init__(self, num_vertices: int) -> None:
        self.num_vertices = num_vertices
        self.written: dict[tuple[str, str], np.ndarray] = {(name, "host"): self._all(True) for name in GIVEN}
        self.zeroed: dict[tuple[str, str], np.ndarray] = {}
        self.rows: dict[str, tuple[int, ...]] = {}
        self.slots: dict[str, dict[int, np.ndarray]] = {}  # of buffers of slots that stay, by chunk
        self.left: dict[str, np.ndarray] = {}  # of host tensors, rows that are on their way to other ranks
        self.disk = Spilled()

    def _all(self, value: bool, rows: int | None = None) -> np.ndarray:
        return np.full(self.num_vertices if rows is None else rows, value)

    @property
    def alive(self) -> set[tuple[str, str]]:
        return set(self.written)

    def place(self, x: moves.Place) -> None:
        key = x.name, x.where
        demand(key not in self.written, f"{x.name} is placed twice")
        rows = self.num_vertices if x.kept is None else int(x.kept.at(self.num_vertices))
        rows = max(sum(x.rows), rows)  # of edges there may be more
        self.written[key], self.zeroed[key] = self._all(False, rows), self._all(x.zero is True, rows)
        if isinstance(x.zero, np.ndarray):
            self.zeroed[key][x.zero] = True
        if x.where == "device":
            self.rows[x.name] = x.rows

    def free(self, x: moves.Free) -> None:
        demand((x.name, x.where) in self.written or x.where == "chunk", f"{x.name} is freed, but it is not there")
        self.written.pop((x.name, x.where), None)
        if x.where == "device":
            self.rows.pop(x.name, None)

    def read(self, name: str, where: str, rows: np.ndarray) -> None:
        if not len(rows):
            return
        demand((name, where) in self.written, f"{name} ({where}) is not there")
        known = self.written[name, where][rows]
        if (name, where) in self.zeroed:
            known = known | self.zeroed[name, where][rows]
        demand(bool(known.all()), f"row {int(rows[np.argmin(known)])} of {name} was never written")

    def write(self, name: str, where: str, rows: np.ndarray, stores: Stores) -> None:
        """``stores`` is of these rows."""
        key = name, where
        if not len(rows):
            return
        if where == "chunk" and len(self.written.get(key, ())) <= rows.max():  # nobody has said how many there are
            known = self.written.get(key, self._all(False))
            self.written[key] = np.append(known, self._all(False, max(0, int(rows.max()) + 1 - len(known))))
            self.zeroed[key] = np.zeros_like(self.written[key])
        demand(key in self.written, f"{name} ({where}) is not there")
        if where == "host" and name in self.left:
            late = self.left[name][rows]
            demand(not late.any(), f"row {rows[np.argmax(late)]} of {name} changes after it has left for other ranks")
        stored = np.broadcast_to(stores.where, rows.shape)
        wrong = stored & self.written[key][rows]
        demand(not wrong.any(), f"a later writer of row {rows[np.argmax(wrong)]} of {name} stores")
        wrong = ~stored & ~(self.written[key] | self.zeroed[key])[rows]
        demand(not wrong.any(), f"the first writer of row {rows[np.argmax(wrong)]} of {name} adds")
        self.written[key][rows] = True

    def post(self, x: moves.Post, step: int) -> None:
        """Rows that leave behind a batch, once to each rank, must have been written and stay as they are."""
        left = self.left.setdefault(x.tensor, self._all(False))
        demand(x.steps is not None, "it is not known when rows leave")
        for rows, steps in zip(x.crossing.leaving(x.link), x.steps or (), strict=True):
            self.read(x.tensor, "host", rows[steps == step])
            left[rows[steps == step]] = True

    def crossed(self, x: moves.Cross) -> None:
        """The rest leaves, and what others sent comes."""
        self.left.pop(x.tensor, None)
        for rows in x.crossing.leaving(x.link):
            self.read(x.tensor, "host", rows)
        if x.link == "send":
            for rows in x.crossing.arriving(x.link):
                self.write(x.tensor, "host", rows, Stores(False))
        else:
            for rows in x.crossing.arriving(x.link):
                self.written[x.tensor, "host"][rows] = True


class _Pass:
    def __init__(self, p: PassProgram, memory: _Memory) -> None:
        self.p, self.memory = p, memory
        self.at = f"pass '{p.name}'"

    def check(self) -> None:
        p = self.p
        for x in p.before:
            self._try(x, lambda x=x: self._begin(x))
        self._check_places()
        self.slots = Slots(p, {k: v for k, v in self.memory.rows.items() if not k.startswith("structure ")})
        self._check_schedule()
        self.spilled = {x.src.tensor for x in p.body if isinstance(x, Copy) and x.verb == "spill"}
        for step, batch in enumerate(p.order):
            self.slots.begin(step)
            self.memory.disk.begin(p, batch)
            self.step, self.batch = step, batch
            self.registers: set[str] = set()
            self.packed: list[str] = []  # what is in staging memory and was not shipped
            self.sent: dict[str, Ref] = {}  # by tensor on the host, what is to be delivered
            self.chunks = p.busy(batch)
            self.sources: dict[int, np.ndarray] = {}
            for x in (*p.recalls, *p.body):
                self._try(x, lambda x=x: self._step(x), batch)
        caches = (x.at for x in p.every if isinstance(x, Call) and x.at is not None and x.at.rows is SOURCES)
        adds = {at.tensor for at in caches if at.access != "read" and at.tensor in self.slots.held}
        self._named(f"{self.at}, at its end", lambda: self.slots.end(adds))
        everything = np.arange(self.memory.num_vertices)
        for x in p.after:
            if isinstance(x, Call) and x.kernel == "loss_over_edges":
                self._try(x, lambda x=x: self.memory.read(x.settings["output"], "host", everything))
            elif isinstance(x, moves.Cross):
                self._try(x, lambda x=x: self.memory.crossed(x))
        for x in p.frees:
            self._try(x, lambda x=x: self.memory.free(x))

    def _begin(self, x: Instruction) -> None:
        if isinstance(x, moves.Place):
            self.memory.place(x)
        elif isinstance(x, moves.Cross):
            self.memory.crossed(x)

    def _try(self, x: Instruction, step: object, batch: int | None = None) -> None:
        where = self.at if batch is None else f"{self.at}, batch {batch}"
        self._named(f"{where}, {x.verb}", step)

    def _named(self, where: str, step: object) -> None:
        try:
            step()  # type: ignore[operator]
        except ProgramError as error:
            raise ProgramError(f"{where}: {error}") from None
        except KeyError as error:
            raise ProgramError(f"{where}: {error} is not there") from None

    def _check_places(self) -> None:
        """Rows come from the disk before the body that needs them, and are copied but where the device is the host and
        wants every row of a chunk."""
        body = self.p.body
        demand(not any(x.verb == "recall" for x in body), f"{self.at}: the body recalls")
        in_place = any(isinstance(x, Copy) and x.in_place for x in body)
        may = self.p.view.active is None and not any(isinstance(x, moves.Wait) and x.event == "sent" for x in body)
        demand(may or not in_place, f"{self.at}: rows that have come from the disk are not copied")

    def _check_schedule(self) -> None:
        p = self.p
        batches = sorted(p.order)
        demand(batches in ([], list(range(p.schedule.shape[1]))), f"{self.at}: batches are left out or run twice")
        for i in range(len(p.buffers) if batches else 0):
            ran = np.bincount(p.schedule[i], minlength=p.view.chunks)
            busy = p.view.num_dst[i * p.view.chunks : (i + 1) * p.view.chunks] > 0
            demand(bool((ran[busy] == 1).all()), f"{self.at}, device {i}: a chunk is left out or runs twice")

    def _own_rows(self, chunk: int, rows: OwnRows = DESTINATIONS) -> np.ndarray:
        return rows.of(self.p.view, chunk)

    def _step(self, x: Instruction) -> None:
        match x:
            case Copy():
                if x.dst.tensor in self.p.staging[0]:
                    self.packed.append(x.dst.tensor)
                elif x.link in ("load", "pull"):
                    self._shipped()
                getattr(self, f"_{x.verb}")(x)
            case moves.Post():
                self.memory.post(x, self.step)
            case moves.Ship():
                packed = tuple(self.packed)
                demand(packed == x.names, f"{', '.join(packed)} are packed, {', '.join(x.names)} shipped")
                self.packed.clear()
            case Call():
                self._shipped()
                self.slots.zero(x, self.batch)
            case moves.Compute():
                self._shipped()
                self._compute(x)

    def _shipped(self) -> None:
        demand(not self.packed, f"not shipped: {', '.join(self.packed)}")

    def _recall(self, x: Copy) -> None:
        self.memory.disk.recall(x.src)

    def _spill(self, x: Copy) -> None:
        self.memory.disk.spill(x.dst)

    def _pull(self, x: Copy) -> None:
        self.slots.pull(x, self.batch)

    def _push(self, x: Copy) -> None:
        self.slots.push(x, self.batch)

    def _load(self, x: Copy) -> None:
        memory, src = self.memory, x.src
        self.slots.load(x, self.batch)
        assert isinstance(src.rows, Picked)
        kept = memory.disk.here.get((src.tensor, "bucket"))
        demand(kept is not None or src.where != "window", f"the rows of {src.tensor} were not recalled")
        for i in range(len(self.p.buffers)):
            rows = src.rows.picks.column("row", i, self.batch)
            memory.read(src.tensor, "host", rows if kept is None else rows[rows < kept.end[i]])

    def _flush(self, x: Copy) -> None:
        memory, dst = self.memory, x.dst
        self.slots.flush(x, self.batch)
        assert isinstance(dst.rows, Picked) and isinstance(dst.access, tuple)
        demand(dst.kept is not None or dst.tensor not in self.spilled, f"{dst.tensor} does not go to its bucket")
        for i in range(len(self.p.buffers)):
            rows = dst.rows.picks.column("row", i, self.batch)
            here = np.flatnonzero(rows < (memory.num_vertices if dst.kept is None else dst.kept.end[i]))
            stores = dst.access[i].of(dst.rows.picks.of(i, self.batch))
            stores = stores if isinstance(stores, bool) else stores[here]
            memory.write(dst.tensor, "host", rows[here], Stores(stores))

    def _write(self, x: Copy) -> None:
        name, stores, kept, own = x.dst.tensor, x.dst.access, x.dst.kept, x.dst.rows
        demand(name in self.sent, "nothing was written to be delivered")
        sent, away = self.sent[name], self.memory.disk.on_disk(kept)
        demand(sent.kept is kept, f"{name} was written to other memory")
        demand(not away or name in self.spilled, f"the rows of {name} are never spilled")
        assert isinstance(sent.access, Stores) and isinstance(stores, Stores) and isinstance(own, OwnRows)
        for _, chunk in (one for one in self.chunks if one not in away):
            rows = self._own_rows(chunk, own)
            alike = bool(np.all(sent.access.of(rows) == stores.of(rows)))
            demand(alike, f"{name} was written to be stored where it is added, or the other way round")
            self.memory.write(name, "host", rows, Stores(stores.of(rows)))

    def _topology(self, x: Copy) -> None:
        """An array, or a chunk's rows, to a register or where it stays."""
        memory, src, dst = self.memory, x.src, x.dst
        fills, name = isinstance(dst.rows, PartOfChunk), dst.tensor
        if isinstance(src.rows, Picked):
            self.slots.bring_picks(name, src.rows, self.batch)
            return
        if isinstance(src.rows, SlotsOfSources):
            self.sources = {chunk: src.rows.of(i, self.batch) for i, chunk in self.chunks}
            if fills:
                memory.slots.setdefault(name, {}).update(self.sources)
        elif src.where == "host" and isinstance(src.rows, OwnRows):
            away, same = memory.disk.on_disk(src.kept), memory.disk.here.get((src.tensor, "rows")) is src.kept
            demand(same, f"the rows of {src.tensor} that are on the disk are not those that were recalled")
            for _, chunk in (one for one in self.chunks if one not in away):
                memory.read(src.tensor, "host", self._own_rows(chunk, src.rows))
                if fills and (name, "device") in memory.written:
                    memory.write(name, "device", self._own_rows(chunk, src.rows), Stores(True))
        self.registers |= set() if fills else {name}

    _read = _topology

    def _compute(self, x: moves.Compute) -> None:
        for y in x.body:
            self._named(y.kernel, lambda y=y: self._call(y))
        touched = {name for y in x.body for name in (*y.makes, *y.reads)}
        left = sorted(self.registers & touched)
        demand(not left, f"registers never dropped: {', '.join(left)}")

    def _call(self, y: Call) -> None:
        missing = set(y.reads) - self.registers
        demand(not missing, f"register {', '.join(sorted(missing))} is read before it is made")
        if y.at is not None:
            self._reach(y, y.at)
        self.registers |= set(y.makes)
        missing = set(y.drops) - self.registers
        demand(not missing, f"there is no register {', '.join(sorted(missing))}")
        self.registers -= set(y.drops)

    def _reach(self, y: Call, at: Ref) -> None:
        """What a kernel does to rows that are in no register."""
        memory = self.memory
        if y.kernel == "write":
            assert isinstance(at.rows, OwnRows)
            picks = any(at.rows.index(self.p.view, chunk) is not None for _, chunk in self.chunks)
            demand((at.rows.places in y.takes) >= picks, f"{at.tensor} is written to other rows than the pass computes")
        if isinstance(at.rows, PartOfChunk) and y.gives == ("slot_of_source",):
            self.sources = memory.slots[at.tensor]
        elif isinstance(at.rows, OwnRows) and at.where == "host":
            self.sent[at.tensor] = at
        elif isinstance(at.rows, OwnRows) or at.rows is SOURCES:
            for i, chunk in self.chunks:
                if isinstance(at.rows, OwnRows):
                    rows = self._own_rows(chunk, at.rows)
                else:
                    rows = self.p.view.neighbour_set(chunk)
                    self.slots.take(at.tensor, i, self.sources[chunk], rows, f"chunk {chunk}")
                    if (at.tensor, at.where) not in memory.written:
                        continue
                if isinstance(at.access, Stores):
                    memory.write(at.tensor, at.where, rows, Stores(at.access.of(rows)))
                else:
                    memory.read(at.tensor, at.where, rows)

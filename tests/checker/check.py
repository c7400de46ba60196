"""Reads a program before anything runs, and names the first instruction that cannot be right.

One symbolic run, in which memory holds which row is where instead of numbers (``held.py``). What is read was written,
and is the row that is wanted; the first writer of a row stores and later ones add; no slot is filled while it is in
use; gradients leave the caches once; tensors are freed in the end. What layers compute is not looked at, nor how
streams wait for one another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import partial

import numpy as np

from hongtu.plan.passes.definition import FEATURES, OUTPUT, gradient
from hongtu.plan.program import moves
from hongtu.plan.program.moves import Call, Copy, Instruction
from hongtu.plan.program.program import PassProgram, Program
from hongtu.plan.program.ref import Ref, Stores
from hongtu.plan.program.rows import SOURCES, OwnRows, PartOfChunk, Picked, SlotsOfSources
from tests.checker.held import NEVER, NONE, NOTHING, VALUE, ZERO, Held, ProgramError, demand
from tests.checker.memory import AllHeld

GIVEN = (  # on the host from the start
    FEATURES, "ids", "statistics", "factors", "edge_id_start", "labels", "loss_bits",
)  # fmt: skip
TAKEN = (OUTPUT, gradient(FEATURES))  # freed by whoever asked for them
CACHES = ("cache", "gradient_cache")  # buffers of slots; a tensor that stays on the devices is its own cache


def check_program(program: Program) -> None:
    """Read a program.

    Raises:
        ProgramError: names the pass, the batch and the instruction that cannot be right.
    """
    run = _Run(program.setup[0].view.num_vertices)
    for group, lasting in ((program.setup, True), (program.train, False), (program.evaluate, False)):
        before, disk = set(run.there), deepcopy(run.disk)
        for p in group:
            run.check(p)
        left = sorted(f"{name} ({where})" for name, where in run.there.keys() - before if name not in TAKEN)
        demand(lasting or not left, f"after pass '{group[-1].name if group else ''}': {', '.join(left)} never freed")
        run.disk = run.disk if lasting else disk
        for name in TAKEN:
            run.there.pop((name, "host"), None)


class _Run(AllHeld):
    """Instruction by instruction.

    Attributes:
        slots: by array that stays and chunk, the slots of the chunk's sources.
    """

    def __init__(self, num_vertices: int) -> None:
        super().__init__({(name, "host"): [Held(name, num_vertices, VALUE)] for name in GIVEN})
        self.num_vertices = num_vertices
        self.slots: dict[str, dict[int, np.ndarray]] = {}

    def check(self, p: PassProgram) -> None:
        """Run a pass."""
        self.begin_pass(p)
        at = f"pass '{p.name}'"
        for x in p.before:
            _named(f"{at}, {x.verb}", partial(self._around, x))
        _named(at, partial(_check_order, p))
        self._begin_caches()
        for step, batch in enumerate(p.order):
            self._begin_batch(step, batch)
            for x in (*p.recalls, *p.body):
                _named(f"{at}, batch {batch}, {x.verb}", partial(self._do, x))
        _named(f"{at}, at its end", self._end_caches)
        for x in (*p.after, *p.frees):
            _named(f"{at}, {x.verb}", partial(self._around, x))

    def _begin_caches(self) -> None:
        """Those of the pass are empty, and so are the slots for rows of peers where a tensor is its own."""
        for name in CACHES:
            if all(name in buffers for buffers in self.p.buffers):
                rows = (buffers[name].shape[0] for buffers in self.p.buffers)
                self.there[name, "device"] = [Held(f"{name} {i}", count) for i, count in enumerate(rows)]
        for name, where in self.there:
            for i, held in enumerate(self.there[name, where] if where == "device" else ()):
                held.used[:] = NEVER
                held.end(np.flatnonzero(held.row[self.own(i) :] != NONE) + self.own(i))

    def _end_caches(self) -> None:
        """No gradient of a peer's row is left in one."""
        refs = (x.at for x in self.p.every if isinstance(x, Call) and x.at is not None and x.at.rows is SOURCES)
        for name in sorted({ref.tensor for ref in refs if ref.access != "read"}):
            for i, held in enumerate(self.there.get((name, "device"), ())):
                left = held.row[0 if name in CACHES else self.own(i) :].max(initial=NONE)
                demand(left == NONE, f"row {left} never leaves {held.name}")
        for name in CACHES:
            self.there.pop((name, "device"), None)

    def _begin_batch(self, step: int, batch: int) -> None:
        """Nothing is at hand."""
        self.begin_batch(step, batch)
        self.registers: set[str] = set()
        self.packed: list[str] = []  # what is in staging memory and was not shipped
        self.sent: dict[str, Ref] = {}  # by tensor on the host, what is to be delivered

    # -------------------------------------------------------------------------------------------- around the batches

    def _around(self, x: Instruction) -> None:
        match x:
            case moves.Place():
                self._place(x)
            case moves.Cross():
                self._cross(x)
            case moves.Free():
                found = self.there.pop((x.name, x.where), None)
                demand(found is not None or x.where == "chunk", f"{x.name} is freed, but it is not there")
            case Call(kernel="loss_over_edges") if "others" not in x.settings:  # of a rank its own rows, whichever
                self.find(x.settings["output"], "host").read(np.arange(self.num_vertices))

    def _place(self, x: moves.Place) -> None:
        demand((x.name, x.where) not in self.there, f"{x.name} is placed twice")
        has, counts = ZERO if x.zero is True else NOTHING, x.rows
        if x.where == "host":  # rows have their numbers, whether all are there or not; of edges there may be more
            counts = (max(sum(counts), int(self.num_vertices if x.kept is None else x.kept.at(self.num_vertices))),)
        made = self.there[x.name, x.where] = [Held(f"{x.name} {i}", count, has) for i, count in enumerate(counts)]
        for i, held in enumerate(made if x.where == "device" else ()):
            own = np.arange(*self.first[i : i + 2])[: len(held.row)]
            held.row[: len(own)] = own
        if isinstance(x.zero, np.ndarray):
            made[0].has[x.zero] = ZERO

    def _cross(self, x: moves.Cross) -> None:
        """What has not left before leaves, and what others sent comes."""
        held = self.find(x.tensor, "host")
        held.left[:] = False
        for rows in x.crossing.leaving(x.link):
            held.read(rows)
        for rows in x.crossing.arriving(x.link):
            if x.link == "send":
                held.write(rows, stores=False)
            held.has[rows] = VALUE

    # --------------------------------------------------------------------------------------------------- one batch

    def _do(self, x: Instruction) -> None:
        self._pack(x)
        match x:
            case Copy(link="topology" | "read"):
                self._bring(x)
            case Copy(link="load" | "pull"):
                self._read(x.src)
                self._begin_slots(x.dst, VALUE)
            case Copy(link="push" | "flush"):
                self._read(x.src)
                self._write(x.dst)
                for part in self.parts(x.src):
                    part.held.end(part.at)
            case Copy(link="write"):
                self._deliver(x)
            case Copy() if x.verb == "recall":
                self.disk.recall(x.src, self.there.get((x.src.tensor, "host")))
            case Copy():
                self.disk.spill(x.dst)
            case moves.Post():
                self._post(x)
            case Call() if x.at is not None:
                self._begin_slots(x.at, ZERO)
            case moves.Compute():
                self._compute(x.body)

    def _pack(self, x: Instruction) -> None:
        """What one copy brings is there before anybody needs it."""
        if isinstance(x, moves.Ship):
            packed = tuple(self.packed)
            demand(packed == x.names, f"{', '.join(packed)} are packed, {', '.join(x.names)} shipped")
            self.packed.clear()
        elif isinstance(x, Copy) and x.dst.tensor in self.p.staging[0]:
            self.packed.append(x.dst.tensor)
        elif isinstance(x, Call | moves.Compute) or (isinstance(x, Copy) and x.link in ("load", "pull")):
            demand(not self.packed, f"not shipped: {', '.join(self.packed)}")

    def _read(self, ref: Ref) -> None:
        for part in self.parts(ref):
            part.held.read(part.at, part.rows, self.step)

    def _write(self, ref: Ref) -> None:
        for part in self.parts(ref):
            assert part.stores is not None
            part.held.write(part.at, part.stores, part.rows, self.step)

    def _begin_slots(self, ref: Ref, has: int) -> None:
        """Rows come to a cache, or zeros that their gradients are added to."""
        for i, part in zip(self.devices, self.parts(ref), strict=True):
            own = 0 if ref.tensor in CACHES else self.own(i)
            demand(bool((part.at >= own).all()), f"{part.held.name}: a peer's row goes to an own row's slot")
            assert part.rows is not None
            part.held.begin(part.at, part.rows, has, self.step - self.p.sets)

    def _bring(self, x: Copy) -> None:
        """An array, or a chunk's rows, to a register or where it stays."""
        src, name, stays = x.src, x.dst.tensor, x.dst.rows
        if isinstance(src.rows, Picked):
            self.picks[name] = [src.rows.array(i, self.batch) for i in self.devices]
            return
        if isinstance(src.rows, SlotsOfSources):
            self.sources = {chunk: src.rows.array(i, self.batch) for i, chunk in self.chunks}
        elif src.where == "host":
            self.disk.demand_recalled(src)
            self._read(src)
        if not isinstance(stays, PartOfChunk):
            self.registers.add(name)
        elif isinstance(src.rows, SlotsOfSources):
            self.slots.setdefault(name, {}).update(self.sources)
        elif isinstance(src.rows, OwnRows):
            for i, chunk in self.chunks:
                own = np.arange(*stays.start[i][chunk - i * self.p.view.chunks :][:2])
                self.find(name, "device", i).write(own, stores=True)

    def _deliver(self, x: Copy) -> None:
        """What chunks wrote for a host tensor reaches it."""
        dst = x.dst
        demand(dst.tensor in self.sent, "nothing was written to be delivered")
        sent = self.sent[dst.tensor]
        demand(sent.kept is dst.kept, f"{dst.tensor} was written to other memory")
        same = all(np.array_equal(a.stores, b.stores) for a, b in zip(self.parts(sent), self.parts(dst), strict=True))
        demand(same, f"{dst.tensor} was written to be stored where it is added, or the other way round")
        self._write(dst)

    def _post(self, x: moves.Post) -> None:
        """Rows that leave behind a batch, once to each rank, must have been written and stay as they are."""
        held = self.find(x.tensor, "host")
        demand(x.steps is not None, "it is not known when rows leave")
        for rows, steps in zip(x.crossing.leaving(x.link), x.steps or (), strict=True):
            leaving = rows[steps == self.step]
            held.read(leaving)
            held.left[leaving] = True

    # -------------------------------------------------------------------------------------------------------- chunks

    def _compute(self, body: Iterable[Call]) -> None:
        touched: set[str] = set()
        for x in body:
            _named(x.kernel, partial(self._call, x))
            touched |= {*x.makes, *x.reads}
        left = sorted(self.registers & touched)
        demand(not left, f"registers never dropped: {', '.join(left)}")

    def _call(self, x: Call) -> None:
        missing = set(x.reads) - self.registers
        demand(not missing, f"register {', '.join(sorted(missing))} is read before it is made")
        if x.at is not None:
            self._reach(x, x.at)
        self.registers |= set(x.makes)
        missing = set(x.drops) - self.registers
        demand(not missing, f"there is no register {', '.join(sorted(missing))}")
        self.registers -= set(x.drops)

    def _reach(self, x: Call, at: Ref) -> None:
        """What a kernel does to rows that are in no register."""
        if x.kernel == "write":
            assert isinstance(at.rows, OwnRows)
            picks = any(at.rows.index(self.p.view, chunk) is not None for _, chunk in self.chunks)
            demand((at.rows.places in x.takes) >= picks, f"{at.tensor} is written to other rows than the pass computes")
        if isinstance(at.rows, PartOfChunk) and x.gives == ("slot_of_source",):
            self.sources = self.slots[at.tensor]
        elif isinstance(at.rows, OwnRows) and at.where == "host":
            self.sent[at.tensor] = at
        elif isinstance(at.access, Stores):
            self._write(at)
        elif at.access == "read":
            self._read(at)


def _check_order(p: PassProgram) -> None:
    """Every chunk runs once; rows come from the disk before the body that needs them, and are copied but where the
    device is the host and wants every row of a chunk."""
    demand(not any(x.verb == "recall" for x in p.body), "the body recalls")
    may = p.view.active is None and not any(isinstance(x, moves.Wait) and x.event == "sent" for x in p.body)
    in_place = any(isinstance(x, Copy) and x.in_place for x in p.body)
    demand(may or not in_place, "rows that have come from the disk are not copied")
    batches = sorted(p.order)
    demand(batches in ([], list(range(p.schedule.shape[1]))), "batches are left out or run twice")
    for i in range(len(p.buffers) if batches else 0):
        ran = np.bincount(p.schedule[i], minlength=p.view.chunks)
        busy = p.view.num_dst[i * p.view.chunks : (i + 1) * p.view.chunks] > 0
        demand(bool((ran[busy] == 1).all()), f"device {i}: a chunk is left out or runs twice")


def _named(where: str, step: Callable[[], None]) -> None:
    """Have an error say where it is."""
    try:
        step()
    except ProgramError as error:
        raise ProgramError(f"{where}: {error}") from None
    except KeyError as error:
        raise ProgramError(f"{where}: {error} is not there") from None

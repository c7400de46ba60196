"""What one chunk's device computes, in the new form: registers are names of refs, and nothing more.

What autograd saved of a stage is read by whoever differentiates it, whether a register still has it or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from hongtu.plan.program import moves
from hongtu.plan.program.rows import FRONT, SOURCES, PartOfChunk
from tests.ledger.form import Alloc, Call, Chunk, Column, Copy, Free, Op, Ref, Space

if TYPE_CHECKING:
    from tests.ledger.lower import Lower


class Body:
    """The body of ``Compute`` for one chunk.

    Args:
        at: the pass; ``i``: the device; ``number``: of the chunk among all.
        registers: where everything is that was brought.
    """

    def __init__(self, at: Lower, i: int, number: int, registers: dict[str, Ref]) -> None:
        self.at, self.i, self.number, self.registers = at, i, number, registers
        self.space, self.count = Space("device", i), int(at.view.num_dst[number])
        self.first, self.end = (int(v) for v in at.view.chunk_start[number : number + 2])
        self.graph: list[Ref] = []  # what autograd has
        self.made: list[Ref] = []  # memory that layers took
        self.saves = False

    def run(self, x: moves.Compute) -> Iterator[Op]:
        for y in x.body:
            yield from getattr(self, y.kernel, self._any)(y)
            for name in y.drops:
                del self.registers[name]
        yield from map(Free, () if self.saves else self.made)

    def _any(self, x: moves.Call) -> Iterator[Op]:
        """A kernel that makes all that it gives."""
        reads, at = self._refs((*x.takes, *x.arrays)), self._at(x)
        if x.kernel == "stage" or (x.kernel == "aggregate" and x.settings["graph"]):
            self.graph += reads
        alias = x.kernel == "stage" and x.settings["keeps_input"]
        if alias:
            self.registers[x.gives[0]] = self.registers[x.takes[0]]
        for name in x.gives[alias:]:
            yield from self._make(name)
        made = self._refs(x.gives[alias:])
        self.graph += made if x.kernel == "stage" else ()
        added = () if at is None or x.at.access == "read" else (at,)
        if x.kernel != "new" or x.settings.get("zero"):
            yield Call(x.kernel, (*reads, *(() if at is None else (at,))), (*made, *added), self.space)

    def _at(self, x: moves.Call) -> Ref | None:
        if x.at is None or x.at.rows is not SOURCES:
            return None
        slots = self.at.slots_of(self.i, self.number)
        index = Column(np.asarray(slots, dtype=np.int64), self.registers["slot_of_source"])
        return Ref(x.at.tensor, self.space, index)

    def _make(self, name: str | None) -> Iterator[Op]:
        """A register in memory that layers take."""
        if name is not None:
            self.at.transient += 1
            ref = Ref(f"{name} of {self.number}, {self.at.p.name} {self.at.transient}", self.space)
            self.registers[name] = ref
            self.made.append(ref)
            yield Alloc(ref)

    def _refs(self, names: tuple[str | None, ...]) -> tuple[Ref, ...]:
        return tuple(self.registers[name] for name in names if name is not None)

    # ----------------------------------------------------------------------------------- kernels that give other memory

    def view(self, x: moves.Call) -> Iterator[Op]:
        (name,), own = x.gives, self.number - self.i * self.at.view.chunks
        if isinstance(x.at.rows, PartOfChunk):
            lo, hi = (int(x.at.rows.start[self.i][own + k]) for k in (0, 1))
            self.registers[name] = Ref(x.at.tensor, self.space, Chunk(lo, hi))
        elif x.at.rows is FRONT:
            self.registers[name] = self.at.device(self.i, x.at.tensor, 0, self.count)
        elif x.at.where == "device":
            self.registers[name] = self._own(x.at.tensor)
        else:
            ref = self.registers[name] = self.at.at.pieces[x.at.tensor, self.number]
            if x.settings["last"]:
                self.made.append(self.at.at.pieces.pop((x.at.tensor, self.number)))
            yield Call("view", (ref,), (), self.space)

    def _own(self, name: str) -> Ref:
        first = int(self.at.view.partition_start[self.i])
        return Ref(name, self.space, Chunk(self.first - first, self.end - first))

    def _picked(self, ref: Ref) -> Ref:
        """Of the chunk's rows those that the pass computes."""
        index = self.at._rows(self.number) - self.first
        return self.at.some(ref, index, self.registers.get("row_in_chunk"))

    def pick(self, x: moves.Call) -> Iterator[Op]:
        source, (name,) = self._picked(self.registers[x.takes[0]]), x.gives
        self.registers[name] = self.at.device(self.i, x.settings["buffer"], 0, self.count, self.at.step)
        yield Copy(self.registers[name], source)

    def copy(self, x: moves.Call) -> Iterator[Op]:
        for name in x.takes:
            source = self.registers[name]
            yield from self._make(name)
            yield Copy(self.registers[name], source)

    def dense(self, x: moves.Call) -> Iterator[Op]:
        reads, (name,) = self._refs(x.takes), x.gives
        self.registers[name] = self.at.device(self.i, x.settings["buffer"], 0, self.count, self.at.step)
        yield Call("dense", reads, (self.registers[name],), self.space)

    def enter(self, x: moves.Call) -> Iterator[Op]:
        return iter(())

    def sum(self, x: moves.Call) -> Iterator[Op]:
        yield Call("sum", (self._at(x), *self._refs(x.takes[:-1])), self._refs(x.gives), self.space)

    def sort_edges(self, x: moves.Call) -> Iterator[Op]:
        yield Call("sort_edges", self._refs(x.takes[:3]), self._refs(x.takes[3:]), self.space)

    def gather_moments(self, x: moves.Call) -> Iterator[Op]:
        moments = Ref("moments", self.space)
        yield Call("gather_moments", (*self._refs(x.takes), moments), (moments,), self.space)

    def write(self, x: moves.Call) -> Iterator[Op]:
        register, name, kept = x.takes[0], x.at.tensor, x.at.kept
        out, stores = self.registers[register], x.at.access.among(self.at._rows(self.number))
        if x.at.where == "host" and self.at.staged:
            yield Copy(self.at.device(self.i, f"deliver {name}", 0, self.count, self.at.step), out)
        elif x.at.where == "host":
            stores = stores if self.at._in_memory(kept, self.i, self.number) else True
            yield Copy(self.at.own_rows(name, self.i, self.number, kept), out, mode_of(stores))
        elif x.at.where == "device":
            there = self._own(name)
            yield Copy(self._picked(there) if len(x.takes) > 1 else there, out, mode_of(stores))
            if len(x.takes) == 1:
                self.registers[register] = there
        else:
            before = self.at.at.pieces.get((name, self.number))
            ref = Ref(f"{name} of chunk {self.number}", self.space)
            self.at.at.pieces[name, self.number] = self.registers[register] = ref
            if before is None:
                yield Alloc(ref, stays=True)
            yield Copy(ref, out, mode_of(stores))

    def save(self, x: moves.Call) -> Iterator[Op]:
        self.saves = True
        self.at.at.saved[x.settings["stage"], self.number] = [*self.graph], [*self.made]
        return iter(())

    def resume(self, x: moves.Call) -> Iterator[Op]:
        graph, made = self.at.at.saved.pop((x.settings["stage"], self.number))
        self.graph += graph
        self.made += made
        return iter(())

    def differentiate(self, x: moves.Call) -> Iterator[Op]:
        reads = (*self._refs(x.takes), *self.graph)
        for name in x.gives:
            yield from self._make(name)
        yield Call("differentiate", reads, self._refs(x.gives), self.space)


def mode_of(stores: Any) -> Any:
    return stores if isinstance(stores, np.ndarray) else "store" if stores else "add"

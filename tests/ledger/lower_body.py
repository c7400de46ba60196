"""What one chunk's device computes, in the new form: registers are names of refs, and nothing more.

What autograd saved of a stage is read by whoever differentiates it, whether a register still has it or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from hongtu.plan.program import computing, moves
from tests.ledger.form import Alloc, Call, Chunk, Column, Copy, Free, Op, Ref, Space

if TYPE_CHECKING:
    from tests.ledger.lower import Lower

STRUCTURE = (
    "ids", "statistics", "factors", "indptr", "local_source", "slot_of_source", "edge_weight", "edge_features",
    "edge_type", "sources", "edge_id_start", "active",
)  # fmt: skip


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
            yield from getattr(self, y.verb)(y)
        yield from map(Free, () if self.saves else self.made)

    # ------------------------------------------------------------------------------------------------------- at hand

    def new(self, x: computing.New) -> Iterator[Op]:
        yield from self._make(x.name)
        if x.zero:
            yield self._call("zero", (), (x.name,))

    def _make(self, name: str | None) -> Iterator[Op]:
        """A register in memory that layers take."""
        if name is not None:
            self.at.transient += 1
            ref = Ref(f"{name} of {self.number}, {self.at.p.name} {self.at.transient}", self.space)
            self.registers[name] = ref
            self.made.append(ref)
            yield Alloc(ref)

    def _call(self, kernel: str, reads: tuple[str | Ref | None, ...], writes: tuple[str | Ref | None, ...]) -> Call:
        return Call(kernel, self._refs(reads), self._refs(writes), self.space)

    def _refs(self, names: tuple[str | Ref | None, ...]) -> tuple[Ref, ...]:
        found = (name if isinstance(name, Ref | None) else self.registers[name] for name in names)
        return tuple(ref for ref in found if ref is not None)

    def _structure(self) -> tuple[str, ...]:
        return tuple(name for name in STRUCTURE if name in self.registers)

    def here(self, x: computing.Here) -> Iterator[Op]:
        own = self.number - self.i * self.at.view.chunks
        lo, hi = (int(x.start[self.i][own + k]) for k in (0, 1))
        self.registers[x.name] = Ref(x.buffer, self.space, Chunk(lo, hi))
        return iter(())

    def _own(self, name: str) -> Ref:
        first = int(self.at.view.partition_start[self.i])
        return Ref(name, self.space, Chunk(self.first - first, self.end - first))

    def own(self, x: computing.Own) -> Iterator[Op]:
        self.registers[x.name] = self._own(x.tensor)
        return iter(())

    def _picked(self, ref: Ref) -> Ref:
        """Of the chunk's rows those that the pass computes."""
        index = self.at._rows(self.number) - self.first
        return self.at.some(ref, index, self.registers.get("row_in_chunk"))

    def pick(self, x: computing.Pick) -> Iterator[Op]:
        source = self._picked(self.registers[x.name])
        self.registers[x.name] = self.at.device(self.i, x.name, 0, self.count, self.at.step)
        yield Copy(self.registers[x.name], source)

    def front(self, x: computing.Front) -> Iterator[Op]:
        self.registers[x.name] = self.at.device(self.i, x.buffer, 0, self.count)
        return iter(())

    def take(self, x: computing.Take) -> Iterator[Op]:
        ref = self.registers[x.name] = self.at.at.pieces[x.name, self.number]
        if x.last:
            self.made.append(self.at.at.pieces.pop((x.name, self.number)))
        yield Call("take", (ref,), (), self.space)

    def copy(self, x: computing.Copy) -> Iterator[Op]:
        for name in x.names:
            source = self.registers[name]
            yield from self._make(name)
            yield Copy(self.registers[name], source)

    def dense(self, x: computing.Dense) -> Iterator[Op]:
        parts = tuple(f"{x.name} {part}" for part in ("start", "value", "column"))
        self.registers[x.name] = self.at.device(self.i, x.name, 0, self.count, self.at.step)
        yield self._call("dense", parts, (x.name,))

    def drop(self, x: computing.Drop) -> Iterator[Op]:
        for name in x.names:
            del self.registers[name]
        return iter(())

    def enter(self, x: computing.Enter) -> Iterator[Op]:
        return iter(())

    # ---------------------------------------------------------------------------------------------------- aggregates

    def _cache(self, name: str) -> Ref:
        slots = self.at.slots_of(self.i, self.number)
        return Ref(name, self.space, Column(np.asarray(slots, dtype=np.int64), self.registers["slot_of_source"]))

    def gather(self, x: computing.Gather) -> Iterator[Op]:
        yield from self._make(x.into)
        yield self._call("gather", (self._cache(x.cache),), (x.into,))

    def sum(self, x: computing.Sum) -> Iterator[Op]:
        yield self._call("sum", (self._cache(x.cache), *self._structure()), (x.a,))

    def aggregate(self, x: computing.Aggregate) -> Iterator[Op]:
        reads = self._refs((*x.reads, *self._structure()))
        self.graph += reads
        yield from self._make(x.a)
        yield Call("aggregate", reads, self._refs((x.a,)), self.space)

    def combine(self, x: computing.Combine) -> Iterator[Op]:
        reads = self._refs((*x.reads, *self._structure()))
        yield from self._make(x.a)
        yield Call("combine", reads, self._refs((x.a,)), self.space)

    def transpose_sum(self, x: computing.TransposeSum) -> Iterator[Op]:
        cache = self._cache(x.cache)
        yield self._call("transpose sum", (*x.reads, *self._structure(), cache), (cache,))

    transpose_aggregate = add_to_cache = transpose_sum  # type: ignore[assignment]

    # -------------------------------------------------------------------------------------------------------- stages

    def stage(self, x: computing.Stage) -> Iterator[Op]:
        reads = self._refs((*x.reads, *self._structure()))
        self.graph += reads
        base = self.registers[x.base]
        for k, name in enumerate(x.gives):
            if k == 0 and x.keeps_input:
                self.registers[name] = base
            else:
                yield from self._make(name)
        made = self._refs(x.gives[1:] if x.keeps_input else x.gives)
        self.graph += made
        yield Call("stage", reads, made, self.space)

    def gather_moments(self, x: computing.GatherMoments) -> Iterator[Op]:
        moments = Ref("moments", self.space)
        yield self._call("gather moments", (x.name, moments), (moments,))

    def loss(self, x: computing.Loss) -> Iterator[Op]:
        reads = self._refs((x.output, "labels", "loss_bits"))
        yield from self._make(x.gradient)
        yield Call("loss", reads, self._refs((x.gradient,)), self.space)

    def add(self, x: computing.Add) -> Iterator[Op]:
        reads = self._refs(x.parts)
        yield from self._make(x.name)
        yield Call("add", reads, self._refs((x.name,)), self.space)

    def write(self, x: computing.Write) -> Iterator[Op]:
        out, rows = self.registers[x.register], self.at._rows(self.number)
        stores = x.stores.of(rows)
        if x.where == "host" and self.at.staged:
            yield Copy(self.at.device(self.i, f"deliver {x.name}", 0, self.count, self.at.step), out)
        elif x.where == "host":
            stores = stores if self.at._in_memory(x.kept, self.i, self.number) else True
            yield Copy(self.at.own_rows(x.name, self.i, self.number, x.kept), out, mode_of(stores))
        elif x.where == "device":
            there = self._own(x.name)
            yield Copy(self._picked(there) if x.picked else there, out, mode_of(stores))
            if not x.picked:
                self.registers[x.register] = there
        else:
            before = self.at.at.pieces.get((x.name, self.number))
            ref = Ref(f"{x.name} of chunk {self.number}", self.space)
            self.at.at.pieces[x.name, self.number] = self.registers[x.register] = ref
            if before is None:
                yield Alloc(ref, stays=True)
            yield Copy(ref, out, mode_of(stores))

    def save(self, x: computing.Save) -> Iterator[Op]:
        self.saves = True
        self.at.at.saved[x.stage, self.number] = [*self.graph], [*self.made]
        return iter(())

    def resume(self, x: computing.Resume) -> Iterator[Op]:
        graph, made = self.at.at.saved.pop((x.stage, self.number))
        self.graph += graph
        self.made += made
        return iter(())

    def through_moments(self, x: computing.ThroughMoments) -> Iterator[Op]:
        reads = self._refs((x.x, x.gradient))
        yield from self._make(x.gradient)
        yield Call("through moments", reads, self._refs((x.gradient,)), self.space)

    def differentiate(self, x: computing.Differentiate) -> Iterator[Op]:
        reads = (*self._refs(x.gradients), *self.graph)
        for name in x.gives:
            yield from self._make(name)
        yield Call("differentiate", reads, self._refs(x.gives), self.space)

    def uncombine(self, x: computing.Uncombine) -> Iterator[Op]:
        reads = self._refs((x.gradient,))
        for name in x.gives:
            yield from self._make(name)
        yield Call("uncombine", reads, self._refs(x.gives), self.space)


def mode_of(stores: Any) -> Any:
    return stores if isinstance(stores, np.ndarray) else "store" if stores else "add"

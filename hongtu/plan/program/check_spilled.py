"""What lies on the disk, and what staging memory has of it, as the program moves it: the checker's memory."""

from __future__ import annotations

import numpy as np

from hongtu.plan.memory.disk import Kept, Region
from hongtu.plan.program.check_slots import demand
from hongtu.plan.program.moves import Ref
from hongtu.plan.program.on_disk import Bucket, Laid, Summed
from hongtu.plan.program.program import PassProgram


class Spilled:
    """The rows of a program's tensors that lie on the disk.

    Attributes:
        own: by first byte, bool [V], the vertices whose own rows are there.
        taken: by region, the chunks whose rows are there for others to load, of every device.
        flushed: by region, the batches whose rows are there.
        here: what staging memory has in this batch: a tensor's own rows, or a bucket of it; and which rows are in
            memory all the same.
    """

    def __init__(self) -> None:
        self.own: dict[int, np.ndarray] = {}
        self.taken: dict[int, set[tuple[int, int]]] = {}
        self.flushed: dict[int, set[int]] = {}
        self.here: dict[tuple[str, str], Kept] = {}

    def begin(self, p: PassProgram, batch: int) -> None:
        """A batch begins: nothing is at hand."""
        self._p, self._batch, self._chunks = p, batch, p.busy(batch)
        self.here.clear()

    def on_disk(self, kept: Kept | None) -> list[tuple[int, int]]:
        """The chunks of the batch whose rows of a tensor are there."""
        start = self._p.view.chunk_start
        return [(i, chunk) for i, chunk in self._chunks if kept is not None and not kept.has(i, int(start[chunk]))]

    def recall(self, there: Ref) -> None:
        """Rows come to staging memory."""
        name, rows = there.tensor, there.rows
        assert there.kept is not None
        if isinstance(rows, Summed):
            for i, number in self.on_disk(there.kept):
                self._sum(name, rows, there.kept, i, number)
        elif isinstance(rows, Bucket):
            for i, buckets in enumerate(rows.region.buckets):
                wanted = {(i, int(chunk)) for chunk in np.flatnonzero(buckets.count[self._batch])}
                left = wanted - self.taken.get(id(rows.region), set())
                demand(not left, f"device {i}: {name} of chunks {sorted(c for _, c in left)} was never spilled")
        self.here[name, "bucket" if isinstance(rows, Bucket) else "rows"] = there.kept

    def _sum(self, name: str, rows: Summed, kept: Kept, i: int, number: int) -> None:
        """What was given of a chunk."""
        view = self._p.view
        known, chunk = np.zeros(int(kept.at(view.num_vertices)), dtype=np.bool_), number - i * view.chunks
        first, end = (int(kept.at(v)) for v in view.chunk_start[number : number + 2])
        for given in rows.given:
            if given.own is not None:
                there = self.own.get(given.own, np.zeros_like(known))[given.own_rows(first, end)]
                demand(bool(there.all()), f"{name} of chunk {number} was never spilled")
            for region in () if given.flushed is None else (given.flushed,):
                wanted = np.flatnonzero(region.buckets[i].count[:, chunk])
                left = set(wanted.tolist()) - self.flushed.get(id(region), set())
                demand(not left, f"{name}: what batches {sorted(left)} flush was never spilled")
            for piece in given.pieces(i, chunk, first, end, 0):
                stored = np.broadcast_to(piece.stores, piece.row.shape)
                for store, row in zip(stored, piece.row, strict=True):
                    demand(not (store and known[row]), f"a later writer of row {row} of {name} stores")
                    known[row] = True
        alone = len(rows.given) == 1 and rows.given[0].flushed is None
        demand(alone or not rows.straight, f"{name} has to be added up")

    def spill(self, there: Ref) -> None:
        """Rows leave staging memory."""
        rows = there.rows
        if isinstance(rows, Bucket):
            self.flushed.setdefault(id(rows.region), set()).add(self._batch)
            return
        assert isinstance(rows, Laid)
        if rows.own is not None:
            assert there.kept is not None
            every = int(there.kept.at(self._p.view.num_vertices))
            known = self.own.setdefault(rows.own, np.zeros(every, dtype=np.bool_))
            for _, number in self.on_disk(there.kept):
                known[slice(*there.kept.at(self._p.view.chunk_start[number : number + 2]))] = True
        self._give(rows.takers)

    def _give(self, takers: tuple[Region, ...]) -> None:
        for region in takers:
            chunks = {(i, number - i * self._p.view.chunks) for i, number in self._chunks}
            self.taken.setdefault(id(region), set()).update(chunks)

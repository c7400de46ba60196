"""What a checked program has on the disk, and in the staging memory between it and the host."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hongtu.plan.memory.host import Kept
from hongtu.plan.program.on_disk import Bucket, Laid, Summed, Target
from hongtu.plan.program.program import PassProgram
from hongtu.plan.program.ref import Ref
from tests.checker.held import VALUE, ZERO, Held, demand


class Spilled:
    """The rows of a program's tensors that lie on the disk, where each is a byte, or are on their way in a batch."""

    def __init__(self) -> None:
        # rows written together, what they have; by memory and first byte
        self._there: dict[tuple[str, int], tuple[np.ndarray, np.ndarray]] = {}

    def begin(self, p: PassProgram, batch: int) -> None:
        """A batch begins: nothing is on its way."""
        self._view, self._batch, self._chunks = p.view, batch, p.busy(batch)
        self._staging: dict[tuple[str, str, int], Held] = {}  # by tensor, what of it, and device
        self._recalled: dict[str, Kept | None] = {}  # by tensor whose own rows have come, which are in memory

    def on_disk(self, kept: Kept | None) -> list[tuple[int, int]]:
        """The chunks of the batch whose rows of a tensor are there, each behind its device."""
        start = self._view.chunk_start
        return [(i, chunk) for i, chunk in self._chunks if kept is not None and not kept.has(i, int(start[chunk]))]

    def demand_recalled(self, src: Ref) -> None:
        """Own rows that are read have come as the reader has it."""
        same = self._recalled.get(src.tensor) is src.kept
        demand(same, f"the rows of {src.tensor} that are on the disk are not those that were recalled")

    def own(self, ref: Ref, i: int, chunk: int, *, writes: bool) -> Held:
        """Staging memory of all own rows of a chunk; whoever ``writes`` has it made."""
        key = ref.tensor, "rows", i
        if writes and key not in self._staging:
            self._stage(key, np.arange(*self._span(ref, chunk)))
        return self._staging[key]

    def _span(self, ref: Ref, chunk: int) -> tuple[int, int]:
        """The first of a chunk's rows, and the one behind its last."""
        assert ref.kept is not None
        first, end = ref.kept.at(self._view.chunk_start[chunk : chunk + 2]).tolist()
        return first, end

    def bucket(self, name: str, i: int, rows: np.ndarray, *, writes: bool) -> Held:
        """That of the rows that a batch loads or flushes, by row."""
        key = name, "bucket", i
        return self._stage(key, np.sort(rows)) if writes else self._staging[key]

    def _stage(self, key: tuple[str, str, int], rows: np.ndarray) -> Held:
        made = self._staging[key] = Held(f"the {key[1]} of {key[0]}", len(rows))
        made.row = rows
        return made

    def recall(self, there: Ref, host: list[Held] | None) -> None:
        """Rows come to staging memory; those of a bucket that are in memory from there."""
        rows, name = there.rows, there.tensor
        if isinstance(rows, Bucket):
            for i, buckets in enumerate(rows.region.buckets):
                bucket = self.bucket(name, i, rows.picks.column("row", i, self._batch), writes=True)
                here, lies = buckets.in_memory(self._batch), buckets.of_batch(self._batch)
                if here:
                    demand(host is not None, f"{name} is not there")
                    host[0].read(bucket.row[:here])
                bucket.has[:here] = VALUE
                bucket.has[here:] = self._get(rows.region.begin[i] + lies.start, bucket.row[here:], there)
            return
        self._recalled[name] = there.kept
        for i, chunk in self.on_disk(there.kept):
            own = self.own(there, i, chunk, writes=True)
            own.has[:] = ZERO if isinstance(rows, Summed) else VALUE
            if isinstance(rows, Summed):
                self._add_up(there, rows, own, i, chunk)

    def _add_up(self, there: Ref, rows: Summed, own: Held, i: int, chunk: int) -> None:
        """What passes gave of a chunk."""
        name, (first, end), number = there.tensor, self._span(there, chunk), chunk - i * self._view.chunks
        pieces = [piece for given in rows.given for piece in given.pieces(i, number, first, end, 1)]
        alone = len(own.row) == 0 or (len(pieces) == 1 and len(pieces[0].row) == len(own.row))
        demand(alone or not rows.straight, f"{name} has to be added up")
        for piece in pieces:
            has = self._get(piece.begin, piece.row if piece.take is None else own.row, there)
            has = has if piece.take is None else has[piece.take]
            demand(bool((has == VALUE).all()), f"{name} of chunk {chunk} was never spilled")
            own.write(piece.row - first, piece.stores)

    def spill(self, there: Ref) -> None:
        """Rows leave staging memory."""
        rows, name = there.rows, there.tensor
        if isinstance(rows, Bucket):
            for i, buckets in enumerate(rows.region.buckets):
                bucket = self._staging[name, "bucket", i]
                bucket.read(np.arange(buckets.in_memory(self._batch), len(bucket.row)))
                self._put(bucket, rows.places(i, self._batch, 1), there.where)
            return
        assert isinstance(rows, Laid)
        for i, chunk in self.on_disk(there.kept):
            number, span = chunk - i * self._view.chunks, self._span(there, chunk)
            self._put(self._staging[name, "rows", i], rows.places(i, number, *span, 1), there.where)

    def _put(self, held: Held, places: Iterable[Target], where: str) -> None:
        for begin, which in places:
            if len(rows := held.row[which]):  # else it lies nowhere, and those of another chunk may
                self._there[where, begin] = rows, held.has[which]

    def _get(self, begin: int, rows: np.ndarray, there: Ref) -> np.ndarray:
        """int8 [K]: what these rows have, which lie behind one another."""
        found, at = [np.zeros(0, np.int8)], 0
        while at < len(rows):
            lie, has = self._there.get((there.where, begin + at), (rows[:0], found[0]))
            demand(len(lie) > 0 and np.array_equal(lie, rows[at:][: len(lie)]), f"{there.tensor} was never spilled")
            found.append(has)
            at += len(lie)
        return np.concatenate(found)

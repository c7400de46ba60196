"""Rows that go between the host and the disk, in the new form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hongtu.plan.memory.host import Kept
from hongtu.plan.program import moves
from hongtu.plan.program.on_disk import Bucket, Summed
from tests.ledger.form import DISK, HOST, Call, Chunk, Column, Copy, Op, Ref
from tests.ledger.lower_body import mode_of


class OnDisk:
    """Of a pass: a method for each kind of instruction."""

    at: Any
    p: Any
    view: Any
    devices: range
    batch: int
    step: int
    beside: Any
    some: Any
    _in_memory: Any

    def disk(self, begin: int, count: int, row: int) -> Ref:
        return Ref("file", DISK, Chunk(begin, begin + count * row))

    def _window(self, name: str, i: int, number: int) -> Ref:
        first, end = (int(v) for v in self.view.chunk_start[number : number + 2])
        return self.beside(i, f"disk {name}", 0, end - first, self.step)

    def _on_disk(self, kept: Kept) -> list[tuple[int, int]]:
        return [one for one in self.p.busy(self.batch) if not self._in_memory(kept, *one)]

    def recall(self, x: moves.Copy) -> Iterator[Op]:
        there, row = x.src, self.at.row(x.src.tensor)
        if isinstance(there.rows, Bucket):
            yield from self._recall_bucket(there.tensor, there.rows, there.kept, row)
            return
        for i, number in self._on_disk(there.kept):
            first, end = (int(v) for v in self.view.chunk_start[number : number + 2])
            into = self._window(there.tensor, i, number)
            if not isinstance(there.rows, Summed):
                row = 4 * self.at.width[there.tensor]
                yield Copy(into, Ref("artifact", DISK, Chunk(first * row, end * row)))
                continue
            where = i, number - i * self.view.chunks, first, end
            pieces = [piece for of in there.rows.given for piece in of.pieces(*where, row)]
            if there.rows.straight:
                yield Copy(into, self.disk(pieces[0].begin, end - first, row))
                continue
            yield Call("zero", (), (into,), into.space)
            for piece in pieces:
                parts = self.beside(i, f"parts {there.tensor}", 0, piece.rows, 0)
                yield Copy(parts, self.disk(piece.begin, piece.rows, row))
                taken = parts if piece.take is None else self.some(parts, piece.take)
                yield Copy(self.some(into, piece.row - first), taken, mode_of(piece.stores))

    def _recall_bucket(self, name: str, rows: Bucket, kept: Kept, row: int) -> Iterator[Op]:
        for i in self.devices:
            buckets = rows.region.buckets[i]
            lies, here = buckets.of_batch(self.batch), buckets.in_memory(self.batch)
            if here:
                places = kept.places(np.sort(rows.picks.column("row", i, self.batch)))
                bucket = self.beside(i, f"bucket {name}", 0, here, self.step)
                yield Copy(bucket, Ref(name, HOST, Column(places)))
            count = lies.stop - lies.start
            if count:
                bucket = self.beside(i, f"bucket {name}", here, here + count, self.step)
                yield Copy(bucket, self.disk(rows.region.begin[i] + lies.start * row, count, row))

    def spill(self, x: moves.Copy) -> Iterator[Op]:
        there, row = x.dst, self.at.row(x.dst.tensor)
        if isinstance(there.rows, Bucket):
            yield from self._spill_bucket(there.tensor, there.rows, row)
            return
        for i, number in self._on_disk(there.kept):
            first, end = (int(v) for v in self.view.chunk_start[number : number + 2])
            window = self._window(there.tensor, i, number)
            if there.rows.own is not None and there.rows.laid is None:
                yield Copy(self.disk(there.rows.own + first * row, end - first, row), window)
            elif there.rows.own is not None:  # the rows that the pass computes, behind one another
                before = int((there.rows.laid < first).sum())
                rows = self.view.destinations(number) - first
                yield Copy(self.disk(there.rows.own + before * row, len(rows), row), self.some(window, rows))
            for region in there.rows.takers:  # rows for the batches that load them
                buckets, own = region.buckets[i], number - i * self.view.chunks
                for lo, count in zip(buckets.begin[:, own].tolist(), buckets.count[:, own].tolist(), strict=True):
                    if count:
                        taken = self.some(window, buckets.rows(slice(lo, lo + count)) - first)
                        yield Copy(self.disk(region.begin[i] + lo * row, count, row), taken)

    def _spill_bucket(self, name: str, rows: Bucket, row: int) -> Iterator[Op]:
        for i in self.devices:
            buckets = rows.region.buckets[i]
            at = buckets.in_memory(self.batch)
            for lo, count in zip(buckets.begin[self.batch].tolist(), buckets.count[self.batch].tolist(), strict=True):
                if count:
                    bucket = self.beside(i, f"bucket {name}", at, at + count, self.step)
                    yield Copy(self.disk(rows.region.begin[i] + lo * row, count, row), bucket)
                at += count

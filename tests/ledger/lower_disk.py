"""Rows that go between the host and the disk, in the new form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hongtu.plan.memory.disk import Kept
from hongtu.plan.program import spilling
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

    def recall_given(self, x: spilling.RecallGiven) -> Iterator[Op]:
        for i, number in self._on_disk(x.kept):
            first, end = (int(v) for v in self.view.chunk_start[number : number + 2])
            row = 4 * self.at.width[x.name]
            yield Copy(self._window(x.name, i, number), Ref("artifact", DISK, Chunk(first * row, end * row)))

    def recall(self, x: spilling.Recall) -> Iterator[Op]:
        row = self.at.row(x.name)
        for i, number in self._on_disk(x.kept):
            first, end = (int(v) for v in self.view.chunk_start[number : number + 2])
            into = self._window(x.name, i, number)
            where = i, number - i * self.view.chunks, first, end
            pieces = [piece for of in x.given for piece in of.pieces(*where, row)]
            if x.straight:
                yield Copy(into, self.disk(pieces[0].begin, end - first, row))
                continue
            yield Call("zero", (), (into,), into.space)
            for piece in pieces:
                parts = self.beside(i, f"parts {x.name}", 0, piece.rows, 0)
                yield Copy(parts, self.disk(piece.begin, piece.rows, row))
                taken = parts if piece.take is None else self.some(parts, piece.take)
                yield Copy(self.some(into, piece.row - first), taken, mode_of(piece.stores))

    def recall_picks(self, x: spilling.RecallPicks) -> Iterator[Op]:
        row = self.at.row(x.tensor)
        for i in self.devices:
            buckets = x.region.buckets[i]
            lies, here = buckets.of_batch(self.batch), buckets.in_memory(self.batch)
            if here:
                places = x.kept.places(np.sort(x.picks.column("row", i, self.batch)))
                bucket = self.beside(i, f"bucket {x.tensor}", 0, here, self.step)
                yield Copy(bucket, Ref(x.tensor, HOST, Column(places)))
            count = lies.stop - lies.start
            if count:
                bucket = self.beside(i, f"bucket {x.tensor}", here, here + count, self.step)
                yield Copy(bucket, self.disk(x.region.begin[i] + lies.start * row, count, row))

    def spill(self, x: spilling.Spill) -> Iterator[Op]:
        row = self.at.row(x.name)
        for i, number in self._on_disk(x.kept):
            first, end = (int(v) for v in self.view.chunk_start[number : number + 2])
            if x.own is not None:
                yield Copy(self.disk(x.own + first * row, end - first, row), self._window(x.name, i, number))
            yield from self._give(x, i, number)

    def _give(self, x: spilling.Spill, i: int, number: int) -> Iterator[Op]:
        """A chunk's rows to the batches that load them."""
        row, first = self.at.row(x.name), int(self.view.chunk_start[number])
        own, window = number - i * self.view.chunks, self._window(x.name, i, number)
        for region in x.takers:
            buckets = region.buckets[i]
            for lo, count in zip(buckets.begin[:, own].tolist(), buckets.count[:, own].tolist(), strict=True):
                if count:
                    taken = self.some(window, buckets.rows(slice(lo, lo + count)) - first)
                    yield Copy(self.disk(region.begin[i] + lo * row, count, row), taken)

    def spill_picks(self, x: spilling.SpillPicks) -> Iterator[Op]:
        row = self.at.row(x.tensor)
        for i in self.devices:
            buckets = x.region.buckets[i]
            at = buckets.in_memory(self.batch)
            for lo, count in zip(buckets.begin[self.batch].tolist(), buckets.count[self.batch].tolist(), strict=True):
                if count:
                    bucket = self.beside(i, f"bucket {x.tensor}", at, at + count, self.step)
                    yield Copy(self.disk(x.region.begin[i] + lo * row, count, row), bucket)
                at += count

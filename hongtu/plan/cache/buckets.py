"""The order in which rows lie on a disk that go from the chunks of one pass to the batches of another, or back.

Rows that a pass loads lie batch by batch, a bucket for each, so that one read brings it; those that its caches let go
lie chunk by chunk, so that one read brings all that was added to a chunk's gradients.

Legend: K intervals of one device's cache, B batches, n chunks of its partition.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal

import numpy as np

from hongtu.plan.cache.intervals import Intervals

Side = Literal["batch", "chunk"]


@dataclass(frozen=True, eq=False)
class Buckets:
    """Rows of one device, in their order on the disk; sorted when somebody asks for it.

    Attributes:
        loads: the intervals.
        chunk_start: int64 [n + 1], where the chunks of its partition begin.
        order: of the batches, as the pass visits them.
        by: what comes first.
        retiring: a batch handles the intervals that retire after it, else those that open before it.
        every: int64 [B, n], how many go between a batch and a chunk.
        begins: the first row that lies on the disk; those of the chunks before it are in memory.
    """

    loads: Intervals
    chunk_start: np.ndarray
    order: range
    by: Side
    retiring: bool
    every: np.ndarray
    begins: int = 0

    @cached_property
    def count(self) -> np.ndarray:
        """int64 [B, n], how many of them lie on the disk."""
        return self.every * (self.chunk_start[:-1] >= self.begins)

    @cached_property
    def _length(self) -> int:
        return int(self.count.sum())

    def __len__(self) -> int:
        return self._length

    @property
    def nbytes(self) -> int:
        """What the arrays take."""
        return 4 * len(self) + self.tables

    @property
    def tables(self) -> int:
        """Bytes of those that have an entry for each batch and chunk, however large these are."""
        return 24 * self.every.size

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        return self.interval, self.begin, self.count, self.every

    @cached_property
    def interval(self) -> np.ndarray:
        """int32 [K], in their order; those of a batch and chunk by row."""
        row, batch, count = self.loads.row, self.loads.last if self.retiring else self.loads.first, self.count
        lies = np.flatnonzero(row >= self.begins)
        order = lies[np.lexsort((row[lies], batch[lies]))]  # so by batch, and in it by chunk
        interval, before = np.empty(len(order), dtype=np.int32), np.cumsum(count).reshape(count.shape) - count
        interval[np.arange(len(order)) + np.repeat((self.begin - before).ravel(), count.ravel())] = order
        return interval

    def rows(self, lies: slice) -> np.ndarray:
        """int32, the vertices of some of them."""
        found: np.ndarray = self.loads.row[self.interval[lies]]
        return found

    @cached_property
    def begin(self) -> np.ndarray:
        """int64 [B, n], the first of each batch and chunk."""
        order, found = list(self.order), np.empty_like(self.count)
        visited = self.count[order] if self.by == "batch" else self.count[order].T
        first = (np.cumsum(visited) - visited.ravel()).reshape(visited.shape)
        found[order] = first if self.by == "batch" else first.T
        return found

    def in_memory(self, batch: int) -> int:
        """How many rows of a batch do not lie on the disk; they come first, where its rows are sorted."""
        return int(self.every[batch].sum() - self.count[batch].sum())

    @property
    def most_of_batch(self) -> int:
        """The most rows that a batch handles, those in memory among them."""
        return int(self.every.sum(axis=1).max(initial=0))

    @property
    def most_of_chunk(self) -> int:
        """The most rows of a chunk that lie on the disk."""
        return int(self.count.sum(axis=0).max(initial=0))

    def of_batch(self, batch: int) -> slice:
        """Those of a batch, where they lie batch by batch."""
        return slice(int(self.begin[batch].min()), int(self.begin[batch].min() + self.count[batch].sum()))

    def of_chunk(self, chunk: int) -> slice:
        """Those of a chunk, where they lie chunk by chunk."""
        return slice(int(self.begin[:, chunk].min()), int(self.begin[:, chunk].min() + self.count[:, chunk].sum()))


def make_buckets(loads: Intervals, chunk_start: np.ndarray, order: range, by: Side, *, retiring: bool) -> Buckets:
    """All intervals of a device, as for ``Buckets``.

    >>> from dataclasses import replace
    >>> from hongtu.plan.cache.intervals import make_intervals
    >>> of = [np.array(column, dtype=np.int32) for column in ([1, 3, 0, 2], [0, 1, 2, 3], [0, 0, 1, 1], [0, 1, 1, 1])]
    >>> loads = make_intervals(*of, num_batches=2)  # batch 0 opens rows 1 and 3, batch 1 rows 0 and 2
    >>> make_buckets(loads, np.array([0, 2, 4]), range(2), "batch", retiring=False).rows(slice(4)).tolist()
    [1, 3, 0, 2]
    >>> found = make_buckets(loads, np.array([0, 2, 4]), range(2), "chunk", retiring=False)
    >>> found.rows(slice(4)).tolist(), replace(found, begins=2).rows(slice(2)).tolist()
    ([1, 0, 3, 2], [3, 2])
    """
    batch, shape = loads.last if retiring else loads.first, (len(order), len(chunk_start) - 1)
    chunk = np.searchsorted(chunk_start, loads.row, side="right") - 1
    every = np.bincount(batch * np.int64(shape[1]) + chunk, minlength=prod(shape)).reshape(shape)
    return Buckets(loads, chunk_start, order, by, retiring, every)

"""The order in which rows lie on a disk that go from the chunks of one pass to the batches of another, or back.

Rows that a pass loads lie batch by batch, a bucket for each, so that one read brings it; those that its caches let go
lie chunk by chunk, so that one read brings all that was added to a chunk's gradients.

Legend: K intervals of one device's cache, B batches, n chunks of its partition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from hongtu.plan.cache.intervals import Intervals

Side = Literal["batch", "chunk"]


@dataclass(frozen=True)
class Buckets:
    """Rows of one device, in their order on the disk.

    Attributes:
        row: int32 [K], vertex of each; ``interval``: int32 [K], its interval.
        begin, count: int64 [B, n], which of them go between a batch and a chunk: the first, and how many.
    """

    row: np.ndarray
    interval: np.ndarray
    begin: np.ndarray
    count: np.ndarray

    def __len__(self) -> int:
        return len(self.row)

    def most(self, side: Side) -> int:
        """The most rows of a batch, or of a chunk."""
        return int(self.count.sum(axis=1 if side == "batch" else 0).max(initial=0))

    def of_batch(self, batch: int) -> slice:
        """Those of a batch, where they lie batch by batch."""
        return slice(int(self.begin[batch].min()), int(self.begin[batch].min() + self.count[batch].sum()))

    def of_chunk(self, chunk: int) -> slice:
        """Those of a chunk, where they lie chunk by chunk."""
        return slice(int(self.begin[:, chunk].min()), int(self.begin[:, chunk].min() + self.count[:, chunk].sum()))


def make_buckets(loads: Intervals, chunk_start: np.ndarray, order: range, by: Side, *, retiring: bool) -> Buckets:
    """Sort the intervals of a device by the batch that handles them and the chunk of their row.

    Args:
        chunk_start: int64 [n + 1], where the chunks of its partition begin.
        order: of the batches, as the pass visits them.
        by: what comes first.
        retiring: a batch handles the intervals that retire after it, else those that open before it.

    >>> from hongtu.plan.cache.intervals import make_intervals
    >>> of = [np.array(column, dtype=np.int32) for column in ([1, 3, 0, 2], [0, 1, 2, 3], [0, 0, 1, 1], [0, 1, 1, 1])]
    >>> loads = make_intervals(*of, num_batches=2)  # batch 0 opens rows 1 and 3, batch 1 rows 0 and 2
    >>> make_buckets(loads, np.array([0, 2, 4]), range(2), "batch", retiring=False).row.tolist()
    [1, 3, 0, 2]
    >>> make_buckets(loads, np.array([0, 2, 4]), range(2), "chunk", retiring=False).row.tolist()
    [1, 0, 3, 2]
    """
    batches, chunks = len(order), len(chunk_start) - 1
    batch = loads.last if retiring else loads.first
    step = np.empty(batches, dtype=np.int64)
    step[list(order)] = np.arange(batches)
    chunk = np.searchsorted(chunk_start, loads.row, side="right") - 1
    keys = (chunk, step[batch]) if by == "batch" else (step[batch], chunk)
    interval = np.lexsort((loads.row, *keys)).astype(np.int32)
    count = np.bincount(batch * np.int64(chunks) + chunk, minlength=batches * chunks).reshape(batches, chunks)
    visited = count[list(order)] if by == "batch" else count[list(order)].T
    begin = np.empty_like(count)
    first = (np.cumsum(visited) - visited.ravel()).reshape(visited.shape)
    begin[list(order)] = first if by == "batch" else first.T
    return Buckets(loads.row[interval], interval, begin, count)

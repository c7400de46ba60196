"""Which vertices each step of an epoch is for: known from the seed alone, before the epoch.

Legend: N vertices to train on, m partitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hongtu.nn.dropout import dropout_key, hashes

_STEP, _ORDER = 0, 1  # what random numbers are for


@dataclass(frozen=True, eq=False)
class Step:
    """One step of all ranks.

    Attributes:
        key: of what is drawn in it.
        seeds: int64 [B], original numbers.
    """

    key: int
    seeds: np.ndarray


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of any epoch.

    Attributes:
        vertices: int64 [N], original numbers.
        partition: int64 [N], the partition of each.
        size: vertices per step.
        shuffle: another order in every epoch, in which each stretch has its part of every partition; else as they are.
        seed: of the random numbers.
        drop_last: leave out a last step that is smaller.
    """

    vertices: np.ndarray
    partition: np.ndarray
    size: int
    shuffle: bool
    seed: int
    drop_last: bool = False

    def __len__(self) -> int:
        return len(self.vertices) // self.size if self.drop_last else -(-len(self.vertices) // self.size)

    def of(self, epoch: int) -> Iterator[Step]:
        """All of them, in sequence."""
        order = self._order(epoch) if self.shuffle else np.arange(len(self.vertices))
        for number in range(len(self)):
            seeds = self.vertices[order[number * self.size : (number + 1) * self.size]]
            yield Step(dropout_key(self.seed, _STEP, epoch, number), seeds)

    def _order(self, epoch: int) -> np.ndarray:
        """int64 [N]: at random inside a partition; partitions take turns in proportion to their vertices, so that the
        parts of a step that ranks own are as large in every step."""
        drawn = hashes(self.vertices, 1, dropout_key(self.seed, _ORDER, epoch)).view(np.int64)[:, 0]
        inside = np.lexsort((drawn, self.partition))
        count = np.bincount(self.partition)
        first = np.cumsum(count) - count
        turn = np.arange(len(inside)) - np.repeat(first, count)
        late = hashes(np.arange(len(count)), 1, dropout_key(self.seed, _ORDER, epoch, 1)).view(np.int64)[:, 0]
        late = (late.view(np.uint64) >> np.uint64(11)) * 2.0**-53
        return inside[np.argsort((turn + np.repeat(late, count)) / np.repeat(count, count), kind="stable")]

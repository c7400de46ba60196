"""The halo of a rank's rows: those that other ranks own and send it, and the rows that it sends them in turn.

Legend: R rows of the rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np


@dataclass(frozen=True, eq=False)
class Crossing:
    """What ranks fetch of one another of what a layer exchanges.

    Attributes:
        takes: of every rank, int64, the rows here that it owns; none of this rank.
        gives: of every rank, int64, the own rows that it takes, in its order.
    """

    takes: tuple[np.ndarray, ...]
    gives: tuple[np.ndarray, ...]

    def same_as(self, other: Crossing | None) -> bool:
        """Whether another layer's is the same."""
        mine = (*self.takes, *self.gives)
        return other is not None and all(map(np.array_equal, mine, (*other.takes, *other.gives)))

    def leaving(self, link: Literal["fetch", "send"]) -> tuple[np.ndarray, ...]:
        """The rows that go to every rank: values that it takes, or gradients of what it gave."""
        return self.gives if link == "fetch" else self.takes

    def arriving(self, link: Literal["fetch", "send"]) -> tuple[np.ndarray, ...]:
        """The rows for which every rank sends some."""
        return self.takes if link == "fetch" else self.gives

    @property
    def rows(self) -> int:
        """Those that it takes."""
        return sum(map(len, self.takes))

    @property
    def both(self) -> int:
        """Rows that are on their way at a time, to it and from it."""
        return self.rows + sum(map(len, self.gives))


@dataclass(frozen=True, eq=False)
class Halo:
    """What ranks fetch of one another, and what they compute again instead. Layers that exchange nothing do not count.

    Attributes:
        fields: bool [R] each, the rows that some passes compute, from many to few; not those of all rows.
        behind: which of these passes behind 0, 1, ... layers compute; None: all rows.
        crossings: of every layer, None where no rank fetches what it exchanges.
    """

    fields: tuple[np.ndarray, ...]
    behind: tuple[int | None, ...]
    crossings: tuple[Crossing | None, ...]

    @property
    def rows(self) -> int:
        """Those that a layer takes at most."""
        return max(crossing.rows for crossing in self.crossings if crossing is not None)

    @property
    def first(self) -> int:
        """The first layer whose rows are fetched."""
        return next(k for k, crossing in enumerate(self.crossings) if crossing is not None)

"""The halo of a rank's rows: those that other ranks own and send it, and the rows that it sends them in turn.

Legend: R rows of the rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np


@dataclass(frozen=True, eq=False)
class Crossing:
    """What ranks fetch of one another of what a layer exchanges: all of it, or one round of it where rows go by way of
    ranks that read them, too.

    Attributes:
        takes: of every rank, int64, the rows here that it gives: its own, or those that an earlier round brought it.
        gives: of every rank, int64, the rows that it takes, in its order.
        pace: seconds that it takes the slowest hop to carry a byte of every row of all ranks; None: ranks have a link
            each, as fast as the profile says.
    """

    takes: tuple[np.ndarray, ...]
    gives: tuple[np.ndarray, ...]
    pace: float | None = None

    def same_as(self, other: Crossing) -> bool:
        """Whether another layer's is the same."""
        mine = (*self.takes, *self.gives)
        return self.pace == other.pace and all(map(np.array_equal, mine, (*other.takes, *other.gives)))

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
        fetched: of every layer the rounds in which ranks fetch what it exchanges; none where no rank does.
        sent: those in which their gradients go back.
    """

    fields: tuple[np.ndarray, ...]
    behind: tuple[int | None, ...]
    fetched: tuple[tuple[Crossing, ...], ...]
    sent: tuple[tuple[Crossing, ...], ...]

    @property
    def rows(self) -> int:
        """Those that a layer takes at most."""
        return max(sum(crossing.rows for crossing in rounds) for rounds in self.fetched)

    @property
    def first(self) -> int:
        """The first layer whose rows are fetched."""
        return next(k for k, rounds in enumerate(self.fetched) if rounds)

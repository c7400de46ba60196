"""Memory while a program is checked: which rows it holds instead of their numbers.

Legend: R rows of a memory; K rows that move.
"""

from __future__ import annotations

import numpy as np

NOTHING, ZERO, VALUE = range(3)  # what a row has: anything, zeros that may be added to, a value
NONE = -1  # no row of a tensor
NEVER = -(1 << 30)  # a step before every other


class ProgramError(RuntimeError):
    """A program does not do what it must: a fault of the planner, never of its user."""


def demand(holds: bool | np.bool_, what: str) -> None:
    """Raise ProgramError unless something holds."""
    if not holds:
        raise ProgramError(what)


class Held:
    """One memory: a tensor, a buffer, or a part of the disk.

    Args:
        name: for messages.
        count: of rows.
        has: what all of them have.

    Attributes:
        row: int64 [R], of slots of a device, which row of the tensor each is for, or NONE.
        has: int8 [R], NOTHING, ZERO or VALUE.
        used: int64 [R], the step in which a batch last used each.
        left: bool [R], rows that are on their way to other ranks.
    """

    def __init__(self, name: str, count: int, has: int = NOTHING) -> None:
        self.name = name
        self.row, self.has = np.full(count, NONE), np.full(count, has, dtype=np.int8)
        self.used, self.left = np.full(count, NEVER), np.zeros(count, dtype=np.bool_)

    def grow(self, index: np.ndarray) -> Held:
        """Itself with room for these, where nobody has said how many rows there are."""
        more = Held(self.name, max(0, int(index.max(initial=-1)) + 1 - len(self.row)))
        for name, part in vars(more).items():
            setattr(self, name, part if name == "name" else np.append(vars(self)[name], part))
        return self

    def read(self, index: np.ndarray, rows: np.ndarray | None = None, step: int = NEVER) -> None:
        """A batch uses rows, which have a value or are zeros; ``rows``: which they must be, where those are slots."""
        self._use(index, rows, step)
        self._none(self.has[index] == NOTHING, index, "was never written")

    def write(
        self, index: np.ndarray, stores: bool | np.ndarray, rows: np.ndarray | None = None, step: int = NEVER
    ) -> None:
        """Of the writers of a row the first stores, later ones add."""
        self._use(index, rows, step)
        self._none(self.left[index], index, "changes after it has left for other ranks")
        self._none(stores & (self.has[index] == VALUE), index, "is stored by a later writer")
        self._none(~np.bool_(stores) & (self.has[index] == NOTHING), index, "is added to by the first writer")
        self.has[index] = VALUE

    def begin(self, slots: np.ndarray, rows: np.ndarray, has: int, idle_since: int) -> None:
        """Rows begin to live in slots that no batch has used after a step; a gradient that was there has left."""
        self._in_bounds(slots)
        demand(len(np.unique(slots)) == len(slots), f"{self.name}: two rows go to one slot")
        self._none(self.used[slots] > idle_since, slots, "is a slot that is filled while another batch may use it")
        still = (self.row[slots] != NONE) & (has == ZERO)
        self._none(still, slots, "is a slot that still has the gradient of another row")
        self.row[slots], self.has[slots] = rows, has

    def end(self, slots: np.ndarray) -> None:
        """What is in slots is of no worth any more."""
        self.row[slots], self.has[slots] = NONE, NOTHING

    def _use(self, index: np.ndarray, rows: np.ndarray | None, step: int) -> None:
        self._in_bounds(index)
        if rows is not None:
            demand(len(index) == len(rows), f"{self.name}: {len(index)} slots for {len(rows)} rows")
            self._none(self.row[index] != rows, rows, "is not in the slot where it is needed")
        self.used[index] = step

    def _in_bounds(self, index: np.ndarray) -> None:
        inside = len(index) == 0 or (index.min() >= 0 and index.max() < len(self.row))
        demand(inside, f"{self.name} has {len(self.row)} rows")

    def _none(self, wrong: np.ndarray, which: np.ndarray, what: str) -> None:
        demand(not wrong.any(), f"row {which[np.argmax(wrong)] if len(which) else NONE} of {self.name} {what}")

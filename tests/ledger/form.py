"""A program as one list for every pass: memory, copies and calls, each with all that it reads and writes.

``lower.py`` makes it of today's programs; bytes, peaks, streams and waits are folds over it (``folds.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

Kind = Literal["device", "host", "staging", "window", "disk", "rank"]


class Space(NamedTuple):
    """A memory: a partition's device; the host's vertex rows; the host's side of a device's staging sets; the window of
    the host through which a device's rows come from the disk; the disk; another rank."""

    kind: Kind
    number: int = 0

    def __repr__(self) -> str:
        return f"{self.kind} {self.number}"


HOST, DISK = Space("host"), Space("disk")


class All(NamedTuple):
    """Every row."""


ALL = All()


class Chunk(NamedTuple):
    """Rows that lie behind one another."""

    first: int
    end: int


@dataclass(frozen=True, eq=False)
class Column:
    """Rows by an index array; ``at``: where that lies, if whoever copies reads it there."""

    index: np.ndarray
    at: Ref | None = None


Rows = All | Chunk | Column


@dataclass(frozen=True, eq=False)
class Ref:
    """Rows of a tensor in a memory."""

    tensor: str
    space: Space
    rows: Rows = ALL

    @property
    def key(self) -> tuple[str, Space]:
        return self.tensor, self.space


@dataclass(frozen=True, eq=False)
class Alloc:
    """A tensor begins to be there.

    Attributes:
        rows, row, step: how many there are, the bytes of one, and those from one to the next. Layers take memory whose
            size nobody knows before: its ``row`` is 0.
        stays: beyond the pass.
    """

    ref: Ref
    rows: int = 0
    row: int = 0
    step: int = 0
    stays: bool = False

    @property
    def nbytes(self) -> int:
        return self.rows * self.step


@dataclass(frozen=True, eq=False)
class Free:
    """It is there no more; of a cache, what some of its rows hold is of no worth any more."""

    ref: Ref


@dataclass(frozen=True, eq=False)
class Copy:
    """Rows go from one memory to another.

    Attributes:
        mode: rows are stored, added, or bool [K] stored where it is True.
        topology: they are no values of vertices, but of the graph or the plan.
        through: memory on the way in which they are put side by side.
    """

    dst: Ref
    src: Ref
    mode: Literal["store", "add"] | np.ndarray = "store"
    topology: bool = False
    through: Ref | None = None

    @property
    def adds(self) -> bool:
        """All rows are added."""
        return isinstance(self.mode, str) and self.mode == "add"

    @property
    def stores(self) -> bool:
        """All rows are stored."""
        return isinstance(self.mode, str) and self.mode == "store"

    @property
    def reads(self) -> tuple[Ref, ...]:
        added = () if self.stores else (self.dst,)
        return (self.src, *added, *_indices(self.src, self.dst))

    @property
    def writes(self) -> tuple[Ref, ...]:
        return (self.dst,) if self.through is None else (self.through, self.dst)


@dataclass(frozen=True, eq=False)
class Call:
    """A kernel runs."""

    kernel: str
    takes: tuple[Ref, ...]
    writes: tuple[Ref, ...]
    where: Space

    @property
    def reads(self) -> tuple[Ref, ...]:
        return (*self.takes, *_indices(*self.takes, *self.writes))


def _indices(*refs: Ref) -> tuple[Ref, ...]:
    return tuple(ref.rows.at for ref in refs if isinstance(ref.rows, Column) and ref.rows.at is not None)


Op = Alloc | Free | Copy | Call

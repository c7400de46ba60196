"""What an instruction of a program is, and the operands that several kinds have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np
from typing_extensions import dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, eq_default=False, kw_only_default=True)
def kind(cls: type[T]) -> type[T]:
    """Make a class plain data, whose fields are given by name: a kind of instruction."""
    return dataclass(frozen=True, eq=False, kw_only=True)(cls)


class Instruction:
    """A move or a computation with every operand resolved.

    Attributes:
        verb: what it is called in listings, and by whoever runs it: its kind's name, if it has no other.
        on: the stream that does it, in the body of a pass.
        words: what it does, for listings, with its operands' names in braces; of some kinds ``describe.py`` says more.
    """

    verb: ClassVar[str]
    on: str = ""
    words: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        if "verb" not in vars(cls):
            cls.verb = cls.__name__.lower()


@dataclass(frozen=True, eq=False)
class Stores:
    """Which rows are stored; others are added to what is there.

    Attributes:
        where: all or none of them; or bool, those where it is True.
    """

    where: bool | np.ndarray

    def among(self, rows: slice | np.ndarray) -> bool | np.ndarray:
        """Which of some rows are."""
        return self.where if isinstance(self.where, bool) else self.where[rows]

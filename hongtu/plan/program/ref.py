"""Rows of a tensor in a memory: what an instruction reads or writes, and which of them it stores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from hongtu.plan.memory.host import Kept
from hongtu.plan.memory.structure import FLOAT
from hongtu.plan.program.rows import DESTINATIONS, SOURCES, OwnRows, Selection

Where = Literal["host", "device", "chunk"]  # in host rows; on the partition's device; as layers made it, by chunk
Memory = Where | Literal["peer", "window", "graph", "plan"]  # other devices; the host's window of what lies below it;
#   arrays of the chunk's structure, and of the plan, which are on the host


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


Access = Literal["read"] | Stores | tuple[Stores, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Ref:
    """Rows of a tensor in a memory.

    Attributes:
        tensor: its name, or that of a buffer or register.
        where: the memory, or one of ``BELOW``; "device" is that of the device which runs the instruction.
        rows: which of them.
        access: they are read; reserved (None); or added to (`Stores(False)`), stored, or stored where it says so, by
            device where these differ.
        kept: of a tensor below the host, the rows that are in host memory all the same; None: all are.
        dtype: of its numbers; "float" stands for the run's.
    """

    tensor: str
    where: Memory | str = "device"
    rows: Selection = DESTINATIONS
    access: Access | None = "read"
    kept: Kept | None = None
    dtype: str = FLOAT

    def __str__(self) -> str:
        if self.where == "plan" and not self.rows.of_chunk:
            return str(self.rows)
        where = {"device": "", "peer": "peer's ", "plan": ""}.get(self.where, f"{self.where} ")
        return f"{where}{self.tensor}[{self.rows.words}]"

    @property
    def counted(self) -> bool:
        """They are rows of a vertex tensor, among others."""
        return isinstance(self.rows, OwnRows) or self.rows is SOURCES or not self.rows.of_chunk

    @property
    def adds(self) -> bool:
        """Nothing is stored."""
        return isinstance(self.access, Stores) and self.access.where is False

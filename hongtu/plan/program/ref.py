"""Rows of a tensor in a memory: what an instruction reads or writes, and which of them it stores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from hongtu.plan.memory.host import Kept
from hongtu.plan.memory.planned import PlannedMemory
from hongtu.plan.memory.structure import FLOAT, Array
from hongtu.plan.passes.definition import Pass
from hongtu.plan.program.rows import DESTINATIONS, SOURCES, OwnRows, PartOfChunk, Picks, Selection, Transfers

Where = Literal["host", "device", "chunk"]  # in host rows; on the partition's device; as layers made it, by chunk
Memory = Where | Literal["peer", "window", "graph", "plan"]  # other devices; the host's window of what lies below it;
STAYS = "structure {}"  # what a device calls an array that stays
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


def stays_at(plan: PlannedMemory, p: Pass, name: str, array: Array) -> Ref:
    """The chunk's part of an array that stays on the device for a pass."""
    start = tuple(spans[array.over] for spans in plan.spans_of(plan.structure_view(p)))
    return Ref(tensor=STAYS.format(name), rows=PartOfChunk(array.over, start=start))


def where(plan: PlannedMemory, name: str) -> Where:
    """Where a vertex tensor is."""
    if name not in plan.resident:
        return "host"
    return "chunk" if name in plan.pieces else "device"


def own_rows(plan: PlannedMemory, p: Pass, name: str) -> OwnRows:
    """A chunk's own rows of a tensor in a pass."""
    edges = plan.edges_of(p, name)
    return DESTINATIONS if edges is None else OwnRows("edges", edges=edges, places=plan.places(p, name) or "")


def own(plan: PlannedMemory, p: Pass, name: str, access: Access = "read") -> Ref:
    """The same, where they are."""
    at, rows = where(plan, name), own_rows(plan, p, name)
    if at == "host":
        return on_host(plan, name, rows, access)
    return Ref(tensor=name, where=at, rows=rows, access=access)


def on_host(plan: PlannedMemory, name: str, rows: Selection, access: Access = "read", *, window: bool = False) -> Ref:
    """Rows of a host tensor, or of its window of what lies below."""
    there: Memory = "window" if window else "host"
    kept, dtype = plan.kept.get(name), plan.host_dtype(name)
    return Ref(tensor=name, where=there, rows=rows, access=access, kept=kept, dtype=dtype)


def value_cache(plan: PlannedMemory, p: Pass) -> str:
    """What a device calls the rows that slots count: a tensor that stays there is its own cache."""
    return p.exchange if p.exchange in plan.resident else "cache"


def gradient_cache(plan: PlannedMemory, p: Pass) -> str:
    """The same for gradients."""
    return p.flush if p.flush in plan.resident else "gradient_cache"


def stores(plan: PlannedMemory, p: Pass, name: str) -> Stores:
    """Of the writers of a row the first stores, later ones add: for all destinations, or bool [V] for each. Of rows on
    the disk what is there is looked at when they are recalled."""
    if name not in p.direct or name not in p.creates:
        return Stores(name not in p.direct)
    if name in plan.resident:  # where flushes add to zeros
        return Stores(name != p.flush)
    direct = plan.writers[name].direct if name in plan.writers else None
    return Stores(True if direct is None else direct)


def flushed(plan: PlannedMemory, p: Pass, name: str) -> tuple[Stores, ...]:
    """Of every device, the intervals whose gradient rows are stored."""
    known = name in p.creates and name in plan.writers
    first = plan.writers[name].flush if known else [False] * plan.topology.partitions
    return tuple(Stores(rows) for rows in first)


def transfers_of(plan: PlannedMemory, p: Pass) -> Transfers:
    """What every device exchanges in a pass; () where it exchanges nothing."""
    found = plan.transfers.get(p.name)
    return () if found is None else tuple(found.devices)


def picks(plan: PlannedMemory, p: Pass, side: Literal["begin", "end"], *, mirrors: bool) -> Picks:
    """The intervals that begin or end with a batch of a pass, in the order in which it visits batches."""
    return Picks(transfers_of(plan, p), mirrors, retiring=(side == "begin") == (p.direction == "backward"))

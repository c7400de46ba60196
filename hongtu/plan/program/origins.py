"""Whence arrays come to a device, and how long they are: what differs where all are brought in one way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hongtu.graph.topology import Topology
from hongtu.plan.memory.disk import Kept
from hongtu.plan.memory.structure import Over, chunk_entries, device_entries
from hongtu.plan.program.instruction import Picks, Transfers


class Origin:
    """Whence an array comes to a device, for the chunk that it has in a batch.

    Attributes:
        words: what it is, for people; ``unit``: of its entries.
        over: what it has an entry for, if that is all.
        of_chunk: every chunk has one; of_host: it is rows of a host tensor; for others see there.
    """

    words, unit, of_chunk, of_host = "of chunk", "entries", True, False
    over: Over | None = None
    kept: Kept | None = None
    in_place: bool = False

    def entries(self, view: Topology) -> np.ndarray:
        """int64 [C], of every chunk."""
        assert self.over is not None
        return chunk_entries(view)[self.over]

    def total(self, view: Topology, device: int) -> int:
        """Of a device's chunks with destinations."""
        if self.over is not None:
            return device_entries(view)[device].busy[self.over]
        own = slice(device * view.chunks, (device + 1) * view.chunks)
        return int(self.entries(view)[own][view.num_dst[own] > 0].sum())

    def lengths(self, view: Topology, device: int, chunks: np.ndarray, batches: Sequence[int]) -> np.ndarray:
        """int64 [B], in batches in which a device has these chunks."""
        found: np.ndarray = self.entries(view)[chunks] * (view.num_dst[chunks] > 0)
        return found


@dataclass(frozen=True, eq=False)
class OfChunk(Origin):
    """An array of the chunk's structure."""

    over: Over


@dataclass(frozen=True, eq=False)
class HostRows(Origin):
    """The destinations' rows of a host tensor.

    Attributes:
        kept: which rows of a tensor on the disk are in host memory all the same; None: it is not on the disk.
        in_place: rows that have come from the disk stay in staging memory of the host, where the device works on them.
    """

    words, unit, over, of_host = "host {name}[chunk]", "rows", "destinations", True
    kept: Kept | None = None
    in_place: bool = False


@dataclass(frozen=True, eq=False)
class SparsePart(Origin):
    """The same of a CSR host tensor: its part "start", of which there is one more than rows, "column" or "value".

    Attributes:
        numbers: int64 [C], what the rows of every chunk hold.
    """

    words = "host {name}[chunk]"
    part: str
    numbers: np.ndarray

    def entries(self, view: Topology) -> np.ndarray:
        return view.num_dst + 1 if self.part == "start" else self.numbers


@dataclass(frozen=True, eq=False)
class Column(Origin):
    """A column of the picked intervals, sorted by peer where they mirror; of every device, whatever chunk it has."""

    of_chunk = False
    picks: Picks
    column: Literal["row", "place", "slot", "peer_slot"]

    @property
    def words(self) -> str:  # type: ignore[override]
        kind, which = "mirrors" if self.picks.mirrors else "loaded rows", "last" if self.picks.retiring else "first"
        return f"{self.column} of {kind} whose {which} batch it is"

    def of(self, device: int, batch: int) -> np.ndarray:
        """int32 [K]."""
        return self.picks.column(self.column, device, batch)

    def total(self, view: Topology, device: int) -> int:
        return len(self.picks.table(device))

    def lengths(self, view: Topology, device: int, chunks: np.ndarray, batches: Sequence[int]) -> np.ndarray:
        return np.array([len(self.picks.column("slot", device, batch)) for batch in batches], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class SlotsOfSources(Origin):
    """The slot of every source of a chunk.

    Attributes:
        devices: the transfers of every device.
    """

    over = "sources"
    devices: Transfers

    def of(self, device: int, batch: int) -> np.ndarray:
        """int32 [S]."""
        return self.devices[device].slots(batch)  # type: ignore[union-attr]

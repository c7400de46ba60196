"""The program of a run: passes of instructions, as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from hongtu.graph.topology import Topology
from hongtu.hardware import aligned
from hongtu.metrics import Traffic
from hongtu.plan.memory.buffers import Buffer
from hongtu.plan.memory.structure import nbytes_of
from hongtu.plan.program import moves
from hongtu.plan.program.moves import Compute, Copy, Free, Instruction, Ship
from hongtu.plan.program.on_disk import ARTIFACT, OnDisk


@dataclass(frozen=True, eq=False, kw_only=True)
class PassProgram:
    """What one pass runs.

    Attributes:
        name: for people, "forward 1".
        view: the chunks with the destinations that it computes.
        schedule: int32 [m, B], chunk of each partition in batch b.
        order: the batches as they are visited.
        sets: of staging memory.
        buffers: of every device, what it has while the pass runs; ``staging``: the host's side of it.
        width: columns of vertex tensors by name; ``itemsize``: bytes of the run's numbers.
        keeps: what one copy brings is packed once, in host memory of its own, and stays for the run.
        before: once, before the buffers are made; ``recalls``: for every batch, before the body of the ``ahead``-th
            batch before it; ``body``: in every batch; ``after``: once, before they are freed; ``frees``: then.
    """

    name: str
    view: Topology
    schedule: np.ndarray
    order: range
    sets: int
    buffers: tuple[dict[str, Buffer], ...]
    staging: tuple[dict[str, Buffer], ...]
    width: Mapping[str, int]
    itemsize: int
    keeps: bool = False
    before: tuple[Instruction, ...]
    recalls: tuple[Instruction, ...] = ()
    ahead: int = 0
    body: tuple[Instruction, ...]
    after: tuple[Instruction, ...]
    frees: tuple[Free, ...]

    @property
    def around(self) -> tuple[Instruction, ...]:
        """All instructions but those of chunks and what is freed."""
        return (*self.before, *self.recalls, *self.body, *self.after)

    @property
    def every(self) -> Iterator[Instruction]:
        """All instructions in the order in which they run, those of chunks among them."""
        yield from (*self.before, *self.recalls)
        for instruction in self.body:
            yield instruction
            if isinstance(instruction, Compute):
                yield from instruction.body
        yield from self.after
        yield from self.frees

    @property
    def needs_host(self) -> str:
        """Of its instructions the verb of one that needs the host; "" where the devices can repeat the pass alone."""
        return next((x.verb for x in self.every if _needs_host(x)), "")

    @property
    def packed(self) -> tuple[str, ...]:
        """The arrays that reach a device in one copy."""
        return next((x.names for x in self.body if isinstance(x, Ship)), ())

    @property
    def passing(self) -> list[Buffer]:
        """The staging memory of all devices that is there while the pass runs."""
        kept = self.packed if self.keeps else ()
        return [buffer for beside in self.staging for name, buffer in beside.items() if name not in kept]

    def chunk(self, device: int, batch: int) -> int:
        """The number of the chunk that a device has in a batch."""
        return device * self.view.chunks + int(self.schedule[device, batch])

    def busy(self, batch: int) -> list[tuple[int, int]]:
        """The devices whose chunk of a batch has destinations, each with its number."""
        chunks = [(i, self.chunk(i, batch)) for i in range(len(self.buffers))]
        return [(i, chunk) for i, chunk in chunks if self.view.num_dst[chunk]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Program:
    """All that a run does, decided before its first epoch.

    Attributes:
        setup: once before everything else; ``train``: every epoch; ``evaluate``: every evaluation.
        slabs: of every device with memory of its own, bytes in which the buffers of ``train`` and ``evaluate`` lie.
        eager: why ``train`` is captured nowhere; "": where the devices can, it is, and done again as a whole.
    """

    setup: tuple[PassProgram, ...]
    train: tuple[PassProgram, ...]
    evaluate: tuple[PassProgram, ...]
    slabs: tuple[int, ...] = ()
    eager: str = ""


def _needs_host(x: Instruction) -> bool:
    """Whether it is the host that does something, or waits; or rows lie on a disk that would be in memory."""
    kept = x.src.kept or x.dst.kept if isinstance(x, Copy) else getattr(x, "kept", None)
    return x.on in ("dispatch", "host", "disk") or getattr(x, "stream", "") == "dispatch" or kept is not None


def device_traffic(p: PassProgram, device: int) -> Traffic:
    """Traffic of one pass on one device."""
    row, traffic = row_bytes(p, device), Traffic()
    for x in p.around:
        if isinstance(x, moves.Cross):
            count = x.crossing.rows if device == 0 else 0  # of the rank, whatever its devices
            traffic.add(x.link, count * crossing_bytes(x, p, row), count)
        elif isinstance(x, moves.Call) and "others" in x.settings and device == 0:
            count = x.settings["others"]  # rows of the output, and their gradients
            for link in ("fetch", "send"):
                traffic.add(link, count * p.width[x.settings["output"]] * p.itemsize, count)
        elif isinstance(x, moves.Copy):
            count = copied_rows(x, p, device)
            traffic.add(x.link, count * crossing_bytes(x, p, row), count)
    return traffic


def copied_rows(x: moves.Copy, p: PassProgram, device: int) -> int:
    """Rows that a copy moves in a pass for one device."""
    rows, kept = x.there.rows, x.there.kept
    if isinstance(rows, OnDisk):
        return rows.moved(p.view, device, kept)
    beside = ARTIFACT.moved(p.view, device, x.src.kept) if x.in_place and x.src.kept is not None else 0
    return x.src.rows.total(p.view, device) - beside


def row_bytes(p: PassProgram, device: int = 0) -> dict[str, int]:
    """Of vertex tensors, what was placed and the buffers of a pass."""
    row = {name: columns * p.itemsize for name, columns in p.width.items()}
    row |= {x.name: nbytes_of(x.shape, x.dtype, p.itemsize) for x in p.before if isinstance(x, moves.Place)}
    return row | {name: buffer.row_bytes(p.itemsize) for name, buffer in p.buffers[device].items()}


def crossing_bytes(x: moves.Copy | moves.Cross, p: PassProgram, row: Mapping[str, int]) -> int:
    """Of a row as it crosses its link; ``row``: what rows have on the device."""
    if isinstance(x, moves.Cross):
        return nbytes_of((p.width[x.tensor],), x.dtype, p.itemsize)
    if x.src.rows is ARTIFACT:  # whose file has numbers of 4 bytes
        return 4 * p.width[x.src.tensor]
    return row[x.dst.tensor] if x.narrow is None else nbytes_of((p.width[x.narrow.tensor],), x.narrow.dtype, p.itemsize)


def host_peaks(passes: Iterable[PassProgram], kept: Mapping[str, int]) -> Iterator[int]:
    """Bytes of vertex rows and staging memory that the host holds at most in each of consecutive passes.

    Args:
        kept: bytes of the tensors that are there before the first pass.
    """
    live = dict(kept)
    for p in passes:
        placed = (x for x in p.before if isinstance(x, moves.Place) and x.where == "host")
        live |= {x.name: x.nbytes(p.itemsize) for x in placed}
        yield sum(live.values()) + sum(buffer.nbytes(p.itemsize) for buffer in p.passing)
        for free in p.frees:
            if free.where == "host":
                live.pop(free.name, None)


def script_bytes(p: PassProgram, device: int) -> list[int]:
    """What one copy brings to a device in every batch of a pass, in the order in which it visits them."""
    row = row_bytes(p, device)
    chunks, total = np.array([p.chunk(device, batch) for batch in p.order], dtype=np.int64), np.zeros(len(p.order), int)
    for x in p.body:
        if isinstance(x, moves.Copy) and x.dst.tensor in p.packed:
            total += row[x.dst.tensor] * x.src.rows.lengths(p.view, device, chunks, p.order)
    return [int(nbytes) for nbytes in total]


def kept_bytes(passes: Iterable[PassProgram]) -> int:
    """Bytes of the host in which scripts of passes stay, of all devices."""
    keeping = [(p, i) for p in passes if p.keeps and p.packed for i in range(len(p.buffers))]
    return sum(aligned(nbytes) for p, i in keeping for nbytes in script_bytes(p, i))

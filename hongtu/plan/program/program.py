"""The program of a run: passes of instructions, as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from hongtu.graph.topology import Topology
from hongtu.plan.memory.buffers import Buffer
from hongtu.plan.program.moves import Compute, Copy, Free, Instruction, Ship


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

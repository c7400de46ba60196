"""Runs a program: one instruction after the other. It decides nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from time import perf_counter
from typing import NamedTuple

from hongtu.device.capture import CaptureError
from hongtu.device.streams import Event
from hongtu.engine.chunk import Chunk
from hongtu.engine.instructions import Instructions, Means
from hongtu.engine.repeats import Moved, Repeats
from hongtu.host import trim_beyond
from hongtu.kernels.dispatch import NumbaKernels, using
from hongtu.kernels.torch_private import modes_left
from hongtu.plan.program import moves
from hongtu.plan.program.moves import EventName
from hongtu.plan.program.program import PassProgram, Program, kept_bytes, script_bytes

LINKED = 1 << 10  # batches, of all passes, whose chunks are kept from epoch to epoch


class Spot(NamedTuple):
    """Where a run is: in which pass, module, chunk (i, j) and batch."""

    pass_name: str
    module: str
    chunk: tuple[int, int]
    batch: int


class Executor(Instructions):
    """Interprets the passes of a program.

    Attributes:
        seconds: of every pass of the last ``run``, by name.
    """

    def __init__(self, program: Program, means: Means) -> None:
        super().__init__(means, program.setup[0].view.partition_start)
        self.program, self._keeps = program, False
        self._linked: dict[tuple[str, int], list[Chunk]] = {}  # by pass and batch
        self._allocations: dict[PassProgram, list[Callable[[], None]]] = {}
        self.repeats = Repeats(program, self.partitions, self.host, means.recorder)
        self.seconds: dict[str, float] = {}

    @property
    def spot(self) -> Spot | None:
        """Where it is, or was last; None before the first pass."""
        network, p = self.networks[0], self._current
        if p is None:
            return None
        i, j = divmod(network.chunk, p.view.chunks)
        return Spot(p.name, network.current, (i, j), int((p.schedule[i] == j).argmax()))

    def run(self, passes: tuple[PassProgram, ...]) -> float:
        """Run passes in order; returns the loss where one of them evaluates it, else 0. After an error nothing of the
        executor can be used any more."""
        self._begin()
        self.seconds.clear()
        if passes is not self.program.setup:
            for device, nbytes in zip(self.devices, self.program.slabs, strict=False):
                device.hold(nbytes)
        if any(p.keeps for p in passes):
            self._keep_scripts()
        try:
            kernels = self.devices[0].cpu_kernels
            on_kernels = using(kernels) if isinstance(kernels, NumbaKernels) else nullcontext()  # no chunk need say so
            with modes_left(), on_kernels:
                self._run_repeated(passes)
        except BaseException:
            for device in self.devices:
                device.abandon()
            raise
        self.ranks.where = f"behind pass '{passes[-1].name}'" if passes else self.ranks.where
        return sum(float(partition.loss_value) for partition in self.partitions)

    def _begin(self) -> None:
        for partition in self.partitions:
            partition.device.streams.compute.run(partition.loss_value.zero_)
            partition.device.begin()

    def _run_repeated(self, passes: tuple[PassProgram, ...]) -> None:
        """Run passes as they were captured, where they were; from the start where that turns out to be of no use."""
        placed, names = [device.placed() for device in self.devices], self.host.names()
        self.repeats.begin(passes)
        try:
            self._run_passes(passes)
            return
        except (Moved, CaptureError) as error:
            reason = str(error)
        # the error is gone, and with it what its frames had of the device
        self.repeats.forget(reason)
        if reason:
            warnings.warn(f"training is not captured from now on: {reason}", stacklevel=2)
        self._undo(placed, names)
        self.repeats.begin(passes)
        self._run_passes(passes)

    def _undo(self, placed: list[set[str]], names: set[str]) -> None:
        """Have nothing of passes that have begun, but what was placed, and there on the host, before."""
        for device, stays in zip(self.devices, placed, strict=True):
            device.abandon()
            device.release_all()
            for name in device.placed() - stays:
                device.remove(name)
        self.devices[0].traffic.clear()
        self.host.staging(0)
        for name in self.host.names() - names:
            self.host.free(name)
        for partition in self.partitions:
            partition.pieces.clear()
            partition.graphs.clear()
            for parameter in partition.network.modules.parameters():
                if parameter.grad is not None:
                    parameter.grad.zero_()
        self._begin()

    def _run_passes(self, passes: tuple[PassProgram, ...]) -> None:
        for p in passes:
            start = perf_counter()
            self._run_pass(p)
            self.seconds[p.name] = perf_counter() - start

    def _run_pass(self, p: PassProgram) -> None:
        self._current, self.ranks.where = p, f"in pass '{p.name}'"
        if self.disk is not None:
            self.host.drop_spare()
            for device in self.devices:
                device.drop_spare()
            trim_beyond(self.means.most - self._coming(p))
        self._run(p.before)
        self._allocate(p)
        for x in p.body:
            if isinstance(x, moves.Post) and self.messages is not None:
                self.messages.expect(x)
        self.repeats.run(p, partial(self._run_batches, p), self._drain)
        self._drain()
        self._run(p.after)
        for device in self.devices:
            device.release_all()
        self.host.staging(0)
        self._run(p.frees)

    def _run_batches(self, p: PassProgram) -> None:
        most = self.means.most
        sets: list[dict[EventName, list[Event]]] = [{} for _ in range(max(p.sets, 1 + p.ahead))]
        for step in range(len(p.order) + p.ahead if p.order else 0):
            for body, at in ((p.recalls, step), (p.body, step - p.ahead)):
                if body and 0 <= at < len(p.order):
                    self._events, self._set, self._batch = sets[at % len(sets)], at, p.order[at]
                    self._chunks = self._chunks_of(p)
                    self._run(body)
                    for chunk in self._chunks:
                        chunk.begin()
            if self.disk is not None:
                self._chunks = []
                most = trim_beyond(most)
        self._chunks = []

    def _chunks_of(self, p: PassProgram) -> list[Chunk]:
        """The chunks of the current batch; they are the same in every epoch, and kept where they are few."""
        found = self._linked.get((p.name, self._batch))
        if found is None:
            busy, batch = p.busy(self._batch), self._batch
            found = [Chunk(self.partitions[i], p, i, batch, number, self._set) for i, number in busy]
            if len(self._linked) < LINKED and self.disk is None:
                self._linked[p.name, batch] = found
        return found

    def _drain(self) -> None:
        for device in self.devices:
            device.drain()

    def _keep_scripts(self) -> None:
        """Have memory in which what one copy brings in an epoch's batches stays, if it is not there."""
        keeping = [p for p in self.program.train if p.keeps and p.packed]
        for p in keeping if not self._keeps else ():
            for i, device in enumerate(self.devices):
                dtypes = {name: self.host.torch_dtype(p.buffers[i][name].dtype) for name in p.packed}
                device.keep_scripts(p.name, script_bytes(p, i), dtypes)
        self.host.count_pinned(0 if self._keeps else kept_bytes(keeping))
        self._keeps = True

    def _allocate(self, p: PassProgram) -> None:
        if p not in self._allocations:
            self._allocations[p] = [*self._allocating(p)]
        for allocate in self._allocations[p]:
            allocate()
        self.host.staging(sum(device.staged_bytes for device in self.devices))

    def _allocating(self, p: PassProgram) -> Iterator[Callable[[], None]]:
        """What makes a pass's buffers and staging memory, the same in every epoch."""
        dtype = self.host.torch_dtype
        for device, own, beside in zip(self.devices, p.buffers, p.staging, strict=True):
            if packed := {name: (own[name].shape, dtype(own[name].dtype)) for name in p.packed}:
                yield partial(device.prepare_script, p.name, p.sets, packed)
            for name, x in own.items():
                if name not in packed:
                    yield partial(device.allocate, name, x.sets, x.shape, dtype(x.dtype), apart=x.padded)
            for name, x in beside.items():
                if name not in packed:
                    yield partial(device.prepare_staging, name, x.sets, x.shape, dtype(x.dtype))

    def _coming(self, p: PassProgram) -> int:
        """Bytes that a pass takes from its beginning."""
        placed = sum(x.nbytes(p.itemsize) for x in p.before if isinstance(x, moves.Place))
        buffers = (*p.passing, *(buffer for own in p.buffers for buffer in own.values()))
        return placed + sum(buffer.nbytes(p.itemsize) for buffer in buffers)

"""Runs a program: one instruction after the other, each on all devices. It decides nothing.

Paper Algorithms 1 to 3 are what the instructions do together: values through the caches, chunk outputs to the host,
backward from the checkpoints there, gradients accumulated on the host.
"""

from __future__ import annotations

import warnings
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hongtu.device.base import Device
from hongtu.device.capture import CaptureError, Recorder
from hongtu.device.streams import Turn
from hongtu.engine.body import Body
from hongtu.engine.chunk import Chunk, Partition
from hongtu.engine.disk import Disk, add_kept
from hongtu.engine.host_store import HostStore
from hongtu.engine.messages import Messages
from hongtu.engine.repeats import Moved, Repeats
from hongtu.host import trim_beyond
from hongtu.model.network import Network
from hongtu.nn.moments import Moments
from hongtu.nn.whole_graph import WholeGraphNorm
from hongtu.plan.memory.structure import FLOAT
from hongtu.plan.program import moves, spilling, waiting
from hongtu.plan.program.instruction import Instruction
from hongtu.plan.program.predict import kept_bytes, placed_row, script_bytes
from hongtu.plan.program.program import PassProgram, Program
from hongtu.ranks.together import Alone, Together


class Spot(NamedTuple):
    """Where a run is: in which pass, module, chunk (i, j) and batch."""

    pass_name: str
    module: str
    chunk: tuple[int, int]
    batch: int


class Executor:
    """Interprets the passes of a program.

    Args:
        program: what to run.
        networks: the model of each partition.
        host: vertex tensors; must hold "statistics", "factors" and "edge_id_start" where layers need them.
        devices: one per partition.
        loss: evaluated where the program says so.
        num_graph_edges, num_graph_vertices: of the whole graph, of which the program may run a share.
        own_end: int64 [m], the row behind the last of every partition that is this rank's own; None: all rows are.
        ranks: who runs the other shares.
        messages: between ranks, or None where the program has none.
        disk: has the rows that the host does not hold, or None where the program spills none.
        most: bytes of anonymous memory that the process may have between two batches then.
        recorder: captures passes that repeat, or None.

    Attributes:
        seconds: of every pass of the last ``run``, by name.
    """

    def __init__(
        self,
        program: Program,
        networks: list[Network],
        host: HostStore,
        devices: list[Device],
        loss: Any,
        num_graph_edges: int,
        num_graph_vertices: int,
        own_end: np.ndarray | None = None,
        ranks: Together | None = None,
        messages: Messages | None = None,
        disk: Disk | None = None,
        most: int = 0,
        recorder: Recorder | None = None,
    ) -> None:
        self._most = most
        self.messages, self.disk, self.ranks = messages, disk, ranks or Alone()
        self.program, self.networks, self.host, self.devices, self.loss = program, networks, host, devices, loss
        start = program.setup[0].view.partition_start
        self.partitions = [
            Partition(device, network, host, loss, int(first), int(end), num_graph_edges)
            for device, network, first, end in zip(
                devices, networks, start[:-1], start[1:] if own_end is None else own_end, strict=True
            )
        ]
        self.repeats = Repeats(program, self.partitions, host, recorder)
        self.num_graph_vertices = num_graph_vertices
        self.seconds: dict[str, float] = {}
        self._current: PassProgram | None = None
        self._batch = 0
        self._turn = Turn(len(devices))
        self._chunks: list[Chunk] = []
        self._brought: dict[str, list[Tensor]] = {}  # columns of picks, of every device
        self._keeps = False

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
            trim_beyond(self._most - self._coming(p))
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
        turns = [Turn(len(self.devices)) for _ in range(max(p.sets, 1 + p.ahead))]
        most = self._most
        for step in range(len(p.order) + p.ahead if p.order else 0):
            for body, at in ((p.recalls, step), (p.body, step - p.ahead)):
                if body and 0 <= at < len(p.order):
                    self._turn, self._batch = turns[at % len(turns)].of(at), p.order[at]
                    self._chunks = [
                        Chunk(self.partitions[i], p, i, self._batch, number, self._turn.set)
                        for i, number in p.busy(self._batch)
                    ]
                    self._run(body)
            if self.disk is not None:
                self._chunks = []
                most = trim_beyond(most)
        self._chunks = []

    def _drain(self) -> None:
        for device in self.devices:
            device.drain()

    def _run(self, body: tuple[Instruction, ...]) -> None:
        for x in body:
            getattr(self, x.verb)(x)

    def _keep_scripts(self) -> None:
        """Have memory in which what one copy brings in an epoch's batches stays, if it is not there."""
        item, keeping = self.host.dtype.itemsize, [p for p in self.program.train if p.keeps and p.packed]
        for p in keeping if not self._keeps else ():
            for i, device in enumerate(self.devices):
                dtypes = {name: self._dtype(p.buffers[i][name].dtype) for name in p.packed}
                device.keep_scripts(p.name, script_bytes(p, i, item), dtypes)
        self.host.keep_pinned(0 if self._keeps else kept_bytes(keeping, item))
        self._keeps = True

    def _allocate(self, p: PassProgram) -> None:
        for device, own, beside in zip(self.devices, p.buffers, p.staging, strict=True):
            packed = {name: (own[name].shape, self._dtype(own[name].dtype)) for name in p.packed}
            if packed:
                device.prepare_script(p.name, p.sets, packed)
            for name, buffer in own.items():
                if name not in packed:
                    dtype = self._dtype(buffer.dtype)
                    device.allocate(name, buffer.sets, buffer.shape, dtype, apart=buffer.padded)
            for name, buffer in beside.items():
                if name not in packed:
                    device.prepare_staging(name, buffer.sets, buffer.shape, self._dtype(buffer.dtype))
        self.host.staging(sum(device.staged_bytes for device in self.devices))

    def _coming(self, p: PassProgram) -> int:
        """Bytes that a pass takes from its beginning."""
        placed = (x for x in p.before if isinstance(x, moves.Place))
        buffers = (*p.passing, *(buffer for own in p.buffers for buffer in own.values()))
        item = self.host.dtype.itemsize
        return sum(sum(x.rows) * placed_row(x, item) for x in placed) + sum(buffer.nbytes(item) for buffer in buffers)

    def _dtype(self, name: str) -> torch.dtype:
        return self.host.dtype if name == FLOAT else getattr(torch, name)

    # -------------------------------------------------------------------------------------------- around the batches

    def place(self, x: moves.Place) -> None:
        if x.where == "host":
            self.host.create(x.name, x.shape[0], x.zero, x.kept)
            return
        for device, rows, at in zip(self.devices, x.rows, x.at or [None] * len(x.rows), strict=True):
            buffer = device.place(x.name, (rows, *x.shape), self._dtype(x.dtype), at, apart=x.padded)
            if x.zero:
                device.streams.compute.run(buffer.zero_)

    def free(self, x: moves.Free) -> None:
        if x.where == "host":
            self.host.free(x.name)
        elif x.where == "device":
            for device in self.devices:
                device.remove(x.name)
        else:
            for partition in self.partitions:
                partition.pieces.pop(x.name, None)

    def begin_moments(self, x: moves.BeginMoments) -> None:
        norms = self._norms(x.stage)
        for norm in norms:
            norm.forget()
        wanted = norms[0].gathers(self.num_graph_vertices)
        for partition in self.partitions:
            partition.moments = Moments(partition.device.numbers(2, x.columns), wanted=wanted)

    def end_moments(self, x: moves.EndMoments) -> None:
        gathered = [partition.moments for partition in self.partitions]
        statistics = Moments.combine(gathered).with_others(self.ranks.gather).statistics
        for network, moments in zip(self.networks, gathered, strict=True):
            network.norm(x.stage).set_statistics(statistics, moments.mean.device, self.num_graph_vertices)
        for device in self.devices:
            device.begin()

    def sum_statistics(self, x: moves.SumStatistics) -> None:
        gradients = list(zip(*(norm.gradients for norm in self._norms(x.layer)), strict=True))
        totals = [torch.stack([part.cpu() for part in parts]).sum(0) for parts in gradients]
        self.ranks.add_up(totals)
        for parts, total in zip(gradients, totals, strict=True):
            for part in parts:
                part.copy_(total)

    def _norms(self, layer: int) -> list[WholeGraphNorm]:
        """Of every network; partitions on one device may share one."""
        return [network.norm(layer) for network in dict.fromkeys(self.networks)]

    def fetch(self, x: moves.Fetch) -> None:
        assert self.messages is not None
        self.messages.fetch(x)

    def send_back(self, x: moves.SendBack) -> None:
        assert self.messages is not None
        self.messages.send_back(x)

    def post(self, x: moves.Post) -> None:
        assert self.messages is not None and self._current is not None
        step = self._current.order.index(self._batch)
        self.devices[0].streams.host.run(partial(self.messages.post, x, step))

    def loss_over_edges(self, x: moves.LossOverEdges) -> None:
        context = self.networks[0].context
        loss = self.loss.backward(self.host[x.output], self.host[x.gradient], context.seed, context.epoch)
        self.partitions[0].loss_value.add_(loss)

    # ------------------------------------------------------------------------------------------------------- streams

    def wait(self, x: waiting.Wait) -> None:
        for device, event in zip(self.devices, getattr(self._turn, x.event), strict=True):
            getattr(device.streams, x.stream).wait(event, x.why)

    def host_wait(self, x: waiting.HostWait) -> None:
        for event in getattr(self._turn, x.event):
            event.synchronize(x.why)

    def signal(self, x: waiting.Signal) -> None:
        setattr(self._turn, x.event, [getattr(device.streams, x.stream).record() for device in self.devices])

    def follow(self, x: waiting.Follow) -> None:
        for device in self.devices:
            getattr(device.streams, x.stream).wait(getattr(device.streams, x.other).record(), x.why)

    def meet(self, x: waiting.Meet) -> None:
        streams = [getattr(device.streams, x.stream) for device in self.devices]
        moments = [stream.record() for stream in streams]
        for k, stream in enumerate(streams):
            for other, moment in enumerate(moments):
                if other != k:
                    stream.wait(moment, x.why)

    # --------------------------------------------------------------------------------- rows that the caches exchange

    def bring_picks(self, x: moves.BringPicks) -> None:
        self._brought[x.name] = [
            device.bring(x.name, self._turn.set, partial(x.picks.column, x.column, i, self._batch), "topology")
            for i, device in enumerate(self.devices)
        ]

    def ship(self, x: moves.Ship) -> None:
        for device in self.devices:
            device.ship(self._turn.set)

    def load(self, x: moves.Load) -> None:
        rows, slots = self._brought["load_rows"], self._brought["load_slots"]
        for i, device in enumerate(self.devices):
            device.load_rows(self._host_rows(x, device), rows[i], device.buffer(x.cache), slots[i])

    def _host_rows(self, x: moves.Load | moves.Flush, device: Device) -> Tensor:
        """What the rows of a column are counted in."""
        if x.column == "row":
            return self.host[x.tensor]
        return device.beside(f"bucket {x.tensor}", self._turn.set)

    def pull(self, x: moves.Pull) -> None:
        source, target = self._brought["pull_from"], self._brought["pull_to"]
        for i, device in enumerate(self.devices):
            for peer, part in x.picks.by_peer(i, self._batch):
                peers = self.devices[peer].buffer(x.cache)
                device.pull_rows(peers, source[i][part], device.buffer(x.cache), target[i][part])

    def zero(self, x: moves.Zero) -> None:
        for device, slots in zip(self.devices, self._brought[x.slots], strict=True):
            device.zero_rows(device.buffer(x.cache), slots)

    def push(self, x: moves.Push) -> None:
        source, target = self._brought["push_from"], self._brought["push_to"]
        for i, device in enumerate(self.devices):
            for peer, part in x.picks.by_peer(i, self._batch):
                peers = self.devices[peer].buffer(x.cache)
                contended = (self._batch, peer) in x.contended.pairs
                device.push_rows(device.buffer(x.cache), source[i][part], peers, target[i][part], contended=contended)

    def flush(self, x: moves.Flush) -> None:
        for i, device in enumerate(self.devices):
            rows = x.picks.column(x.column, i, self._batch)
            stores = x.stores[i].of(x.picks.of(i, self._batch))
            cache, slots = device.buffer(x.cache), self._brought["flush_slots"][i]
            host, into = self._host_rows(x, device), stores if x.to_bucket is None else True
            device.flush_rows(self._turn.set, cache, slots, host, rows, into)
            if x.to_bucket is not None and x.to_bucket.rows:
                vertices = x.picks.column("row", i, self._batch)
                device.streams.host.run(partial(add_kept, x.to_bucket, host, vertices, stores, self.host[x.tensor]))

    # ------------------------------------------------------------------------------------------------------ the disk

    def lay_out(self, x: spilling.LayOut) -> None:
        assert self.disk is not None
        for chunk in self._chunks:
            self.disk.lay_out(x, chunk)

    def _chunks_on_disk(self, x: Instruction) -> None:
        for chunk in self._chunks:
            chunk.device.streams.disk.run(partial(getattr(self.disk, x.verb), x, chunk.bare()))

    recall = recall_given = spill = _chunks_on_disk

    def _picks_on_disk(self, x: Instruction) -> None:
        for i, device in enumerate(self.devices):
            device.streams.disk.run(partial(getattr(self.disk, x.verb), x, device, i, self._batch, self._turn.set))

    recall_picks = spill_picks = _picks_on_disk

    # -------------------------------------------------------------------------------------------------------- chunks

    def compute(self, x: moves.Compute) -> None:
        for chunk in self._chunks:
            chunk.device.streams.compute.run(partial(Body(chunk).run, x))

    def _on_chunks(self, x: Instruction) -> None:
        for chunk in self._chunks:
            getattr(chunk, x.verb)(x)

    read = read_sparse = bring = bring_slots = fill = fill_rows = fill_slots = deliver = _on_chunks

"""What the instructions of a program do, each on all devices.

Paper Algorithms 1 to 3 are what they do together: values through the caches, chunk outputs to the host, backward from
the checkpoints there, gradients accumulated on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hongtu.device.base import Device
from hongtu.device.capture import Recorder
from hongtu.device.streams import DONE, Event
from hongtu.engine.body import Body
from hongtu.engine.chunk import Chunk, Partition
from hongtu.engine.disk import Disk, add_kept
from hongtu.engine.host_store import HostStore
from hongtu.engine.messages import Messages, Outputs
from hongtu.model.network import Network
from hongtu.nn.whole_graph import Moments, WholeGraphNorm
from hongtu.plan.program import moves
from hongtu.plan.program.moves import Copy, Instruction
from hongtu.plan.program.on_disk import Bucket
from hongtu.plan.program.program import PassProgram
from hongtu.plan.program.ref import Ref
from hongtu.plan.program.rows import Picked
from hongtu.ranks.together import Alone, Together


@dataclass(frozen=True, kw_only=True)
class Means:
    """What a program is run with.

    Attributes:
        networks: the model of each partition.
        host: vertex tensors; must hold "statistics", "factors" and "edge_id_start" where layers need them.
        devices: one per partition.
        loss: evaluated where the program says so.
        num_graph_edges, num_graph_vertices: of the whole graph, of which the program may run a share.
        own_end: int64 [m], the row behind the last of every partition that is this rank's own; None: all rows are.
        ranks: who runs the other shares.
        messages: between ranks, or None where the program has none.
        outputs: of all ranks, or None where no loss looks at others'.
        disk: has the rows that the host does not hold, or None where the program spills none.
        most: bytes of anonymous memory that the process may have between two batches then.
        recorder: captures passes that repeat, or None.
    """

    networks: list[Network]
    host: HostStore
    devices: list[Device]
    loss: Any
    num_graph_edges: int
    num_graph_vertices: int
    own_end: np.ndarray | None = None
    ranks: Together = field(default_factory=Alone)
    messages: Messages | None = None
    outputs: Outputs | None = None
    disk: Disk | None = None
    most: int = 0
    recorder: Recorder | None = None

    def partitions(self, start: np.ndarray) -> list[Partition]:
        """Each with its device and network; ``start``: int64 [m + 1], where they begin."""
        ends = start[1:] if self.own_end is None else self.own_end
        return [
            Partition(device, network, self.host, self.loss, int(first), int(end), self.num_graph_edges)
            for device, network, first, end in zip(self.devices, self.networks, start[:-1], ends, strict=True)
        ]


class Instructions:
    """A method for each kind, for each link of copies and for each kernel that is no chunk's, by its verb.

    Args:
        start: int64 [m + 1], where partitions begin.
    """

    def __init__(self, means: Means, start: np.ndarray) -> None:
        self.means, self.partitions = means, means.partitions(start)
        self.networks, self.host, self.devices = means.networks, means.host, means.devices
        self.messages, self.disk, self.ranks = means.messages, means.disk, means.ranks
        self._current: PassProgram | None = None
        self._batch = 0
        self._set = 0  # the batch's number in its pass, by which it has a set of staging memory
        self._events: dict[moves.EventName, list[Event]] = {}  # of the batches that have this set, of every device
        self._chunks: list[Chunk] = []
        self._brought: dict[str, list[Tensor]] = {}  # columns of picks, of every device

    def _run(self, body: tuple[Instruction, ...]) -> None:
        for x in body:
            getattr(self, x.verb)(x)

    # -------------------------------------------------------------------------------------------- around the batches

    def place(self, x: moves.Place) -> None:
        if x.where == "host":
            self.host.create(x.name, (*x.rows, *x.shape), x.zero, x.kept, self.host.torch_dtype(x.dtype))
            return
        for device, rows, at in zip(self.devices, x.rows, x.at or [None] * len(x.rows), strict=True):
            buffer = device.place(x.name, (rows, *x.shape), self.host.torch_dtype(x.dtype), at, apart=x.padded)
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

    def begin_moments(self, x: moves.Call) -> None:
        """Begin to gather mean and variance of what a stage gives the normalisation behind it."""
        norms = self._norms(x.settings["stage"])
        for norm in norms:
            norm.forget()
        wanted = norms[0].gathers(self.means.num_graph_vertices)
        for partition in self.partitions:
            partition.moments = Moments(partition.device.numbers(2, x.settings["columns"]), wanted=wanted)

    def end_moments(self, x: moves.Call) -> None:
        """Give every network the statistics of all rows."""
        gathered = [partition.moments for partition in self.partitions]
        statistics = Moments.combine(gathered).with_others(self.ranks.gather).statistics
        for network, moments in zip(self.networks, gathered, strict=True):
            norm = network.norm(x.settings["stage"])
            norm.set_statistics(statistics, moments.mean.device, self.means.num_graph_vertices)
        for device in self.devices:
            device.begin()

    def sum_statistics(self, x: moves.Call) -> None:
        """Give every network the gradients of a normalisation's statistics, summed over all of them."""
        gradients = list(zip(*(norm.gradients for norm in self._norms(x.settings["layer"])), strict=True))
        totals = [torch.stack([part.cpu() for part in parts]).sum(0) for parts in gradients]
        self.ranks.add_up(totals)
        for parts, total in zip(gradients, totals, strict=True):
            for part in parts:
                part.copy_(total)

    def _norms(self, layer: int) -> list[WholeGraphNorm]:
        """Of every network; partitions on one device may share one."""
        return [network.norm(layer) for network in dict.fromkeys(self.networks)]

    def cross(self, x: moves.Cross) -> None:
        assert self.messages is not None
        self.messages.cross(x)

    def post(self, x: moves.Post) -> None:
        assert self.messages is not None and self._current is not None
        step = self._current.order.index(self._batch)
        self.devices[0].streams.host.run(partial(self.messages.post, x, step))

    def loss_over_edges(self, x: moves.Call) -> None:
        """Evaluate the loss over edges on the host: the whole output in, its gradient out."""
        context, outputs = self.networks[0].context, self.means.outputs
        output, gradient = self.host[x.settings["output"]], self.host[x.settings["gradient"]]
        if outputs is None:
            loss = self.means.loss.backward(output, gradient, context.seed, context.epoch)
        else:
            outputs.gradients.zero_()
            part = self.ranks.rank, self.ranks.size
            rows = outputs.fetch(output)
            loss = self.means.loss.backward(rows, outputs.gradients, context.seed, context.epoch, part)
            outputs.send(gradient)
        self.partitions[0].loss_value.add_(loss)

    # ------------------------------------------------------------------------------------------------------- streams

    def wait(self, x: moves.Wait) -> None:
        nothing: list[Event] = [DONE] * len(self.devices)
        for device, event in zip(self.devices, self._events.get(x.event, nothing), strict=True):
            if x.stream == "dispatch":
                event.synchronize(x.why)
            else:
                getattr(device.streams, x.stream).wait(event, x.why)

    def signal(self, x: moves.Signal) -> None:
        self._events[x.event] = [getattr(device.streams, x.stream).record() for device in self.devices]

    def follow(self, x: moves.Follow) -> None:
        for device in self.devices:
            getattr(device.streams, x.stream).wait(getattr(device.streams, x.other).record(), x.why)

    def meet(self, x: moves.Meet) -> None:
        streams = [getattr(device.streams, x.stream) for device in self.devices]
        moments = [stream.record() for stream in streams]
        for k, stream in enumerate(streams):
            for other, moment in enumerate(moments):
                if other != k:
                    stream.wait(moment, x.why)

    # --------------------------------------------------------------------------------- rows that the caches exchange

    def topology(self, x: Copy) -> None:
        """An array to the device; also a chunk's rows, of which every chunk has some."""
        if not isinstance(x.src.rows, Picked):
            for chunk in self._chunks:
                chunk.bring(x)
            return
        self._brought[x.dst.tensor] = [
            device.bring(x.dst.tensor, self._set, partial(x.src.rows.array, i, self._batch), x.link)
            for i, device in enumerate(self.devices)
        ]

    read = topology

    def ship(self, x: moves.Ship) -> None:
        for device in self.devices:
            device.ship(self._set)

    def _at(self, ref: Ref) -> list[Tensor]:
        """Where the rows of a reference are, as it was brought to every device."""
        assert isinstance(ref.rows, Picked)
        return self._brought[ref.rows.at]

    def _host_rows(self, ref: Ref, device: Device) -> Tensor:
        """What the rows of a column are counted in."""
        if isinstance(ref.rows, Picked) and ref.rows.column == "place":
            return device.beside(f"bucket {ref.tensor}", self._set)
        return self.host[ref.tensor]

    def load(self, x: Copy) -> None:
        for device, rows, slots in zip(self.devices, self._at(x.src), self._at(x.dst), strict=True):
            device.move_rows("load", self._host_rows(x.src, device), rows, device.buffer(x.dst.tensor), slots)

    def pull(self, x: Copy) -> None:
        for device, (_, rows), source, target in self._by_peer(x.src, x.dst):
            device.move_rows("pull", rows, source, device.buffer(x.dst.tensor), target)

    def push(self, x: Copy) -> None:
        assert isinstance(x.dst.rows, Picked)
        for device, (peer, rows), target, source in self._by_peer(x.dst, x.src):
            contended = (self._batch, peer) in x.dst.rows.picks.contended  # else each row has one writer
            device.push_rows(device.buffer(x.src.tensor), source, rows, target, contended=contended)

    def _by_peer(self, theirs: Ref, own: Ref) -> Iterator[tuple[Device, tuple[int, Tensor], Tensor, Tensor]]:
        """For every device each peer with its cache, and the slots there and here."""
        assert isinstance(own.rows, Picked)
        there, here = self._at(theirs), self._at(own)
        for i, device in enumerate(self.devices):
            for peer, part in own.rows.picks.by_peer(i, self._batch):
                yield device, (peer, self.devices[peer].buffer(theirs.tensor)), there[i][part], here[i][part]

    def flush(self, x: Copy) -> None:
        rows, stores, kept = x.dst.rows, x.dst.access, x.dst.kept
        assert isinstance(rows, Picked) and isinstance(stores, tuple)
        for i, (device, slots) in enumerate(zip(self.devices, self._at(x.src), strict=True)):
            into, host = stores[i].among(rows.picks.intervals(i, self._batch)), self._host_rows(x.dst, device)
            cache, bucket = device.buffer(x.src.tensor), into if kept is None else True
            device.flush_rows(self._set, cache, slots, host, rows.array(i, self._batch), bucket)
            if kept is not None and kept.rows:
                vertices = rows.picks.column("row", i, self._batch)
                device.streams.host.run(partial(add_kept, kept, host, vertices, into, self.host[x.dst.tensor]))

    def write(self, x: Copy) -> None:
        """What a chunk wrote for a host tensor reaches it."""
        for chunk in self._chunks:
            chunk.deliver(x)

    def zero_rows(self, x: moves.Call) -> None:
        assert x.at is not None
        for device, slots in zip(self.devices, self._at(x.at), strict=True):
            device.zero_rows(device.buffer(x.at.tensor), slots)

    # ------------------------------------------------------------------------------------------------- below the host

    def recall(self, x: Copy) -> None:
        assert self.disk is not None
        self._below(x.src, self.disk.recall, self.disk.recall_bucket)

    def spill(self, x: Copy) -> None:
        assert self.disk is not None
        self._below(x.dst, self.disk.spill, self.disk.spill_bucket)

    def _below(self, there: Ref, move: Callable[[Ref, Chunk], None], move_bucket: Callable[..., None]) -> None:
        """Move of every device a bucket, or of every chunk its rows, if they are there."""
        if isinstance(there.rows, Bucket):
            for i, device in enumerate(self.devices):
                device.streams.disk.run(partial(move_bucket, there, device, i, self._batch, self._set))
            return
        for chunk in self._chunks:
            if not chunk.in_memory(there.kept):
                chunk.device.streams.disk.run(partial(move, there, chunk.bare()))

    # -------------------------------------------------------------------------------------------------------- chunks

    def compute(self, x: moves.Compute) -> None:
        for chunk in self._chunks:
            chunk.device.streams.compute.run(partial(Body(chunk).run, x))

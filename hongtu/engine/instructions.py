"""What the instructions of a program do, each on all devices.

Paper Algorithms 1 to 3 are what they do together: values through the caches, chunk outputs to the host, backward from
the checkpoints there, gradients accumulated on the host.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from hongtu.device.base import Device
from hongtu.device.streams import Turn
from hongtu.engine.body import Body
from hongtu.engine.chunk import Chunk, Partition
from hongtu.engine.disk import Disk, add_kept
from hongtu.engine.host_store import HostStore
from hongtu.engine.messages import Messages
from hongtu.model.network import Network
from hongtu.nn.moments import Moments
from hongtu.nn.whole_graph import WholeGraphNorm
from hongtu.plan.memory.structure import FLOAT
from hongtu.plan.program import moves, spilling, waiting
from hongtu.plan.program.instruction import Instruction
from hongtu.plan.program.origins import Column
from hongtu.plan.program.program import PassProgram
from hongtu.ranks.together import Alone, Together


class Instructions:
    """A method for each kind, by its verb.

    Args:
        networks: the model of each partition.
        host: vertex tensors; must hold "statistics", "factors" and "edge_id_start" where layers need them.
        devices: one per partition.
        loss: evaluated where the program says so.
        partitions: each with its device and network.
        num_graph_vertices: of the whole graph, of which the program may run a share.
        ranks: who runs the other shares.
        messages: between ranks, or None where the program has none.
        disk: has the rows that the host does not hold, or None where the program spills none.
    """

    def __init__(
        self,
        networks: list[Network],
        host: HostStore,
        devices: list[Device],
        loss: Any,
        partitions: list[Partition],
        num_graph_vertices: int,
        ranks: Together | None = None,
        messages: Messages | None = None,
        disk: Disk | None = None,
    ) -> None:
        self.networks, self.host, self.devices, self.loss = networks, host, devices, loss
        self.partitions, self.num_graph_vertices = partitions, num_graph_vertices
        self.messages, self.disk, self.ranks = messages, disk, ranks or Alone()
        self._current: PassProgram | None = None
        self._batch = 0
        self._turn = Turn(len(devices))
        self._chunks: list[Chunk] = []
        self._brought: dict[str, list[Tensor]] = {}  # columns of picks, of every device

    def _run(self, body: tuple[Instruction, ...]) -> None:
        for x in body:
            getattr(self, x.verb)(x)

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

    def cross(self, x: moves.Cross) -> None:
        assert self.messages is not None
        self.messages.cross(x)

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
            if x.stream == "dispatch":
                event.synchronize(x.why)
            else:
                getattr(device.streams, x.stream).wait(event, x.why)

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

    def bring(self, x: moves.Bring) -> None:
        if x.origin.of_chunk:
            self._on_chunks(x)
        else:
            assert isinstance(x.origin, Column)
            self._brought[x.name] = [
                device.bring(x.name, self._turn.set, partial(x.origin.of, i, self._batch), x.link)
                for i, device in enumerate(self.devices)
            ]

    def ship(self, x: moves.Ship) -> None:
        for device in self.devices:
            device.ship(self._turn.set)

    def load(self, x: moves.Load) -> None:
        rows, slots = self._brought["load_rows"], self._brought["load_slots"]
        for i, device in enumerate(self.devices):
            device.move_rows("load", self._host_rows(x, device), rows[i], device.buffer(x.cache), slots[i])

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
                device.move_rows("pull", peers, source[i][part], device.buffer(x.cache), target[i][part])

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

    def _chunks_on_disk(self, x: spilling.Recall | spilling.RecallGiven | spilling.Spill) -> None:
        for chunk in self._chunks:
            if not x.kept.has(chunk.i, chunk.first):
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

    fill = deliver = _on_chunks

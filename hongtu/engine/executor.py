"""Runs a program: one instruction after the other, each on all devices. It decides nothing.

Paper Algorithms 1 to 3 are what the instructions do together: values through the caches, chunk outputs to the host,
backward from the checkpoints there, gradients accumulated on the host.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from hongtu.device.base import Device
from hongtu.device.streams import Turn
from hongtu.engine.chunk import Chunk, Partition
from hongtu.engine.host_store import HostStore
from hongtu.engine.moments import Moments
from hongtu.kernels.rows import zero_rows
from hongtu.model.edge_loss import EdgeLoss
from hongtu.model.network import Network
from hongtu.model.vertex_loss import MeanLoss
from hongtu.plan.memory.structure import FLOAT
from hongtu.plan.program import moves
from hongtu.plan.program.instruction import Instruction, Picks
from hongtu.plan.program.program import PassProgram, Program


class Executor:
    """Interprets the passes of a program.

    Args:
        program: what to run.
        networks: the model of each partition.
        host: vertex tensors; must hold "statistics" and "edge_id_start" where layers need them.
        devices: one per partition.
        loss: evaluated where the program says so.

    Attributes:
        current: the pass that runs, or ran last.
        seconds: of every pass of the last ``run``, by name.
    """

    def __init__(
        self,
        program: Program,
        networks: list[Network],
        host: HostStore,
        devices: list[Device],
        loss: MeanLoss | EdgeLoss | None,
    ) -> None:
        self.program, self.networks, self.host, self.devices = program, networks, host, devices
        topology = program.setup[0].view
        self.partitions = [
            Partition(device, network, host, loss, int(first), topology.num_edges)
            for device, network, first in zip(devices, networks, topology.partition_start[:-1], strict=True)
        ]
        self.num_vertices = topology.num_vertices
        self.loss = loss
        self.current: PassProgram | None = None
        self.seconds: dict[str, float] = {}
        self._batch = 0
        self._turn = Turn(0, len(devices))
        self._chunks: list[Chunk] = []

    @property
    def loss(self) -> MeanLoss | EdgeLoss | None:
        return self._loss

    @loss.setter
    def loss(self, loss: MeanLoss | EdgeLoss | None) -> None:
        self._loss = loss
        for partition in self.partitions:
            partition.loss = loss

    def run(self, passes: tuple[PassProgram, ...]) -> float:
        """Run passes in order; returns the loss where one of them evaluates it, else 0. After an error nothing of the
        executor can be used any more."""
        for partition in self.partitions:
            partition.loss_value.zero_()
            partition.device.begin()
        self.seconds.clear()
        for p in passes:
            start = perf_counter()
            self._run_pass(p)
            self.seconds[p.name] = perf_counter() - start
        return sum(float(partition.loss_value) for partition in self.partitions)

    def workspace_of(self, p: PassProgram) -> int:
        """Run one pass on the first device and return the most bytes that layers took in it."""
        self.devices[0].reset_peaks()
        self._run_pass(p)
        return self.devices[0].workspace_peak

    def _run_pass(self, p: PassProgram) -> None:
        self.current = p
        try:
            self._run(p.before)
            self._allocate(p)
            turns = [Turn(k, len(self.devices)) for k in range(p.sets)]
            for step, self._batch in enumerate(p.order):
                self._turn = turns[step % p.sets]
                chunks = [(i, p.chunk(i, self._batch)) for i in range(len(self.devices))]
                self._chunks = [
                    Chunk(self.partitions[i], p, i, self._batch, number, self._turn.set)
                    for i, number in chunks
                    if p.view.num_dst[number] > 0
                ]
                self._run(p.body)
            self._chunks = []
            for device in self.devices:
                device.drain()
            self._run(p.after)
        except BaseException:
            for device in self.devices:
                device.abandon()
            raise
        finally:
            for device in self.devices:
                device.release_all()
            self.host.staging(0)
        self._run(p.frees)

    def _run(self, body: tuple[Instruction, ...]) -> None:
        for x in body:
            getattr(self, x.verb)(x)

    def _allocate(self, p: PassProgram) -> None:
        staging = [buffer for buffers in p.staging for buffer in buffers.values()]
        self.host.staging(sum(buffer.nbytes(self.host.dtype.itemsize) for buffer in staging))
        for device, own, beside in zip(self.devices, p.buffers, p.staging, strict=True):
            for make, buffers in ((device.allocate, own), (device.prepare_staging, beside)):
                for name, buffer in buffers.items():
                    make(name, buffer.sets, buffer.shape, self._dtype(buffer.dtype))

    def _dtype(self, name: str) -> torch.dtype:
        return self.host.dtype if name == FLOAT else getattr(torch, name)

    # -------------------------------------------------------------------------------------------- around the batches

    def place(self, x: moves.Place) -> None:
        if x.where == "host":
            self.host.create(x.name, *x.shape, zero=x.zero is True)
            if isinstance(x.zero, np.ndarray):
                zero_rows(self.host[x.name].numpy(), x.zero)
            return
        for device, rows in zip(self.devices, x.rows, strict=True):
            buffer = device.place(x.name, (rows, *x.shape), self._dtype(x.dtype))
            if x.zero:
                device.streams.compute.run(buffer.zero_)

    def free(self, x: moves.Free) -> None:
        if x.where == "host":
            self.host.free(x.name)
        elif x.where == "device":
            for device in self.devices:
                device.remove(x.name)
        for partition in self.partitions:
            for key in [key for key in partition.pieces if key[0] == x.name]:
                del partition.pieces[key]

    def begin_moments(self, x: moves.BeginMoments) -> None:
        """If the normalisation needs statistics of the graph now."""
        for network in self._each_network():
            network.norm(x.stage).forget()
        gathers = self.networks[0].norm(x.stage).gathers(self.num_vertices)
        for partition in self.partitions:
            partition.moments = Moments(partition.device.numbers(2, x.columns)) if gathers else None

    def end_moments(self, x: moves.EndMoments) -> None:
        gathered = [partition.moments for partition in self.partitions if partition.moments is not None]
        if not gathered:
            return
        mean, var = Moments.combine(gathered)
        for network, moments in zip(self.networks, gathered, strict=True):
            where = moments.mean.device
            network.norm(x.stage).set_statistics(mean.clone().to(where), var.clone().to(where), self.num_vertices)
        for device in self.devices:
            device.begin()

    def sum_statistics(self, x: moves.SumStatistics) -> None:
        norms = [network.norm(x.layer) for network in self._each_network()]
        for parts in zip(*(norm.gradients for norm in norms), strict=True):
            total = torch.stack([part.cpu() for part in parts]).sum(0)
            for part in parts:
                part.copy_(total)

    def _each_network(self) -> list[Network]:
        """Partitions on one device may share a network."""
        return list({id(network): network for network in self.networks}.values())

    def edge_loss(self, x: moves.EdgeLoss) -> None:
        if isinstance(self.loss, EdgeLoss):  # a probe has none
            context = self.networks[0].context
            loss = self.loss.backward(self.host[x.output], self.host[x.gradient], context.seed, context.epoch)
            self.partitions[0].loss_value.add_(loss)

    # ------------------------------------------------------------------------------------------------------- streams

    def wait(self, x: moves.Wait) -> None:
        for device, event in zip(self.devices, getattr(self._turn, x.event), strict=True):
            getattr(device.streams, x.stream).wait(event, x.why)

    def host_wait(self, x: moves.HostWait) -> None:
        for event in getattr(self._turn, x.event):
            event.synchronize(x.why)

    def signal(self, x: moves.Signal) -> None:
        setattr(self._turn, x.event, [getattr(device.streams, x.stream).record() for device in self.devices])

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

    def bring_picks(self, x: moves.BringPicks) -> None:
        for i, device in enumerate(self.devices):
            table, pick = x.picks.table(i), self._picked(x.picks, i)
            device.bring(x.name, self._turn.set, getattr(table, x.column)[pick], "topology")

    def _picked(self, picks: Picks, i: int) -> slice | np.ndarray:
        """Which intervals of a device; those that mirror by peer."""
        pick = picks.of(i, self._batch)
        if not picks.mirrors:
            return pick
        order = np.argsort(picks.table(i).peer[pick], kind="stable")
        return pick.start + order if isinstance(pick, slice) else pick[order]

    def _peers(self, picks: Picks, i: int) -> list[tuple[Device, slice]]:
        """The range of each peer in an array of a device's picks."""
        peer = picks.table(i).peer[self._picked(picks, i)]
        bounds = np.searchsorted(peer, np.arange(len(self.devices) + 1)).tolist()
        ranges = zip(self.devices, bounds, bounds[1:], strict=False)
        return [(device, slice(lo, hi)) for device, lo, hi in ranges if lo < hi]

    def _staged(self, device: Device, name: str, picks: Picks, i: int) -> Tensor:
        """What ``bring_picks`` brought."""
        return device.staging(name, self._turn.set)[: len(picks.table(i).row[picks.of(i, self._batch)])]

    def load(self, x: moves.Load) -> None:
        for i, device in enumerate(self.devices):
            rows, slots = (self._staged(device, name, x.picks, i) for name in ("load_rows", "load_slots"))
            device.load_rows(self.host[x.tensor], rows, device.buffer(x.cache), slots)

    def pull(self, x: moves.Pull) -> None:
        for i, device in enumerate(self.devices):
            source, target = (device.staging(name, self._turn.set) for name in ("pull_from", "pull_to"))
            for peer, part in self._peers(x.picks, i):
                device.pull_rows(peer.buffer(x.cache), source[part], device.buffer(x.cache), target[part])

    def zero(self, x: moves.Zero) -> None:
        for i, device in enumerate(self.devices):
            device.zero_rows(device.buffer(x.cache), self._staged(device, x.slots, x.picks, i))

    def push(self, x: moves.Push) -> None:
        for i, device in enumerate(self.devices):
            source, target = (device.staging(name, self._turn.set) for name in ("push_from", "push_to"))
            for peer, part in self._peers(x.picks, i):
                device.push_rows(device.buffer(x.cache), source[part], peer.buffer(x.cache), target[part])

    def flush(self, x: moves.Flush) -> None:
        for i, device in enumerate(self.devices):
            pick = x.picks.of(i, self._batch)
            rows = x.picks.table(i).row[pick]
            if len(rows):
                slots = self._staged(device, "flush_slots", x.picks, i)
                stores = x.stores[i][pick] if x.stores else np.zeros(len(rows), dtype=np.bool_)
                device.flush_rows(self._turn.set, device.buffer(x.cache), slots, self.host[x.tensor], rows, stores)

    # -------------------------------------------------------------------------------------------------------- chunks

    def read(self, x: moves.Read) -> None:
        for chunk in self._chunks:
            chunk.read(x.name, x.link)

    def read_sparse(self, x: moves.ReadSparse) -> None:
        for chunk in self._chunks:
            chunk.read_sparse(x.name)

    def bring(self, x: moves.Bring) -> None:
        for chunk in self._chunks:
            chunk.bring(x.name, chunk.array(x.name))

    def bring_slots(self, x: moves.BringSlots) -> None:
        for chunk in self._chunks:
            chunk.bring(x.name, x.slots.of(chunk.i, self._batch))

    def fill(self, x: moves.Fill) -> None:
        for chunk in self._chunks:
            chunk.fill(x)

    def compute(self, x: moves.Compute) -> None:
        for chunk in self._chunks:
            chunk.device.streams.compute.run(partial(chunk.compute, x))

    def send(self, x: moves.Send) -> None:
        for chunk in self._chunks:
            chunk.send(x)

"""Runs passes: batch by batch the transfers of the plan, and one chunk per device between them.

Paper Algorithms 1 to 3: values through the caches, chunk outputs to the host, backward from the checkpoints there,
gradients accumulated on the host. Tensors that the plan leaves on the devices are views of their buffers instead.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from hongtu.device.base import Device
from hongtu.device.streams import Turn
from hongtu.engine.chunk_run import ChunkRun, Kept
from hongtu.engine.exchange import Exchange
from hongtu.engine.host_store import HostStore
from hongtu.engine.moments import Moments
from hongtu.engine.structure import place_structure
from hongtu.kernels.rows import zero_rows
from hongtu.model.edge_loss import EdgeLoss
from hongtu.model.network import Network
from hongtu.model.vertex_loss import MeanLoss
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.memory.arena import FLOAT
from hongtu.plan.passes.definition import FEATURES, OUTPUT, Pass, gradient


class Executor:
    """Replays an execution plan.

    Args:
        plan: what to run.
        networks: the model of each partition.
        host: vertex tensors; must hold "statistics" and "edge_id_start" where the plan's layers need them.
        devices: one per partition.
        loss: evaluated on the last forward pass of training.

    Attributes:
        current: the pass that runs, or ran last.
        pieces: rows that chunks keep for themselves, by vertex tensor and chunk.
        moments: what the pass has gathered on each device; [] where it gathers nothing.
        seconds: of every pass of the last ``run``, by name.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        networks: list[Network],
        host: HostStore,
        devices: list[Device],
        loss: MeanLoss | EdgeLoss | None,
    ) -> None:
        self.plan, self.networks, self.host, self.devices = plan, networks, host, devices
        self.loss = loss
        self.current: Pass | None = None
        self.seconds: dict[str, float] = {}
        self.loss_values = [device.numbers() for device in devices]
        self.kept: dict[tuple[int | None, int], Kept] = {}
        self.pieces: dict[tuple[str, int], Tensor] = {}
        self.moments: list[Moments] = []
        self._starts = plan.topology.partition_start

    def set_up(self) -> None:
        """Run what is needed once: what stays on the devices goes there, constant tensors are computed."""
        if self.plan.choice.structure:
            for i, device in enumerate(self.devices):
                place_structure(self.plan, self.host, device, i)
            for device in self.devices:
                device.drain()
        if FEATURES in self.plan.resident:
            self._create(FEATURES, zero=False)
            for i, device in enumerate(self.devices):
                host = self.host.rows(FEATURES, int(self._starts[i]), int(self._starts[i + 1]))
                device.fill(self.own_rows(FEATURES, i), host, "read")
            for device in self.devices:
                device.drain()
        self.run(self.plan.passes.setup)
        if FEATURES in self.plan.resident or FEATURES not in self.plan.passes.constant:
            self.host.free(FEATURES)

    def run(self, passes: tuple[Pass, ...]) -> float:
        """Run passes in order; returns the loss where one of them evaluates it, else 0."""
        for device, value in zip(self.devices, self.loss_values, strict=True):
            value.zero_()
            device.begin()
        before = self.host.names(), [device.placed() for device in self.devices]
        self.seconds.clear()
        try:
            for p in passes:
                start = perf_counter()
                self._run_pass(p)
                self.seconds[p.name] = perf_counter() - start
        except BaseException:
            self.kept.clear()
            self.pieces.clear()
            self.host.free_except(before[0])
            for device, placed in zip(self.devices, before[1], strict=True):
                for name in device.placed() - placed:
                    device.remove(name)
            raise
        return sum(float(value) for value in self.loss_values)

    def workspace_of(self, p: Pass) -> int:
        """Run one pass on the first device and return the most bytes that layers took in it."""
        self.devices[0].reset_peaks()
        self._run_pass(p)
        return self.devices[0].workspace_peak

    def own_rows(self, name: str, device: int) -> Tensor:
        """The rows of a device's partition in a resident tensor; slots for rows of peers come behind them."""
        return self.devices[device].buffer(name)[: int(self._starts[device + 1] - self._starts[device])]

    def _create(self, name: str, *, zero: bool) -> None:
        if name in self.plan.pieces:
            return
        columns = self.plan.passes.width[name]
        if name not in self.plan.resident:
            writers = self.plan.writers.get(name)
            self.host.create(name, columns, zero=zero and writers is None)
            if writers is not None:
                zero_rows(self.host[name].numpy(), writers.unwritten)
            return
        for i, device in enumerate(self.devices):
            buffer = device.place(name, (self.plan.resident_rows(name, i), columns), self.host.dtype)
            if zero:
                device.streams.compute.run(buffer.zero_)

    def _free(self, name: str) -> None:
        if name in self.plan.pieces:
            for key in [key for key in self.pieces if key[0] == name]:
                del self.pieces[key]
        elif name in self.plan.resident:
            for device in self.devices:
                device.remove(name)
        else:
            self.host.free(name)

    def _run_pass(self, p: Pass) -> None:
        self.current = p
        some_rows = self.plan.view(p).active is not None
        for name in p.creates:  # rows without a writer are zero
            edges = p.edge_loss and name == gradient(OUTPUT)
            self._create(name, zero=edges or p.leaves_out(name, pruned=some_rows))
        self._begin_moments(p)
        try:
            self._allocate(p)
            self._run_batches(p)
            for device in self.devices:
                device.drain()
            self._end_moments(p)
            self._sum_statistics_gradient(p)
            if p.edge_loss:
                self._evaluate_edges()
        except BaseException:
            for device in self.devices:
                device.abandon()
            raise
        finally:
            for device in self.devices:
                device.release_all()
            self.host.staging(0)
        for name in p.frees:
            self._free(name)

    def _begin_moments(self, p: Pass) -> None:
        """Where the next layer is a normalisation: begin to gather, if it needs statistics of the graph now."""
        self.moments = []
        if p.moments is None or p.stage is None or p.direction != "forward":
            return
        for network in self._each_network():
            network.norm(p.stage).forget()
        if self.networks[0].norm(p.stage).gathers(self.plan.topology.num_vertices):
            columns = self.plan.passes.width[p.moments]
            self.moments = [Moments(device.numbers(2, columns)) for device in self.devices]

    def _end_moments(self, p: Pass) -> None:
        """Give every network the statistics of all rows."""
        if not self.moments or p.stage is None:
            return
        mean, var = Moments.combine(self.moments)
        vertices = self.plan.topology.num_vertices
        for network, moments in zip(self.networks, self.moments, strict=True):
            where = moments.mean.device
            network.norm(p.stage).set_statistics(mean.clone().to(where), var.clone().to(where), vertices)
        for device in self.devices:
            device.begin()

    def _sum_statistics_gradient(self, p: Pass) -> None:
        """After backward of a normalisation: every network gets what came back to its statistics in all of them."""
        if p.layer is None or not self.plan.shape.layers[p.layer].norm or p.direction == "forward":
            return
        norms = [network.norm(p.layer) for network in self._each_network()]
        for parts in zip(*(norm.gradients for norm in norms), strict=True):
            total = torch.stack([part.cpu() for part in parts]).sum(0)
            for part in parts:
                part.copy_(total)

    def _each_network(self) -> list[Network]:
        """Partitions on one device may share a network."""
        return list({id(network): network for network in self.networks}.values())

    def _evaluate_edges(self) -> None:
        """The loss over edges, on the host; a probe has none."""
        if isinstance(self.loss, EdgeLoss):
            context = self.networks[0].context
            rows = self.host[OUTPUT], self.host[gradient(OUTPUT)]
            self.loss_values[0].add_(self.loss.backward(*rows, context.seed, context.epoch))

    def _allocate(self, p: Pass) -> None:
        self.host.staging(self.plan.host_staging_bytes(p))
        for i, device in enumerate(self.devices):
            for make, buffers in (
                (device.allocate, self.plan.buffers(p, i)),
                (device.prepare_staging, self.plan.host_staging(p, i)),
            ):
                for name, buffer in buffers.items():
                    dtype = self.host.dtype if buffer.dtype == FLOAT else getattr(torch, buffer.dtype)
                    make(name, buffer.sets, buffer.shape, dtype)

    def _run_batches(self, p: Pass) -> None:
        exchange = None
        transfers = self.plan.exchange_plan(p)
        if transfers is not None:
            exchange = Exchange(self.devices, transfers, self.host, p, self.plan.resident)
        turns = [Turn(k, len(self.devices)) for k in range(max(self.plan.choice.staging, 1))]
        batches = range(self.plan.schedule(p).shape[1])
        for step, batch in enumerate(reversed(batches) if p.direction == "backward" else batches):
            self._run_batch(p, batch, turns[step % len(turns)], exchange)

    def _run_batch(self, p: Pass, batch: int, turn: Turn, exchange: Exchange | None) -> None:
        """One batch on all devices: bring, compute, send. The set's last batch was as many before this one as there
        are sets; slots that this one fills were retired by then, for the plan keeps every row that much longer."""
        view, needs = self.plan.view(p), self.plan.needs(p)
        for i, device in enumerate(self.devices):
            device.streams.load.wait(turn.sent[i], "load: the last batch is done with slots and staging")
            turn.brought[i].synchronize("stage: the last copies are through")  # peers have pulled, too
        if exchange is not None:
            exchange.bring(batch, turn)
            if p.flush is not None:
                exchange.bring_ends(batch, turn)
        runs = []
        for i in range(len(self.devices)):
            chunk = i * view.chunks + int(np.asarray(self.plan.schedule(p))[i, batch])
            if view.num_dst[chunk] > 0:
                runs.append(ChunkRun(self, p, needs, i, batch, chunk, turn))
        for i, device in enumerate(self.devices):
            turn.brought[i] = device.streams.load.record()
            device.streams.compute.wait(turn.brought[i], "compute: inputs are there, the last results are away")
        if exchange is not None and p.flush is not None:
            exchange.zero(batch, turn)
        for run in runs:
            run.compute()
        if exchange is not None and p.flush is not None:
            exchange.push(batch, turn)
        for i, device in enumerate(self.devices):
            device.streams.flush.wait(device.streams.compute.record(), "send: results are there")
            device.streams.flush.wait(turn.added[i], "send: the host has taken the last")
        for run in runs:
            run.send()
        if exchange is not None and p.flush is not None and p.flush not in self.plan.resident:
            exchange.flush(batch, turn, self.plan.writers[p.flush].flush if p.flush in p.creates else ())
        for i, device in enumerate(self.devices):
            turn.sent[i] = device.streams.flush.record()
            turn.added[i] = device.streams.host.record()

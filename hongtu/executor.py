"""Runs passes: batch by batch the transfers of the plan, and one chunk per device between them.

Paper Algorithms 1 to 3: values through the caches, chunk outputs to the host, backward from the checkpoints there,
gradients accumulated on the host. Tensors that the plan leaves on the devices are views of their buffers instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from hongtu.chunk_run import ChunkRun, Kept
from hongtu.device import CpuDevice
from hongtu.host_store import HostStore
from hongtu.losses import MeanLoss
from hongtu.metrics import Traffic
from hongtu.network import Network
from hongtu.plan.arena import FLOAT
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes import FEATURES, Pass
from hongtu.transfer import Exchange


class Executor:
    """Replays an execution plan.

    Args:
        plan: what to run.
        network: the model.
        host: vertex tensors; must hold "statistics" and "edge_id_start" where the plan's layers need them.
        devices: one per partition.
        loss: evaluated on the last forward pass of training.
        traffic: the counter that the devices share.

    Attributes:
        current: the pass that runs, or ran last.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        network: Network,
        host: HostStore,
        devices: list[CpuDevice],
        loss: MeanLoss,
        traffic: Traffic,
    ) -> None:
        self.plan, self.network, self.host, self.devices = plan, network, host, devices
        self.loss, self.traffic = loss, traffic
        self.loss_value = 0.0
        self.current: Pass | None = None
        self.kept: dict[tuple[int | None, int], Kept] = {}
        self._starts = plan.topology.partition_start

    def set_up(self) -> None:
        """Run what is needed once: resident features go to their devices, constant tensors are computed."""
        if FEATURES in self.plan.resident:
            self._create(FEATURES, zero=False)
            for i, device in enumerate(self.devices):
                host = self.host.rows(FEATURES, int(self._starts[i]), int(self._starts[i + 1]))
                device.fill(self.own_rows(FEATURES, i), host)
        self.run(self.plan.passes.setup)
        if FEATURES in self.plan.resident or FEATURES not in self.plan.passes.constant:
            self.host.free(FEATURES)

    def run(self, passes: tuple[Pass, ...]) -> float:
        """Run passes in order; returns the loss where one of them evaluates it, else 0."""
        self.loss_value = 0.0
        before = self.host.names(), [device.placed() for device in self.devices]
        try:
            for p in passes:
                self._run_pass(p)
        except BaseException:
            self.kept.clear()
            self.host.free_except(before[0])
            for device, placed in zip(self.devices, before[1], strict=True):
                for name in device.placed() - placed:
                    device.remove(name)
            raise
        return self.loss_value

    def workspace_of(self, p: Pass) -> int:
        """Run one pass on the first device and return the most bytes that layers took in it."""
        self.devices[0].reset_peaks()
        self._run_pass(p)
        return self.devices[0].workspace_peak

    def own_rows(self, name: str, device: int) -> Tensor:
        """The rows of a device's partition in a resident tensor; slots for rows of peers come behind them."""
        return self.devices[device].buffer(name)[: int(self._starts[device + 1] - self._starts[device])]

    def _create(self, name: str, *, zero: bool) -> None:
        columns = self.plan.passes.width[name]
        if name not in self.plan.resident:
            self.host.create(name, columns, zero=zero)
            return
        for i, device in enumerate(self.devices):
            buffer = device.place(name, (self.plan.resident_rows(name, i), columns), self.host.dtype)
            if zero:
                buffer.zero_()

    def _free(self, name: str) -> None:
        if name in self.plan.resident:
            for device in self.devices:
                device.remove(name)
        else:
            self.host.free(name)

    def _run_pass(self, p: Pass) -> None:
        self.current = p
        some_rows = self.plan.view(p).active is not None
        for name in p.creates:  # rows without a writer are zero
            self._create(name, zero=name == p.flush or (some_rows and name in p.direct))
        try:
            for i, device in enumerate(self.devices):
                for name, buffer in self.plan.buffers(p, i).items():
                    dtype = self.host.dtype if buffer.dtype == FLOAT else getattr(torch, buffer.dtype)
                    device.allocate(name, buffer.shape, dtype)
            self._run_batches(p)
        finally:
            for device in self.devices:
                device.release_all()
        for name in p.frees:
            self._free(name)

    def _run_batches(self, p: Pass) -> None:
        view, needs = self.plan.view(p), self.plan.needs(p)
        transfers = self.plan.exchange_plan(p)
        exchange = None
        if transfers is not None:
            exchange = Exchange(self.devices, transfers, self.host, p, self.plan.resident)
        active = view.num_dst > 0
        batches = range(self.plan.schedule.shape[1])
        for batch in reversed(batches) if p.direction == "backward" else batches:
            if exchange is not None:
                exchange.open(batch)
            for i in range(len(self.devices)):
                chunk = i * view.chunks + int(np.asarray(self.plan.schedule)[i, batch])
                if active[chunk]:
                    ChunkRun(self, p, needs, i, batch, chunk).run()
            if exchange is not None:
                exchange.close(batch)

    @contextmanager
    def computing(self, device: CpuDevice) -> Iterator[None]:
        """Layers run inside: their time and their memory count."""
        start = perf_counter()
        with device.workspace():
            yield
        self.traffic.seconds["compute"] += perf_counter() - start

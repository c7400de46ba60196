"""A plan set to work: its vertex tensors, its devices and the executor that replays it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hongtu.device.backends import Backend
from hongtu.engine.executor import Executor
from hongtu.engine.host_rows import make_host
from hongtu.engine.replicas import Replicas
from hongtu.graph.artifact import Artifact
from hongtu.host import check_host, drop_pages, reuse_freed_memory
from hongtu.metrics import EpochRecord, Traffic
from hongtu.model.checks import modes_kept
from hongtu.model.edge_loss import EdgeLoss
from hongtu.model.embedding import VertexRows
from hongtu.model.network import Network
from hongtu.model.vertex_loss import MeanLoss
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes.definition import FEATURES, OUTPUT, gradient


class Engine:
    """Runs the passes of one plan and counts what they move and take.

    Args:
        budget: bytes per device, or None.

    Attributes:
        setup: record of what ran once before the first epoch, or None before it.
        peaks: highest bytes per memory so far.

    Raises:
        InputError: when the host has less memory than the plan needs.
    """

    def __init__(
        self,
        artifact: Artifact,
        network: Network,
        loss: MeanLoss | EdgeLoss | None,
        plan: ExecutionPlan,
        embedding: VertexRows | None,
        budget: int | None,
        dtype: torch.dtype,
        backend: Backend,
    ) -> None:
        on_host = backend.where(0).type == "cpu"  # the devices' memory is the host's own
        check_host(sum((plan.peak_bytes if on_host else plan.host_bytes).values()))
        self.artifact, self.network, self.plan = artifact, network, plan
        self.setup: EpochRecord | None = None
        self.peaks: dict[str, int] = {}
        self._traffic = Traffic()
        self._replicas = Replicas(network, backend, plan.topology.partitions)
        self._devices = backend.devices(plan.topology.partitions, budget, self._traffic)
        for device in self._devices:
            device.reserve("model", plan.shape.model_bytes)
        self._host = make_host(artifact, plan, loss, embedding, dtype, backend.pinned)
        self.program = plan.program
        self._executor = Executor(self.program, self._replicas.of, self._host, self._devices, loss)
        self._counted = False

    def set_up(self) -> None:
        """Run what is needed once before everything else."""
        if self.setup is not None:
            return
        start = perf_counter()
        reuse_freed_memory()
        self.reset_counters()
        with self._evaluating():
            self._executor.run(self.program.setup)
        if self.artifact.features is not None and FEATURES not in self._host.names():
            drop_pages(self.artifact.features)
        self.setup = self.record(0, 0.0, perf_counter() - start)

    def train(self, epoch: int) -> float:
        """Make this epoch's gradients those of the parameters; returns the loss."""
        self.artifact.check_files()
        self.drop_input_gradient()
        _zero_gradients(self.network.modules)
        if not self.network.modules.training:  # the user has evaluated it; else single modules may, and stay so
            self.network.modules.train()
        self._replicas.spread(training=True, epoch=epoch)
        self.reset_counters()
        loss = self._executor.run(self.program.train)
        self._replicas.reduce()
        return loss

    def observe(self) -> None:
        """Let running statistics learn of the last ``train``; once per epoch, however often that ran."""
        for norm in self.network.norms:
            norm.observe()

    @property
    def input_gradient(self) -> Tensor:
        """[V, F] in new order: the gradient of learned features, by the last ``train``."""
        return self._host[gradient(FEATURES)]

    def drop_input_gradient(self) -> None:
        """It has been used, if there was one."""
        if gradient(FEATURES) in self._host.names():
            self._host.free(gradient(FEATURES))

    @property
    def networks(self) -> list[Network]:
        """The model on every GPU, the user's first."""
        return self._replicas.every

    @property
    def loss(self) -> MeanLoss | EdgeLoss:
        loss = self._executor.loss
        assert loss is not None
        return loss

    def replace_loss(self, loss: Any) -> MeanLoss | EdgeLoss | None:
        """Train with another loss; returns the one before."""
        before, self._executor.loss = self._executor.loss, loss
        return before

    @contextmanager
    def inferred(self) -> Iterator[Tensor]:
        """[V, C] in new order: the output without dropout; gone afterwards."""
        self.set_up()
        self.artifact.check_files()
        with self._evaluating():
            self._executor.run(self.program.evaluate or self.program.train)  # the latter where nothing is trained
        try:
            yield self._host[OUTPUT]
        finally:
            self._host.free(OUTPUT)

    def measure(self, name: str) -> dict[str, int]:
        """Run the passes around one; per pass, the most bytes that layers took on a device.

        Raises:
            DeviceOutOfMemory: when the budget does not do.
        """
        program, taken = self.program, {}
        self.set_up()
        groups = (program.train, program.evaluate)
        for p in next((group for group in groups if name in {p.name for p in group}), ()):
            self.reset_counters()
            for device in self._devices:
                device.count_every_chunk()
            self._executor.run((p,))
            taken[p.name] = max(device.workspace_peak for device in self._devices)
        return taken

    @contextmanager
    def budget_of(self, limit: int | None) -> Iterator[None]:
        """Inside, every device has another budget."""
        budgets = [device.budget for device in self._devices]
        for device in self._devices:
            device.budget = limit
        try:
            yield
        finally:
            for device, budget in zip(self._devices, budgets, strict=True):
                device.budget = budget

    @property
    def began(self) -> bool:
        """Whether a pass has begun."""
        return self._executor.current is not None

    @property
    def place(self) -> tuple[str, str, tuple[int, int]]:
        """What ran last: the pass, the module, the chunk."""
        current = self._executor.current
        assert current is not None
        return current.name, self.network.current, divmod(self.network.chunk, current.view.chunks)

    @property
    def batch(self) -> int:
        """The batch in which that chunk is."""
        current, (_, _, (i, j)) = self._executor.current, self.place
        assert current is not None
        return int(np.flatnonzero(current.schedule[i] == j)[0])

    @property
    def features(self) -> Tensor:
        """[V, F] in new order, where they are on the host."""
        return self._host[FEATURES]

    @property
    def ids(self) -> Tensor:
        """int64 [V], original id of every vertex."""
        return self._host["ids"]

    def count_once(self, nbytes: int) -> None:
        """Count host memory that is there from now on; only the first call counts."""
        if not self._counted:
            self._host.count_pageable(nbytes)
        self._counted = True

    def record(self, epoch: int, loss: float, seconds: float) -> EpochRecord:
        """What was counted since ``reset_counters``."""
        peaks = {d.name: d.peak for d in self._devices} | self._host.peak_bytes
        self.peaks = {name: max(peak, self.peaks.get(name, 0)) for name, peak in peaks.items()}
        return EpochRecord(
            epoch=epoch,
            loss=loss,
            seconds=seconds,
            bytes=dict(self._traffic.bytes),
            rows=dict(self._traffic.rows),
            peak_bytes=peaks,
            arena_bytes={d.name: d.arena_peak for d in self._devices} | self._host.peak_bytes,
            phases=dict(self._traffic.seconds),
            pass_seconds=dict(self._executor.seconds),
        )

    def reset_counters(self) -> None:
        self._traffic.clear()
        self._host.reset_peak()
        for device in self._devices:
            device.reset_peaks()

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """The model inside drops nothing."""
        with modes_kept(self.network.modules):
            self.network.modules.eval()
            self._replicas.spread(training=False)
            try:
                yield
            finally:
                self.network.context.training = True


def _zero_gradients(modules: nn.Module) -> None:
    for parameter in modules.parameters():
        if not parameter.requires_grad:
            parameter.grad = None  # frozen since the last epoch
        elif parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        else:
            parameter.grad.zero_()

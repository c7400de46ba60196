"""A plan set to work: its vertex tensors, its devices and the executor that replays it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import torch
from torch import Tensor

from hongtu.device.backends import Backend
from hongtu.engine.disk import Disk
from hongtu.engine.executor import Executor, Spot
from hongtu.engine.host_store import make_host
from hongtu.engine.instructions import Means
from hongtu.engine.messages import Messages, Outputs
from hongtu.engine.replicas import Replicas
from hongtu.graph.artifact import Artifact
from hongtu.host import KEPT, KEPT_BESIDE_DISK, check_disk, check_host, drop_pages, reuse_freed_memory
from hongtu.kernels.torch_private import storage_id
from hongtu.metrics import EpochRecord, Traffic
from hongtu.model.checks import modes_kept
from hongtu.model.edge_loss import EdgeLoss
from hongtu.model.embedding import VertexRows
from hongtu.model.network import Network
from hongtu.model.vertex_loss import MeanLoss
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes.definition import FEATURES, OUTPUT, gradient
from hongtu.plan.search.host import between_batches, needed
from hongtu.ranks.together import Together


class Engine:
    """Runs the passes of one plan and counts what they move and take.

    Args:
        budget: bytes per device, or None.
        ranks: who trains the other shares of the graph.
        spill: directory of the rows that the host does not hold, where the plan has such.

    Attributes:
        host: vertex tensors in new order.
        replicas: the model on every GPU.
        outputs: of all ranks, or None where no loss looks at others'.
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
        ranks: Together,
        spill: str | os.PathLike[str] | None = None,
    ) -> None:
        there = 0 if embedding is None or backend.pinned is not None else embedding.weight.nbytes
        check_host(needed(plan, has_devices=backend.on_host) - there)
        if plan.spilled:
            assert spill is not None
            check_disk(spill, plan.disk.nbytes.get("disk", 0))
        self.artifact, self.network, self.plan, self.loss = artifact, network, plan, loss
        self._embedding = embedding
        self.setup: EpochRecord | None = None
        self.peaks: dict[str, int] = {}
        self._traffic = Traffic()
        self.replicas = Replicas(network, backend, plan.topology.partitions)
        self._devices = backend.devices(plan.topology.partitions, budget, self._traffic)
        for device in self._devices:
            device.reserve("model", plan.shape.model_bytes)
        self.host = make_host(artifact, plan, loss, embedding, dtype, backend.pinned)
        self.program = plan.program
        messages = None
        if plan.crossings.nbytes is not None:
            messages = Messages(self.host, self._traffic, ranks, plan)
        self.outputs = None
        if isinstance(loss, EdgeLoss) and artifact.bounds is not None:
            self.outputs = Outputs(artifact, plan.shape.output, self.host, self._traffic, ranks)
        self._disk, most = None, 0
        if plan.spilled:
            most = between_batches(plan, has_devices=backend.on_host)
            self._disk = Disk(str(spill), plan.disk, self._traffic, self.host, artifact)
        means = Means(
            networks=self.replicas.of, host=self.host, devices=self._devices, loss=loss,
            num_graph_edges=artifact.num_edges, num_graph_vertices=artifact.whole.num_vertices,
            own_end=artifact.own_end, ranks=ranks, messages=messages, outputs=self.outputs, disk=self._disk, most=most,
            recorder=None if self.program.eager else backend.recorder(self._devices),
        )  # fmt: skip
        self._executor = Executor(self.program, means)
        self._counted = False

    def close(self) -> None:
        """Leave the disk to the next one, whoever still holds this; it cannot run any more."""
        if self._disk is not None:
            self._disk.close()
            reuse_freed_memory()

    def set_up(self) -> None:
        """Run what is needed once before everything else."""
        if self.setup is not None:
            return
        start = perf_counter()
        if self._executor.messages is not None:
            self._executor.messages.arrange()
        reuse_freed_memory(KEPT if self._disk is None else KEPT_BESIDE_DISK)
        self.reset_counters()
        with self._evaluating():
            self._executor.run(self.program.setup)
        if (given := self.artifact.whole.features) is not None and FEATURES not in self.host.names():
            drop_pages(given)
        self.setup = self.record(0, 0.0, perf_counter() - start)

    def _take_rows(self) -> None:
        """Have the rows of the model's input where passes find them: ``weight.data = ...`` puts them elsewhere."""
        rows = self._embedding
        if rows is not None and storage_id(rows.weight) != storage_id(self.host[FEATURES]):
            rows.weight.data = self.host[FEATURES].copy_(rows.weight.data)

    def train(self, epoch: int) -> float:
        """Make this epoch's gradients those of the parameters; returns the loss."""
        self._take_rows()
        self.drop_input_gradient()
        if not self.network.modules.training:  # the user has evaluated it; else single modules may, and stay so
            self.network.modules.train()
        self.replicas.spread(training=True, epoch=epoch)
        self.reset_counters()
        loss = self._executor.run(self.program.train)
        self.artifact.check_files()
        self.replicas.reduce()
        return loss

    def observe(self) -> None:
        """Let running statistics learn of the last ``train``; once per epoch, however often that ran."""
        for norm in self.network.norms:
            norm.observe()

    def drop_input_gradient(self) -> None:
        """It has been used, if there was one."""
        if gradient(FEATURES) in self.host.names():
            self.host.free(gradient(FEATURES))

    @contextmanager
    def inferred(self) -> Iterator[Tensor]:
        """[V, C] in new order: the output without dropout; gone afterwards."""
        self.set_up()
        self._take_rows()
        passes = self.program.evaluate or self.program.train  # the latter where nothing is trained
        with self._evaluating():
            self._executor.run(passes)
        try:
            yield self._output(passes[-1].name)
        finally:
            if OUTPUT in self.host.names():
                self.host.free(OUTPUT)

    def let_go(self) -> None:
        """Have the system forget what was read of ``inferred`` where that lies on a disk."""
        if self._disk is not None:
            self._disk.let_go()

    def _output(self, name: str) -> Tensor:
        plan = self.plan
        if OUTPUT not in plan.kept:
            return self.host[OUTPUT]
        assert self._disk is not None
        begin, columns = plan.disk.own[name, OUTPUT], plan.shape.output
        return self._disk.whole(OUTPUT, plan.below(OUTPUT), begin, columns, plan.kept[OUTPUT])

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
            taken[p.name] = max(device.workspace.peak for device in self._devices)
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
    def spot(self) -> Spot | None:
        """Where the run is, or was last; None before the first pass."""
        return self._executor.spot

    def count_once(self, nbytes: int) -> None:
        """Count host memory that is there from now on; only the first call counts."""
        if not self._counted:
            self.host.count_pageable(nbytes)
        self._counted = True

    def record(self, epoch: int, loss: float, seconds: float) -> EpochRecord:
        """What was counted since ``reset_counters``."""
        beside = self.host.peak_bytes | ({} if self._disk is None else self._disk.nbytes)
        peaks = {d.name: d.peak for d in self._devices} | beside
        self.peaks = {name: max(peak, self.peaks.get(name, 0)) for name, peak in peaks.items()}
        return EpochRecord(
            epoch=epoch,
            loss=loss,
            seconds=seconds,
            bytes=dict(self._traffic.bytes),
            rows=dict(self._traffic.rows),
            peak_bytes=peaks,
            arena_bytes={d.name: d.arena_peak for d in self._devices} | beside,
            phases=dict(self._traffic.seconds),
            pass_seconds=dict(self._executor.seconds),
            eager=self._executor.repeats.eager,
        )

    def reset_counters(self) -> None:
        self._traffic.clear()
        self.host.reset_peak()
        for device in self._devices:
            device.reset_peaks()

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """The model inside drops nothing."""
        with modes_kept(self.network.modules):
            self.network.modules.eval()
            self.replicas.spread(training=False)
            try:
                yield
            finally:
                self.network.context.training = True

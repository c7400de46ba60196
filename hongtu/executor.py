"""Runs passes: per chunk the aggregate of one layer and the row-wise stage behind it, forward or backward.

Paper Algorithms 1 to 3: values batch by batch through the caches, chunk outputs to the host, backward by
recomputation from the checkpoints on the host, gradients accumulated on the host.

Legend: D destinations, S sources, C cache slots; z, s, a as in :class:`hongtu.nn.Layer`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from hongtu import kernels
from hongtu.block import Block, Rows
from hongtu.device import CpuDevice
from hongtu.host_store import HostStore
from hongtu.losses import MeanLoss
from hongtu.metrics import Traffic
from hongtu.network import Network
from hongtu.plan.arena import FLOAT
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes import Pass
from hongtu.topology import ChunkTopology
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

    def run(self, passes: tuple[Pass, ...]) -> float:
        """Run passes in order; returns the loss where one of them evaluates it, else 0."""
        self.loss_value = 0.0
        keep = self.host.names()
        try:
            for p in passes:
                self._run_pass(p)
        except BaseException:
            self.host.free_except(keep)
            raise
        return self.loss_value

    def workspace_of(self, p: Pass) -> int:
        """Run one pass on the first device and return the most bytes that layers took in it."""
        self.devices[0].reset_peaks()
        self._run_pass(p)
        return self.devices[0].workspace_peak

    def _run_pass(self, p: Pass) -> None:
        for name in p.creates:
            self.host.create(name, self.plan.passes.width[name], zero=name == p.flush)
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
            self.host.free(name)

    def _run_batches(self, p: Pass) -> None:
        transfers = self.plan.transfers.get(p.name)
        exchange = None if transfers is None else Exchange(self.devices, transfers, self.host, p)
        batches = range(self.plan.schedule.shape[1])
        for batch in batches if p.direction == "forward" else reversed(batches):
            if exchange is not None:
                exchange.open(batch)
            for i in range(len(self.devices)):
                chunk = i * self.plan.topology.chunks + int(self.plan.schedule[i, batch])
                first, end = (int(x) for x in self.plan.topology.chunk_start[chunk : chunk + 2])
                if first < end:
                    _ChunkRun(self, p, i, batch, chunk, first, end).run()
            if exchange is not None:
                exchange.close(batch)

    @contextmanager
    def computing(self, device: CpuDevice) -> Iterator[None]:
        """Layers run inside: their time and their memory count."""
        start = perf_counter()
        with device.workspace():
            yield
        self.traffic.seconds["compute"] += perf_counter() - start


class _ChunkRun:
    """One pass over one chunk of D vertices ``first:end``."""

    def __init__(self, executor: Executor, p: Pass, i: int, batch: int, chunk: int, first: int, end: int) -> None:
        self.executor, self.p, self.device = executor, p, executor.devices[i]
        self.host, self.network, self.plan = executor.host, executor.network, executor.plan
        self.first, self.end = first, end
        self.network.chunk = chunk
        self.needs = self.plan.needs(p)
        self.shape = None if p.layer is None else self.plan.shape.layers[p.layer]
        self.rows = Rows(
            ids=self._bring("ids", "topology"),
            statistics=self._bring("statistics", "topology") if self.needs.statistics else None,
        )
        self.block: Block | None = None
        if self.needs.edges:
            self.chunk = self.plan.topology.chunk(chunk)
            self.slots = self._bring_array("slot_of_source", self.plan.transfers[p.name].devices[i].slots(batch))
            self.block = self._block(self.chunk)
        self.inputs = {name: self._bring(name, "read") for name in dict.fromkeys(p.inputs)}

    def run(self) -> None:
        if self.p.direction == "forward":
            self._forward()
        else:
            self._backward()

    def _forward(self) -> None:
        p, network = self.p, self.network
        with torch.no_grad(), self.executor.computing(self.device):
            if p.layer is None:
                outs = self._stage_0(self.inputs["features"])
            else:
                s = tuple(self.inputs[name] for name in p.inputs)
                a = self._aggregate(s)
                if p.checkpoint is not None:
                    self._send(a, p.checkpoint)
                outs = network.stage(p.stage, None, a, s, self.rows)
            if self.needs.labels:
                labels, mask = self._bring("labels", "read"), self._bring("train_mask", "read")
                gradient, part = self.executor.loss.gradient(outs[0], labels, mask)
                outs = [gradient]
                self.executor.loss_value += part
        for out, name in zip(outs, p.outputs, strict=True):
            self._send(out, name)

    def _aggregate(self, s: tuple[Tensor, ...]) -> Tensor:
        assert self.p.layer is not None and self.shape is not None and self.block is not None
        cache = self.device.buffer("cache")
        if self.shape.reduce is None:
            return self.network.aggregate(self.p.layer, self.block, cache.index_select(0, self.slots), s)
        out_DF = self.device.buffer("aggregate")[: self.end - self.first]
        kernels.csc_aggregate(*self._csc(), cache.numpy(), out_DF.numpy())
        return out_DF

    def _backward(self) -> None:
        p, layer = self.p, self.p.layer
        gradients = [self._bring(name, "read") for name in p.gradients]
        with torch.enable_grad(), self.executor.computing(self.device):
            if layer is None:
                features = self.inputs["features"].detach().requires_grad_(bool(p.outputs))
                _backpropagate(self._stage_0(features), gradients)
                s_gradients = [features.grad]
            else:
                own = p.inputs[1:] if self.shape.linear else p.inputs
                s = tuple(self.inputs[name].detach().requires_grad_() for name in own)
                if self.shape.linear:
                    a = self.inputs[p.inputs[0]].detach().requires_grad_()
                    self._backward_stage(a, s, gradients)
                    if p.flush is not None and a.grad is not None:
                        self._transpose_aggregate(a.grad, s)
                else:
                    z = self.device.buffer("cache").index_select(0, self.slots).requires_grad_()
                    a = self.network.aggregate(layer, self.block, z, s)
                    self._backward_stage(a, s, gradients)
                    if p.flush is not None and z.grad is not None:
                        self._add_to_cache(z.grad)
                s_gradients = [part.grad for part in s]
        for gradient, name in zip(s_gradients, p.direct, strict=False):
            if name is not None:
                self._send_gradient(gradient, name)

    def _stage_0(self, features: Tensor) -> list[Tensor]:
        """The outputs of stage 0 that are not the features themselves."""
        outs = self.network.stage(0, features, None, (), self.rows)
        if not self.plan.shape.layers[0].z_is_input:
            return outs
        if outs[0] is not features:
            raise RuntimeError("layer 0: transform changes its input, unlike when planned; make a new Trainer")
        return outs[1:]

    def _backward_stage(self, a: Tensor, s: tuple[Tensor, ...], gradients: list[Tensor]) -> None:
        _backpropagate(self.network.stage(self.p.stage, None, a, s, self.rows), gradients)

    def _transpose_aggregate(self, grad_DF: Tensor, s: tuple[Tensor, ...]) -> None:
        """Add A^T grad to the gradient cache."""
        assert self.p.layer is not None and self.shape is not None and self.block is not None
        if self.shape.reduce is not None:
            cache = self.device.buffer("gradient_cache")
            kernels.csc_aggregate_transpose(*self._csc(), grad_DF.contiguous().numpy(), cache.numpy())
            return
        z = torch.zeros((len(self.slots), self.shape.z), dtype=self.host.dtype, requires_grad=True)
        a = self.network.aggregate(self.p.layer, self.block, z, tuple(part.detach() for part in s))
        _backpropagate([a], [grad_DF])
        if z.grad is not None:
            self._add_to_cache(z.grad)

    def _add_to_cache(self, grad_SF: Tensor) -> None:
        cache = self.device.buffer("gradient_cache")
        kernels.scatter_add_rows(cache.numpy(), self.slots.numpy(), grad_SF.contiguous().numpy())

    def _csc(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, bool]:
        block, shape = self.block, self.shape
        assert block is not None and shape is not None
        weight = block.edge_weight if shape.weighted else None
        weights = torch.empty(0, dtype=self.host.dtype).numpy() if weight is None else weight.numpy()
        return block.indptr.numpy(), block.local_source.numpy(), self.slots.numpy(), weights, shape.reduce == "mean"

    def _block(self, chunk: ChunkTopology) -> Block:
        needs, none = self.needs, torch.empty(0, dtype=torch.int32)
        return Block(
            indptr=self._bring_array("indptr", chunk.indptr),
            local_source=self._bring_array("local_source", chunk.local_source),
            sources=self._bring_array("sources", chunk.sources) if needs.identity else none,
            first=self.first,
            edge_weight=self._bring_array("edge_weight", chunk.edge_weight) if needs.weights else None,
            rows=self.rows,
            edge_id_start=self._bring("edge_id_start", "topology") if needs.identity else none,
            num_graph_edges=self.plan.topology.num_edges,
        )

    def _bring(self, name: str, link: str) -> Tensor:
        return self.device.bring(name, self.host.rows(name, self.first, self.end), link)

    def _bring_array(self, name: str, array: np.ndarray) -> Tensor:
        return self.device.bring(name, array, "topology")

    def _send(self, out: Tensor, name: str) -> None:
        self.device.send(out, self.host.rows(name, self.first, self.end))

    def _send_gradient(self, gradient: Tensor | None, name: str) -> None:
        """First writer stores, later ones add; rows without a gradient get zeros."""
        add = name == self.p.flush or name not in self.p.creates
        rows = self.host.rows(name, self.first, self.end)
        self.device.send(torch.zeros_like(rows) if gradient is None else gradient, rows, add=add)


def _backpropagate(outs: list[Tensor], gradients: list[Tensor]) -> None:
    pairs = [(out, gradient) for out, gradient in zip(outs, gradients, strict=True) if out.requires_grad]
    if pairs:
        torch.autograd.backward([out for out, _ in pairs], [gradient for _, gradient in pairs])

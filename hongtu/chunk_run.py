"""One pass over one chunk: the aggregate of a layer and the row-wise stage behind it, forward or backward.

Legend: D destinations, S sources, C cache slots; z, s, a as in :class:`hongtu.nn.Layer`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hongtu import kernels
from hongtu.block import Block, Rows
from hongtu.device import CpuDevice
from hongtu.host_store import HostStore
from hongtu.losses import MeanLoss
from hongtu.network import Network
from hongtu.plan.arena import Needs
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes import Pass
from hongtu.topology import ChunkTopology
from hongtu.transfer import cache_of


class Run(Protocol):
    """What a chunk needs of the run that it belongs to: the Executor."""

    plan: ExecutionPlan
    network: Network
    host: HostStore
    devices: list[CpuDevice]
    loss: MeanLoss
    loss_value: float
    kept: dict[tuple[int | None, int], Kept]

    def own_rows(self, name: str, device: int) -> Tensor: ...

    def computing(self, device: CpuDevice) -> AbstractContextManager[None]: ...


@dataclass
class Kept:
    """What a stage computed from, and what it gave.

    Attributes:
        base: what gradients are wanted of besides s: the aggregate's output [D, A] where that is a checkpoint, the
            sources' rows [S, Z] otherwise, the features for stage 0.
        s: s elements of the destinations, as far as they were read.
        outs: outputs of the stage.
    """

    base: Tensor
    s: tuple[Tensor, ...]
    outs: list[Tensor]


class ChunkRun:
    """One pass over the D destinations of one chunk; ``run`` it once."""

    def __init__(self, executor: Run, p: Pass, needs: Needs, i: int, batch: int, chunk: int) -> None:
        self.executor, self.p, self.needs, self.device = executor, p, needs, executor.devices[i]
        self.i, self.host, self.network, self.plan = i, executor.host, executor.network, executor.plan
        view = self.plan.view(p)
        self.first, self.end = (int(x) for x in view.chunk_start[chunk : chunk + 2])
        self.offset = int(view.partition_start[i])
        self.network.chunk = chunk
        self.shape = None if p.layer is None else self.plan.shape.layers[p.layer]
        active = view.active_rows(chunk)
        self.index = None if active is None else self._bring_array("row_in_chunk", active - np.int32(self.first))
        self.num_dst = self.end - self.first if active is None else len(active)
        self.rows = Rows(
            ids=self._bring("ids", "topology"),
            statistics=self._bring("statistics", "topology") if needs.statistics else None,
        )
        self.block: Block | None = None
        if needs.edges:
            transfers = self.plan.exchange_plan(p)
            assert transfers is not None
            self.slots = self._bring_array("slot_of_source", transfers.devices[i].slots(batch))
            self.block = self._block(view.chunk(chunk))
        self.inputs = {name: self._bring(name, "read") for name in p.inputs}
        self.key = (p.stage, chunk)

    def run(self) -> None:
        if self.p.direction == "forward":
            self._forward()
        else:
            self._backward()

    def _forward(self) -> None:
        p = self.p
        with torch.set_grad_enabled(p.keep), self.executor.computing(self.device):
            run = self._compute(gradients=p.keep)
            outs = [out.detach() for out in run.outs]
            if p.loss:
                outs = [self._loss_gradient(outs[0])]
        if p.keep:
            self.executor.kept[self.key] = run
        for out, name in zip(outs, p.outputs, strict=True):
            self._send(out, name)

    def _backward(self) -> None:
        p, shape = self.p, self.shape
        incoming = [self._bring(name, "read") for name in p.gradients]
        with torch.enable_grad(), self.executor.computing(self.device):
            run = self.executor.kept.pop(self.key) if p.keep else self._compute(gradients=True)
            if p.loss:
                incoming = [self._loss_gradient(run.outs[0].detach())]
            _backpropagate(run.outs, incoming)
            run.outs.clear()
            base_gradient = run.base.grad
            direct = [part.grad for part in run.s]
            if shape is None:
                direct = [base_gradient]
            elif shape.linear:
                if base_gradient is not None and shape.combined and (p.flush is not None or any(p.direct)):
                    base_gradient, direct = self._combine_gradient(base_gradient)
                if p.flush is not None and base_gradient is not None:
                    self._transpose_aggregate(base_gradient)
            elif p.flush is not None and base_gradient is not None:
                self._add_to_cache(base_gradient)
        direct += [None] * (len(p.direct) - len(direct))
        for gradient, name in zip(direct, p.direct, strict=True):
            if name is not None:
                self._send_gradient(gradient, name)

    def _compute(self, *, gradients: bool) -> Kept:
        """The aggregate, or what is read in its place, and the stage behind it."""
        p, wanted = self.p, self.plan.passes.wanted

        def leaf(x: Tensor, needed: bool) -> Tensor:
            return x.data.requires_grad_(gradients and needed)  # of its own version: rows of other chunks may change

        if self.shape is None:
            features = leaf(self.inputs[p.inputs[0]], p.inputs[0] in wanted)
            return Kept(features, (), self._stage_0(features))
        s = tuple(self.inputs[name] for name in p.s)
        if not self.shape.linear:
            s = tuple(leaf(part, name in wanted) for part, name in zip(s, p.s, strict=True))
            z = self._cache("value").index_select(0, self.slots)
            z = leaf(z, p.exchange in wanted)
            a = self.network.aggregate(p.layer, self.block, z, s)
            return Kept(z, s, self._stage(a, s))
        if p.source is not None:
            a = self.inputs[p.source]
        else:
            a = self._aggregate(s)
            if p.checkpoint is not None:
                a = self._send(a, p.checkpoint)
        if self.shape.combined:
            s = ()
        a = leaf(a, self._aggregate_wanted())
        s = tuple(leaf(part, name in wanted) for part, name in zip(s, p.s, strict=False))
        return Kept(a, s, self._stage(a, s))

    def _aggregate_wanted(self) -> bool:
        """Whether the aggregate's output needs a gradient: that of z, or of an s that it was combined with."""
        assert self.p.layer is not None
        names, wanted = self.plan.passes.layer_inputs[self.p.layer], self.plan.passes.wanted
        return names[0] in wanted or bool(self.shape and self.shape.combined and set(names[1:]) & wanted)

    def _stage(self, a: Tensor, s: tuple[Tensor, ...]) -> list[Tensor]:
        return [] if self.p.stage is None else self.network.stage(self.p.stage, None, a, s, self.rows)

    def _stage_0(self, features: Tensor) -> list[Tensor]:
        """The outputs of stage 0 that are not the features themselves."""
        outs = self.network.stage(0, features, None, (), self.rows)
        if not self.plan.shape.layers[0].z_is_input:
            return outs
        if outs[0] is not features:
            raise RuntimeError("layer 0: transform changes its input, unlike when planned; make a new Trainer")
        return outs[1:]

    def _loss_gradient(self, out: Tensor) -> Tensor:
        labels, mask = self._bring("labels", "read"), self._bring("train_mask", "read")
        gradient, part = self.executor.loss.gradient(out, labels, mask)
        self.executor.loss_value += part
        return gradient

    def _aggregate(self, s: tuple[Tensor, ...]) -> Tensor:
        """The linear aggregate, together with s where the layer combines them; no gradients."""
        assert self.p.layer is not None and self.shape is not None and self.block is not None
        with torch.no_grad():
            cache = self._cache("value")
            if self.shape.reduce is None:
                a = self.network.aggregate(self.p.layer, self.block, cache.index_select(0, self.slots), s)
            else:
                a = self.device.buffer("aggregate")[: self.num_dst]
                kernels.csc_aggregate(*self._csc(), cache.numpy(), a.numpy())
            return self.network.combine(self.p.layer, a, s, self.rows) if self.shape.combined else a

    def _combine_gradient(self, grad_DA: Tensor) -> tuple[Tensor, list[Tensor | None]]:
        """Gradients of the plain aggregate and of s; both are linear, so their values do not matter."""
        assert self.p.layer is not None and self.shape is not None
        nothing = torch.zeros(1, dtype=grad_DA.dtype)
        a = nothing.expand(grad_DA.shape).requires_grad_()
        s = tuple(
            nothing.expand(len(grad_DA), self.shape.z if columns is None else columns).requires_grad_(name is not None)
            for columns, name in zip(self.shape.s, self.p.direct, strict=True)
        )
        _backpropagate([self.network.combine(self.p.layer, a, s, self.rows)], [grad_DA])
        assert a.grad is not None
        return a.grad, [part.grad for part in s]

    def _transpose_aggregate(self, grad_DA: Tensor) -> None:
        """Add A^T grad to the gradient cache."""
        assert self.p.layer is not None and self.shape is not None and self.block is not None
        if self.shape.reduce is not None:
            cache = self._cache("gradient")
            kernels.csc_aggregate_transpose(*self._csc(), grad_DA.contiguous().numpy(), cache.numpy())
            return
        z = torch.zeros((len(self.slots), self.shape.z), dtype=self.host.dtype, requires_grad=True)
        s = tuple(
            torch.zeros((self.num_dst, self.shape.z if columns is None else columns), dtype=self.host.dtype)
            for columns in self.shape.s
        )
        a = self.network.aggregate(self.p.layer, self.block, z, s)
        _backpropagate([a], [grad_DA])
        if z.grad is not None:
            self._add_to_cache(z.grad)

    def _add_to_cache(self, grad_SF: Tensor) -> None:
        kernels.scatter_add_rows(self._cache("gradient").numpy(), self.slots.numpy(), grad_SF.contiguous().numpy())

    def _cache(self, kind: str) -> Tensor:
        return cache_of(self.device, self.p, self.plan.resident, kind)

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
            active=self._bring_array("active", chunk.active) if needs.identity and chunk.active is not None else None,
        )

    def _bring(self, name: str, link: str) -> Tensor:
        """The destinations' rows of a vertex tensor on the device."""
        if name in self.plan.resident:
            rows = self._resident(name)
            if self.index is None:
                return rows
            part = self.device.staging(name)[: self.num_dst]
            return self._lasting(torch.index_select(rows, 0, self.index, out=part))
        host = self.host.rows(name, self.first, self.end)
        if self.index is None:
            return self._lasting(self.device.bring(name, host, link))
        return self._lasting(self.device.bring_rows(name, host, self.index, link))

    def _bring_array(self, name: str, array: np.ndarray) -> Tensor:
        return self._lasting(self.device.bring(name, array, "topology"))

    def _lasting(self, x: Tensor) -> Tensor:
        """A buffer's content, which what is kept until backward may refer to; the next chunk overwrites the buffer."""
        if not self.p.keep or self.p.direction == "backward":
            return x
        with self.device.workspace():
            return x.clone()

    def _resident(self, name: str) -> Tensor:
        return self.executor.own_rows(name, self.i)[self.first - self.offset : self.end - self.offset]

    def _send(self, out: Tensor, name: str) -> Tensor:
        """Store the destinations' rows; returns where they are on the device."""
        return self._store(out, name, add=False)

    def _send_gradient(self, gradient: Tensor | None, name: str) -> None:
        """First writer stores, later ones add; rows without a gradient get zeros."""
        add = name == self.p.flush or name not in self.p.creates
        if gradient is None:
            gradient = torch.zeros((self.num_dst, self.plan.passes.width[name]), dtype=self.host.dtype)
        self._store(gradient, name, add=add)

    def _store(self, out: Tensor, name: str, *, add: bool) -> Tensor:
        if name not in self.plan.resident:
            rows = self.host.rows(name, self.first, self.end)
            self.device.send(out, rows, add=add, index=self.index)
            return out
        rows = self._resident(name)
        if self.index is None:
            return rows.add_(out) if add else rows.copy_(out)
        if add:
            rows.index_add_(0, self.index, out)
        else:
            rows.index_copy_(0, self.index.long(), out)
        return out


def _backpropagate(outs: list[Tensor], gradients: list[Tensor]) -> None:
    pairs = [(out, gradient) for out, gradient in zip(outs, gradients, strict=True) if out.requires_grad]
    if pairs:
        torch.autograd.backward([out for out, _ in pairs], [gradient for _, gradient in pairs])

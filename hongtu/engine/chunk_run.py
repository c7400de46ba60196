"""One pass over one chunk: the aggregate of a layer and the row-wise stage behind it, forward or backward.

Legend: D destinations, S sources, C cache slots; z, s, a as in :class:`hongtu.nn.Layer`.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Protocol

import torch
from torch import Tensor

from hongtu.device.base import Device, Stores
from hongtu.device.streams import Turn
from hongtu.engine.chunk_inputs import ChunkInputs
from hongtu.engine.exchange import cache_of
from hongtu.engine.host_store import HostStore
from hongtu.engine.moments import Moments
from hongtu.engine.saved import Entry, Kept, Missing, Place, Settled, edges_of, move_saved, saving
from hongtu.kernels.dispatch import kernels_for
from hongtu.model.edge_loss import EdgeLoss
from hongtu.model.network import Network
from hongtu.model.vertex_loss import MeanLoss
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.memory.arena import aggregates_in_place
from hongtu.plan.memory.structure import Needs
from hongtu.plan.passes.definition import Pass, gradient


class Run(Protocol):
    """What a chunk needs of the run that it belongs to: the Executor."""

    plan: ExecutionPlan
    networks: list[Network]
    host: HostStore
    devices: list[Device]
    loss: MeanLoss | EdgeLoss | None
    loss_values: list[Tensor]
    kept: dict[tuple[int | None, int], Kept]
    pieces: dict[tuple[str, int], Tensor]
    moments: list[Moments]

    def own_rows(self, name: str, device: int) -> Tensor: ...


class ChunkRun:
    """One pass over the D destinations of one chunk: made (it brings its inputs), then ``compute``, then ``send``."""

    def __init__(self, executor: Run, p: Pass, needs: Needs, i: int, batch: int, chunk: int, turn: Turn) -> None:
        self.executor, self.p, self.i, self.turn = executor, p, i, turn
        self.device = executor.devices[i]
        self.host, self.network, self.plan = executor.host, executor.networks[i], executor.plan
        self.shape = None if p.layer is None else self.plan.shape.layers[p.layer]
        own = {name: executor.own_rows(name, i) for name in _touched(p) if name in self.plan.placed}
        pieces = {name: self._piece(name, chunk) for name in (*p.inputs, *p.gradients) if name in self.plan.pieces}
        self.inputs = ChunkInputs(self.plan, p, needs, self.device, self.host, own, pieces, i, batch, chunk, turn.set)
        self.chunk, self.key = chunk, (p.stage, chunk)
        self.settled = Settled(self.device.keep)

    def compute(self) -> None:
        """On ``compute``: run the pass."""

        def run() -> None:
            self.network.chunk = self.chunk
            always = self.chunk in self.plan.view(self.p).largest_chunks
            with self.device.computing(self.p.name, self.chunk, always=always):
                self.inputs.open()
                if self.p.direction == "forward":
                    self._forward()
                else:
                    self._backward()

        self.device.streams.compute.run(run)

    def send(self) -> None:
        """On ``flush``: what the pass gave goes to the host."""
        for name in self.p.written:
            if name not in self.plan.resident:
                rows = self.host.rows(name, self.inputs.first, self.inputs.end)
                count, index = self.inputs.num_dst, self.inputs.index
                self.device.send(name, self.turn.set, count, rows, stores=self._stores(name), index=index)

    def _forward(self) -> None:
        p = self.p
        places: list[Place] = []
        with torch.set_grad_enabled(p.keep), saving(places) if p.keep else nullcontext():
            run, outs = self._compute(gradients=p.keep)
            outs = [out.detach() for out in outs]
            if self.executor.moments:
                self.executor.moments[self.i].add(outs[0])
            if p.loss:
                outs = [self._loss_gradient(outs[0])]
        if p.keep:
            self.executor.kept[self.key] = run
        self.inputs.forget_pieces()  # whose memory what is kept now may take
        for number, place in enumerate(places):
            self.device.recognize(place.rows, number)
        for out, name in zip(outs[len(outs) - len(p.outputs) :], p.outputs, strict=True):
            there = self._emit(out, name)
            if name in p.holds:
                move_saved(places, out, there)
        if p.again:
            run.missing = Missing(places, self.device.made_by_layers)
        for place in places:
            place.move(self.settled.of(place.rows))
        places.clear()

    def _backward(self) -> None:
        p, shape = self.p, self.shape
        with torch.enable_grad():
            if p.keep:
                run, x = self.executor.kept.pop(self.key), self.inputs.vertex.get(p.moments)
                if run.missing is not None:
                    run.missing.restore(lambda: self._compute(gradients=True))
            else:
                self.network.gradients_only = not p.loss and p.moments is None
                try:
                    run, outs = self._compute(gradients=True)
                finally:
                    self.network.gradients_only = False
                x = outs[0].detach() if p.loss or p.moments is not None else None
                del outs
            incoming = self._incoming(x)
            del x
            run.backward(incoming)
            base_gradient = run.base.grad
            direct = [part.grad for part in run.s]
            if shape is None or shape.norm:
                direct = [base_gradient]
            elif shape.linear:
                if base_gradient is not None and shape.combined and (p.flush is not None or any(self._direct_of_s)):
                    base_gradient, direct = self._combine_gradient(base_gradient)
                if p.flush is not None and base_gradient is not None:
                    self._transpose_aggregate(base_gradient)
            elif p.flush is not None and base_gradient is not None:
                self._add_to_cache(base_gradient)
        direct += [None] * (len(self._direct_of_s) - len(direct))
        self._emit_gradients([*direct, *(value.grad for value in run.values)])

    def _incoming(self, x: Tensor | None) -> list[Tensor | None]:
        """The gradients of what the stage returns, None for what gets none; x is the first, where it is needed."""
        p, vertex = self.p, self.inputs.vertex
        assert p.stage is not None
        if p.loss:
            return [self._loss_gradient(x)]
        names = [gradient(name) for name in self.plan.passes.returned[p.stage]]
        incoming = [vertex[name] if name in p.gradients else None for name in names]
        if p.moments is not None:
            more = self.network.norm(p.stage).gradient_through_statistics(x)
            incoming[0] = incoming[0] if more is None else more.add_(incoming[0])
        return incoming

    def _compute(self, *, gradients: bool) -> tuple[Kept, list[Tensor]]:
        """The aggregate, or what is read in its place, and the outputs of the stage behind it."""
        p, wanted = self.p, self.plan.passes.wanted
        base = Entry()
        entries, of_values = tuple(Entry() for _ in p.s), tuple(Entry() for _ in p.values)

        def enter(entry: Entry, x: Tensor, needed: bool) -> Tensor:
            return entry.of(x) if gradients and needed else x

        def outcome(outs: list[Tensor]) -> tuple[Kept, list[Tensor]]:
            return Kept(base, entries, of_values, edges_of(outs)), outs

        if self.shape is None:
            return outcome(self._stage_0(enter(base, self.inputs.vertex[p.inputs[0]], p.inputs[0] in wanted)))
        taken = [self.inputs.vertex[name] for name in p.values]
        values = tuple(enter(e, x, name in wanted) for e, x, name in zip(of_values, taken, p.values, strict=True))
        s = tuple(self.inputs.vertex[name] for name in p.s)
        if not self.shape.linear:
            s = tuple(enter(e, part, name in wanted) for e, part, name in zip(entries, s, p.s, strict=True))
            z = self._cache("value").index_select(0, self.inputs.slots)
            a = self.network.aggregate(p.layer, self.inputs.block, enter(base, z, p.exchange in wanted), s)
            return outcome(self._stage(a, s, values))
        if p.source is not None:
            a = self.inputs.vertex[p.source]
        else:
            a = self._aggregate(s)
            if p.checkpoint is not None and not self._in_place():
                a = self._emit(a, p.checkpoint)
        if self.shape.combined:
            s = entries = ()
        a = enter(base, a, self._aggregate_wanted())
        s = tuple(enter(e, part, name in wanted) for e, part, name in zip(entries, s, p.s, strict=False))
        return outcome(self._stage(a, s, values))

    def _aggregate_wanted(self) -> bool:
        """Whether the aggregate's output needs a gradient: that of z, or of an s that it was combined with."""
        assert self.p.layer is not None
        names, wanted = self.plan.passes.layer_inputs[self.p.layer], self.plan.passes.wanted
        return names[0] in wanted or bool(self.shape and self.shape.combined and set(names[1:]) & wanted)

    def _stage(self, a: Tensor, s: tuple[Tensor, ...], values: tuple[Tensor, ...]) -> list[Tensor]:
        return [] if self.p.stage is None else self.network.stage(self.p.stage, None, a, s, self.inputs.rows, values)

    def _stage_0(self, features: Tensor) -> list[Tensor]:
        """The outputs of stage 0; the first may be the features themselves."""
        outs = self.network.stage(0, features, None, (), self.inputs.rows)
        if self.plan.shape.layers[0].z_is_input and outs[0] is not features:
            raise RuntimeError("layer 0: transform changes its input, unlike when planned; make a new Trainer")
        return outs

    def _loss_gradient(self, out: Tensor) -> Tensor:
        labels, bits = self.inputs.vertex["labels"], self.inputs.vertex["loss_bits"]
        loss = self.executor.loss
        assert loss is not None and not isinstance(loss, EdgeLoss)
        grad, part = loss.gradient(out, labels, bits, self.inputs.known_bits)
        self.executor.loss_values[self.i].add_(part)
        return grad

    def _aggregate(self, s: tuple[Tensor, ...]) -> Tensor:
        """The linear aggregate, together with s where the layer combines them; no gradients."""
        p = self.p
        assert p.layer is not None and self.shape is not None and self.inputs.block is not None
        with torch.no_grad():
            cache = self._cache("value")
            if self.shape.reduce is None:
                a = self.network.aggregate(p.layer, self.inputs.block, cache.index_select(0, self.inputs.slots), s)
            else:
                a = self._room(cache)
                kernels_for(cache).csc_aggregate(*self._csc(), cache, a)
            return self.network.combine(p.layer, a, s, self.inputs.rows) if self.shape.combined else a

    def _room(self, cache: Tensor) -> Tensor:
        """[D, A] for a declared reduction: where its output stays, memory of its own that may be kept, or scratch."""
        if self._in_place():
            return self.inputs.own(self.p.checkpoint)[: self.inputs.num_dst]
        if self.p.keep:
            return cache.new_empty((self.inputs.num_dst, cache.shape[1]))
        return self.device.buffer("aggregate")[: self.inputs.num_dst]

    def _in_place(self) -> bool:
        reduces = self.shape is not None and self.shape.reduce is not None
        return reduces and aggregates_in_place(self.p, self.plan.shape, self.plan.view(self.p), self.plan.resident)

    def _combine_gradient(self, grad_DA: Tensor) -> tuple[Tensor, list[Tensor | None]]:
        """Gradients of the plain aggregate and of s; both are linear, so their values do not matter."""
        assert self.p.layer is not None and self.shape is not None
        nothing = grad_DA.new_zeros(1)
        a = nothing.expand(grad_DA.shape).requires_grad_()
        s = tuple(
            nothing.expand(len(grad_DA), self.shape.z if columns is None else columns).requires_grad_(name is not None)
            for columns, name in zip(self.shape.s, self._direct_of_s, strict=True)
        )
        torch.autograd.backward(self.network.combine(self.p.layer, a, s, self.inputs.rows), grad_DA)
        assert a.grad is not None
        return a.grad, [part.grad for part in s]

    @property
    def _direct_of_s(self) -> tuple[str | None, ...]:
        """Where the gradients of s go, without those of values."""
        return self.p.direct[: len(self.p.direct) - len(self.p.values)]

    def _transpose_aggregate(self, grad_DA: Tensor) -> None:
        """Add A^T grad to the gradient cache."""
        assert self.p.layer is not None and self.shape is not None and self.inputs.block is not None
        if self.shape.reduce is not None:
            kernels_for(grad_DA).csc_aggregate_transpose(*self._csc(), grad_DA.contiguous(), self._cache("gradient"))
            return
        z = grad_DA.new_zeros((len(self.inputs.slots), self.shape.z)).requires_grad_()
        s = tuple(
            grad_DA.new_zeros((self.inputs.num_dst, self.shape.z if columns is None else columns))
            for columns in self.shape.s
        )
        a = self.network.aggregate(self.p.layer, self.inputs.block, z, s)
        if a.requires_grad:
            torch.autograd.backward(a, grad_DA)
        if z.grad is not None:
            self._add_to_cache(z.grad)

    def _add_to_cache(self, grad_SF: Tensor) -> None:
        cache = self._cache("gradient")
        kernels_for(cache).scatter_add_rows(cache, self.inputs.slots, grad_SF.contiguous())

    def _cache(self, kind: str) -> Tensor:
        return cache_of(self.device, self.p, self.plan.resident, kind)

    def _csc(self) -> tuple[Tensor, Tensor, Tensor, Tensor, bool]:
        block, shape = self.inputs.block, self.shape
        assert block is not None and shape is not None
        weight = block.edge_weight if shape.weighted else None
        if weight is None:
            weight = block.indptr.new_empty(0, dtype=self.host.dtype)
        return block.indptr, block.local_source, self.inputs.slots, weight, shape.reduce == "mean"

    def _stores(self, name: str) -> Stores:
        """Of the writers of a row the first stores, later ones add: for all destinations, or bool [D] for each."""
        if name not in self.p.direct:
            return True
        if name not in self.p.creates:
            return False
        if name in self.plan.resident:  # where flushes add to zeros
            return name != self.p.flush
        direct = self.plan.writers[name].direct if name in self.plan.writers else None
        if direct is None:
            return True
        rows = direct[self.inputs.first : self.inputs.end]
        return rows if self.inputs.index is None else rows[self.inputs.index]

    def _emit_gradients(self, direct: list[Tensor | None]) -> None:
        """One per tensor, however often it was read; rows without a gradient get zeros."""
        total: dict[str, Tensor | None] = {}
        for grad, name in zip(direct, self.p.direct, strict=True):
            if name is not None:
                before = total.get(name)
                total[name] = grad if before is None else before if grad is None else before + grad
        for name, grad in total.items():
            if grad is None:
                shape = self.inputs.num_dst, self.plan.passes.width[name]
                grad = torch.zeros(shape, dtype=self.host.dtype, device=self.inputs.rows.ids.device)
            self._emit(grad, name)

    def _emit(self, out: Tensor, name: str) -> Tensor:
        """Store or add the destinations' rows, or get them on their way; returns where they are on the device."""
        stores, index = self._stores(name), self.inputs.position
        if name not in self.plan.resident:
            rows = self.host.rows(name, self.inputs.first, self.inputs.end)
            self.device.emit(name, self.turn.set, out, rows, stores=stores, index=index)
            return out
        if name in self.plan.pieces:
            return self._keep_piece(out, name, add=not stores)
        rows = self.inputs.own(name)
        if index is None:
            return rows.copy_(out) if stores else rows.add_(out)
        if stores:
            rows.index_copy_(0, index.long(), out)
        else:
            rows.index_add_(0, index, out)
        return out

    def _piece(self, name: str, chunk: int) -> Tensor:
        """What the chunk kept under a name; nobody else has it where this pass is the last to read it."""
        pieces = self.executor.pieces
        return pieces.pop((name, chunk)) if name in self.p.frees else pieces[name, chunk]

    def _keep_piece(self, out: Tensor, name: str, *, add: bool) -> Tensor:
        """Keep a tensor that a layer made, as it is; others refer to it, so that nobody may write to it."""
        self.device.recognize(out, name)
        if add:
            out = self.executor.pieces[name, self.chunk] + out
        elif not self.device.made_by_layers(out):
            out = out.clone()
        self.device.count(out)
        out = self.settled.of(out)
        self.executor.pieces[name, self.chunk] = out
        return out


def _touched(p: Pass) -> tuple[str, ...]:
    return (*p.inputs, *p.gradients, *p.written)

"""What is computed on one chunk: a body of instructions on its registers.

Legend: D destinations, S sources of the chunk; C slots of a cache; z, s, a as in :class:`hongtu.nn.Layer`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from hongtu.device.base import Stores
from hongtu.engine.aggregates import Aggregates
from hongtu.engine.chunk import Chunk
from hongtu.engine.saved import Graph, Saved, Settled, edges_of, entered, move_saved, saving
from hongtu.kernels.dispatch import new_rows
from hongtu.nn.sparse_input import SparseInput
from hongtu.plan.program.moves import Call, Compute
from hongtu.plan.program.ref import Ref
from hongtu.plan.program.ref import Stores as Stored

NOTHING = nullcontext()


class Body(Aggregates):
    """Runs one: every kernel is a method, which gets the registers that it takes, and gives tensors back.

    Attributes:
        places: what its operations saved.
    """

    def __init__(self, chunk: Chunk) -> None:
        super().__init__(chunk)
        self.host, self.set = chunk.host, chunk.set
        self.places: list[Saved] = []
        several = chunk.p.view.chunks > 1  # else what one needs for a moment is freed as a whole
        self.settled = Settled(self.device.save if several else None)

    def run(self, x: Compute) -> None:
        """On ``compute``."""
        self.network.chunk = self.number
        with (
            self.device.computing(self.chunk.p.name, self.number),
            torch.set_grad_enabled(x.graph),
            saving(self.places) if x.saves else NOTHING,
            self.at.asking or NOTHING,
        ):
            for call in x.body:
                self.call(call)
        self.network.context.rows = None  # which hold what layers made of them

    def call(self, x: Call) -> None:
        """Run one kernel."""
        here = self.registers
        found: Iterable[Any] = getattr(self, x.kernel)(*map(here.__getitem__, x.takes), **x.keywords) or ()
        for name, rows in zip(x.gives, found, strict=True):
            if name is not None:
                here[name] = rows
        for name in x.drops:
            del here[name]

    # ------------------------------------------------------------------------------------------------------- at hand

    def view(self, at: Ref, *, last: bool = False) -> tuple[Tensor]:
        """Rows where they lie; ``last``: nobody else wants those that the chunk has for itself."""
        if at.where == "chunk":
            pieces = self.at.pieces[at.tensor]
            return (pieces.pop(self.number) if last else pieces[self.number],)
        return (self.chunk.on_device(at),)

    def pick(self, rows: Tensor, index: Tensor, *, buffer: str) -> tuple[Tensor]:
        """Those rows that the pass computes."""
        part = self.device.staging(buffer, self.set)[: len(index)]
        return (torch.index_select(rows, 0, index, out=part),)

    def new(self, *, columns: int, zero: bool = False) -> tuple[Tensor]:
        """A row for every destination, with anything in it."""
        return (new_rows(self.at.no_weights, self.num_dst, columns, zero=zero),)

    def copy(self, *arrays: Tensor) -> Iterable[Tensor]:
        """In memory of their own, for what another pass needs of them."""
        return [array.clone() for array in arrays]

    def dense(self, start: Tensor, column: Tensor, value: Tensor, *, buffer: str) -> tuple[Tensor]:
        """Rows of a CSR tensor."""
        rows = self.device.staging(buffer, self.set)[: self.num_dst].zero_()
        row = torch.repeat_interleave(start.diff(), output_size=len(column))
        return (rows.index_put_((row, column.long()), value),)

    def sparse(self, start: Tensor, column: Tensor, value: Tensor, *, columns: int) -> tuple[SparseInput]:
        """The same rows as they are, for a stage that multiplies them."""
        return (SparseInput(start, column, value, columns),)

    def enter(self, *arrays: Tensor) -> Iterable[Tensor]:
        """Gradients will be wanted of these."""
        self.graph.entries, outs = entered(arrays)
        return outs

    # -------------------------------------------------------------------------------------------------------- stages

    def stage(
        self, base: Tensor, *others: Tensor, stage: int, s: int, keeps_input: bool, gradients_only: bool
    ) -> Iterable[Tensor]:
        """The row-wise stage behind an aggregate, of its output or what is read in its place, s and values.

        Args:
            s: how many of the others are s.
            keeps_input: the first of what it gives is the features as they are.
            gradients_only: of what it gives, nobody looks at the values.
        """
        outs = self.network.stage(
            stage, base, others[:s], self._rows, others[s:], keeps_input=keeps_input, gradients_only=gradients_only
        )
        self.graph.outs = edges_of(outs) + self.graph.outs
        for number, place in enumerate(self.places):
            self.device.recognize(place.rows, number)
        return [out.detach() for out in outs]

    def gather_moments(self, rows: Tensor) -> None:
        """Add rows to the moments that the pass gathers."""
        self.at.moments.add(rows[: self.chunk.num_own])

    def loss(self, out: Tensor, labels: Tensor, loss_bits: Tensor) -> tuple[Tensor]:
        """The destinations' loss; the gradient of their output."""
        known = self.host["loss_bits"].numpy()[self.chunk.rows]
        gradient, part = self.at.loss.gradient(out, labels, loss_bits, known)
        self.at.loss_value.add_(part)
        return (gradient,)

    def add(self, first: Tensor, *others: Tensor) -> tuple[Tensor]:
        """Their sum."""
        return (sum(others, start=first),)

    def write(self, out: Tensor, index: Tensor | None = None, *, at: Ref, holds: bool) -> tuple[Tensor]:
        """Store or add the destinations' rows, or get them on their way; where they lie then.

        Args:
            index: which of the chunk's rows they are; None: all.
            holds: what is saved of them may lie there, too.
        """
        assert isinstance(at.access, Stored)
        there, stores = out, self.chunk.stores(at.access, at.kept)
        if at.where == "host":
            rows = self.chunk.on_host(at)
            self.device.emit(at.tensor, self.set, out, rows, stores=stores, index=index)
        elif at.where == "device":
            there = self._to_device(out, index, at, stores)
        else:
            there = self._to_chunk(out, at.tensor, stores)
        if holds:
            move_saved(self.places, out, there)
        return (there,)

    def _to_device(self, out: Tensor, index: Tensor | None, at: Ref, stores: Stores) -> Tensor:
        rows = self.chunk.on_device(at)
        if index is None:
            return rows.copy_(out) if stores else rows.add_(out)
        if stores:
            rows.index_copy_(0, index.long(), out)
        else:
            rows.index_add_(0, index, out)
        return out

    def _to_chunk(self, out: Tensor, name: str, stores: Stores) -> Tensor:
        """Keep a tensor that a layer made, as it is; others refer to it, so that nobody may write to it."""
        pieces = self.at.pieces[name]
        self.device.recognize(out, name)
        if not stores:
            out = pieces[self.number] + out
        elif not self.device.workspace.knows(out):
            out = out.clone()
        self.device.workspace.count(out)
        pieces[self.number] = self.settled.of(out)
        return pieces[self.number]

    def save(self, *, stage: int) -> None:
        """Keep the recorded operations for a later pass."""
        for place in self.places:
            place.move(self.settled.of(place.rows))
        self.places.clear()
        self.at.graphs[stage, self.number] = self.graph

    # ------------------------------------------------------------------------------------------------------ backward

    def resume(self, *, stage: int) -> None:
        """Take what an earlier pass saved."""
        self.graph = self.at.graphs.pop((stage, self.number))

    def through_moments(self, rows: Tensor, grad: Tensor, *, stage: int) -> tuple[Tensor]:
        """Add what comes back by way of a normalisation's statistics to the gradient of its input."""
        return (self.network.norm(stage).with_gradient_through_statistics(rows, grad, self.chunk.num_own),)

    def differentiate(self, *gradients: Tensor | None) -> Iterable[Tensor]:
        """Backpropagate the gradients of what the stage gave, None for what has none; the gradient of everything that
        was entered, zeros where nothing came back to it."""
        self.graph.backward(list(gradients))
        entries, self.graph = self.graph.entries, Graph()
        return [entry.gradient() for entry in entries]

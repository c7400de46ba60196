"""What one chunk's stage leaves for its backward: autograd's graph, and the gradients that are taken out of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge, saved_tensors_hooks

from hongtu.kernels.torch_private import memory_id, run_backward, times_written

_ANCHOR = torch.empty(0, requires_grad=True)


class Entry:
    """Rows as the input of a graph that does not hold them: a leaf would be held until backward, these only where an
    operation saved them.

    Attributes:
        grad: their gradient after backward, like a leaf's.
    """

    def __init__(self, rows: Tensor) -> None:
        self.grad: Tensor | None = None
        self._zeros = partial(torch.zeros, rows.shape, dtype=rows.dtype, device=rows.device)

    def gradient(self) -> Tensor:
        """Zeros where nothing came back."""
        return self._zeros() if self.grad is None else self.grad


def entered(arrays: Sequence[Tensor]) -> tuple[list[Entry], tuple[Tensor, ...]]:
    """Entries, and the same memory as the graph sees it, with versions of its own: rows of other chunks may change."""
    entries = [Entry(rows) for rows in arrays]
    return entries, _Enter.apply(_ANCHOR, entries, *arrays)


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, entries: list[Entry], *arrays: Tensor) -> tuple[Tensor, ...]:
        """``anchor`` is there for the graph to begin with something that requires a gradient; it gets none."""
        ctx.entries = entries
        ctx.set_materialize_grads(False)
        return tuple([rows.data for rows in arrays])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, ...]:
        for entry, gradient in zip(ctx.entries, gradients, strict=True):
            entry.grad = gradient
        return (None, None, *(None for _ in gradients))


class Saved:
    """What an operation saved, wherever it lies now.

    Attributes:
        rows: the saved tensor.
        version: how often it had been written to then. Torch compares these by itself only where nothing takes saved
            tensors out of its hands.
    """

    __slots__ = ("rows", "version")

    def __init__(self, x: Tensor) -> None:
        self.rows, self.version = x.detach(), times_written(x)

    def taken(self) -> Tensor:
        if times_written(self.rows) != self.version:
            raise RuntimeError(
                "a tensor needed for the gradient has been modified by an inplace operation, as torch refuses on the "
                "whole graph, too; let the module after it work on a copy: x.clone()"
            )
        return self.rows

    def move(self, rows: Tensor) -> None:
        """Have the same numbers in other memory."""
        if rows is not self.rows:
            changed = times_written(self.rows) != self.version
            self.rows, self.version = rows, -1 if changed else times_written(rows)

    def is_at(self, x: Tensor) -> bool:
        rows = self.rows
        dense = rows.layout == torch.strided  # so is x
        return dense and rows.data_ptr() == x.data_ptr() and rows.shape == x.shape and rows.stride() == x.stride()


def saving(places: list[Saved]) -> saved_tensors_hooks:
    """Inside, what operations save for backward goes to ``places``; clear that list, or it is held by it, too."""

    def save(x: Tensor) -> Saved:
        places.append(Saved(x))
        return places[-1]

    return saved_tensors_hooks(save, Saved.taken)


def move_saved(places: list[Saved], x: Tensor, same: Tensor) -> None:
    """Wherever x was saved, have ``same`` instead."""
    for place in places:
        if place.is_at(x):
            place.move(same.data)


class Settled:
    """What one chunk keeps, in the memory that its device has for it; one copy of every storage.

    Args:
        keep: copies a storage there, or gives None where it may stay; None: all may.
    """

    def __init__(self, keep: Callable[[torch.UntypedStorage], torch.UntypedStorage | None] | None) -> None:
        self._keep = keep
        self._copies: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage | None]] = {}

    def of(self, x: Tensor) -> Tensor:
        """The same numbers, where they stay."""
        if self._keep is None or x.layout != torch.strided:
            return x
        storage = x.untyped_storage()
        if memory_id(storage) not in self._copies:
            self._copies[memory_id(storage)] = storage, self._keep(storage)
        copied = self._copies[memory_id(storage)][1]
        if copied is None:
            return x
        return x.new_empty(0).set_(copied, x.storage_offset(), x.size(), x.stride())


@dataclass
class Graph:
    """What a stage computed from, and where its backward begins.

    Attributes:
        entries: what gradients are wanted of.
        outs: outputs of the stage, None for those that depend on nothing trained.
    """

    entries: list[Entry] = field(default_factory=list)
    outs: list[GradientEdge | None] = field(default_factory=list)

    def backward(self, gradients: list[Tensor | None]) -> None:
        """Backpropagate the gradients of the outputs, and forget the graph."""
        every = zip(self.outs, gradients, strict=True)
        pairs = [(out, grad) for out, grad in every if out is not None and grad is not None]
        self.outs = []
        if pairs:
            run_backward(*zip(*pairs, strict=True))


def edges_of(outs: list[Tensor]) -> list[GradientEdge | None]:
    """The graph behind tensors, without the tensors."""
    return [get_gradient_edge(out) if out.requires_grad else None for out in outs]

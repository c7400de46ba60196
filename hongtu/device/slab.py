"""The one block of a device's memory in which the planned buffers of all epochs lie."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from hongtu.hardware import aligned


class Slab:
    """Has tensors that stay where the plan says, and stacks those of a pass above them.

    Args:
        memory: uint8 [bytes].

    Attributes:
        most: the byte behind the last that was in use so far.
    """

    def __init__(self, memory: Tensor) -> None:
        self._memory, self.most = memory, 0
        self._ends: dict[str, int] = {}  # of what stays
        self._top: int | None = None  # of the stack, where there is one

    def place(self, name: str, at: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Tensor ``name`` from a byte on, until it is removed."""
        assert self._top is None, f"{name}: a pass has its buffers"
        made, self._ends[name] = self._tensor(at, shape, dtype)
        return made

    def remove(self, name: str) -> None:
        del self._ends[name]

    def stack(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor above everything that is there, until ``unstack``."""
        top = max(self._ends.values(), default=0) if self._top is None else self._top
        made, self._top = self._tensor(top, shape, dtype)
        return made

    def unstack(self) -> None:
        """Forget the tensors of the stack."""
        self._top = None

    def _tensor(self, at: int, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, int]:
        """A tensor that counts by itself how often it is written to, and the byte behind it."""
        end = at + aligned(prod(shape) * dtype.itemsize)
        assert at % dtype.itemsize == 0 and end <= len(self._memory), (shape, at, end, len(self._memory))
        self.most = max(self.most, end)
        strides = [prod(shape[k + 1 :]) for k in range(len(shape))]
        made = self._memory.new_empty(0, dtype=dtype)
        return made.set_(self._memory.untyped_storage(), at // dtype.itemsize, shape, strides), end

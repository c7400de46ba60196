"""Memory that is handed out again: clearing fresh pages, and pinning them, takes longer than most uses of them."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from math import prod

import torch
from torch import Tensor

from hongtu.hardware import aligned
from hongtu.host import LARGE, in_large_pages

Make = Callable[[tuple[int, ...], torch.dtype], Tensor]


def plain(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Host memory; much of it is in large pages."""
    nbytes = prod(shape) * dtype.itemsize
    if nbytes < 2 * LARGE:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(in_large_pages(nbytes)).view(dtype).view(shape)


class Pool:
    """Gives tensors out and takes them back, of one size the lowest in memory first: who asks for the same again, gets
    the same addresses. All it holds is never more than the most that was out at one time, and
    the slack beyond: with none, sizes that are asked for in turns push each other out.

    Args:
        make: makes a tensor with undefined content.
        slack: a part of the most that was out.
        room: says how many bytes there are beside; nothing is dropped for a tensor that takes at most half of them.
    """

    def __init__(self, make: Make = plain, slack: float = 0.0, room: Callable[[], int | None] = lambda: None) -> None:
        self._make, self._slack, self._room = make, slack, room
        self._spare: dict[int, list[Tensor]] = {}
        self._out = self._most_out = self._idle = 0

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor with undefined content."""
        nbytes = prod(shape) * dtype.itemsize
        self._out += nbytes
        self._most_out = max(self._most_out, self._out)
        spare = self._spare.get(nbytes)
        if spare:
            self._idle -= nbytes
            found = spare.pop(0)
            same = found.dtype == dtype and found.shape == shape  # as in the last epoch
            return found if same else found.view(-1).view(dtype).view(shape)
        most = int(self._most_out * (1 + self._slack)) - self._out
        if self._idle > most and 2 * nbytes > (self._room() or 0):
            self.shrink(most)
        return self._make(shape, dtype)

    def give(self, tensor: Tensor) -> None:
        """Take a tensor back; nobody may use it any more."""
        self._out -= tensor.nbytes
        if tensor.nbytes:
            self._idle += tensor.nbytes
            insort(self._spare.setdefault(tensor.nbytes, []), tensor, key=Tensor.data_ptr)

    @property
    def idle(self) -> int:
        """Bytes that are held for the next one who asks."""
        return self._idle

    def shrink(self, most: int) -> None:
        """Drop spare memory until no more than that is idle, the largest first."""
        for nbytes in sorted(self._spare, reverse=True):
            spare = self._spare[nbytes]
            while spare and self._idle > most:
                spare.pop()
                self._idle -= nbytes


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

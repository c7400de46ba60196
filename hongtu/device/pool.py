"""Memory that is handed out again: clearing fresh pages, and pinning them, takes longer than most uses of them."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from math import prod

import torch
from torch import Tensor

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

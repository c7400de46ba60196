"""Memory that is handed out again: clearing fresh pages, and pinning them, takes longer than most uses of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

Make = Callable[[tuple[int, ...], torch.dtype], Tensor]

SLACK = 8  # spare memory beyond the most that was out: one part in so many


def plain(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Host memory."""
    return torch.empty(shape, dtype=dtype)


class Pool:
    """Gives tensors out and takes them back. All it holds is at most an eighth more than was ever out at one time: with
    none to spare, sizes that are asked for in turns would push each other out in every epoch.

    Args:
        make: makes a tensor with undefined content.
    """

    def __init__(self, make: Make = plain) -> None:
        self._make = make
        self._spare: dict[int, list[Tensor]] = {}
        self._out = self._most_out = self._idle = 0

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor with undefined content."""
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self._out += nbytes
        self._most_out = max(self._most_out, self._out)
        spare = self._spare.get(nbytes)
        if spare:
            self._idle -= nbytes
            return spare.pop().view(dtype).view(shape)
        self.shrink(self._most_out + self._most_out // SLACK - self._out)
        return self._make(shape, dtype)

    def give(self, tensor: Tensor) -> None:
        """Take a tensor back; nobody may use it any more."""
        self._out -= tensor.nbytes
        if tensor.nbytes:
            self._idle += tensor.nbytes
            self._spare.setdefault(tensor.nbytes, []).append(tensor.view(-1).view(torch.uint8))

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

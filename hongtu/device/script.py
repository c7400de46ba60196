"""The arrays of one batch that are no vertex rows, packed behind one another: one copy brings them all to a device."""

from __future__ import annotations

from collections import Counter
from math import prod

import numpy as np
import torch
from torch import Tensor

from hongtu.host import in_parts


class Script:
    """What one set of staging memory holds of them.

    Args:
        host: uint8 [bytes], pinned.
        device: uint8 [bytes], where they go.
        dtypes: of all arrays, by name. They come in an order in which each begins at a multiple of its numbers' size.

    Attributes:
        parts: by name, where the device has the array that was packed last.
        nbytes: that were packed since the last copy, by the link they count on.
    """

    def __init__(self, host: Tensor, device: Tensor, dtypes: dict[str, torch.dtype]) -> None:
        self._host, self._device = host, device
        self._dtypes = {name: (torch.empty(0, dtype=dtype).numpy().dtype, dtype) for name, dtype in dtypes.items()}
        self._of = {dtype: _numbers(device, dtype) for dtype in dtypes.values()}
        self._bytes = host.numpy()
        self.parts: dict[str, Tensor] = {}
        self.nbytes: Counter[str] = Counter()

    def __contains__(self, name: str) -> bool:
        return name in self._dtypes

    def pack(self, name: str, array: Tensor | np.ndarray, link: str, index: np.ndarray | None = None) -> Tensor:
        """Copy an array, or its rows ``index``, behind what is packed; returns where the device will have it."""
        source = array.numpy() if isinstance(array, Tensor) else array
        number, dtype = self._dtypes[name]
        shape = (len(source) if index is None else len(index), *source.shape[1:])
        begin, nbytes = self.nbytes.total(), prod(shape) * number.itemsize
        assert begin % number.itemsize == 0 and begin + nbytes <= len(self._bytes), name
        copy_on_host(source, self._bytes[begin : begin + nbytes].view(number).reshape(shape), index)
        self.nbytes[link] += nbytes
        strides = [prod(shape[k + 1 :]) for k in range(len(shape))]
        memory = self._of[dtype]
        at = memory.storage_offset() + begin // number.itemsize
        self.parts[name] = memory.as_strided(shape, strides, at)
        return self.parts[name]

    def take(self) -> tuple[Tensor, Tensor, Counter[str]]:
        """What is packed, on the host and on the device, and how many bytes count on which link; then none is."""
        nbytes, self.nbytes = self.nbytes, Counter()
        end = nbytes.total()
        return self._host[:end], self._device[:end], nbytes


def _numbers(memory: Tensor, dtype: torch.dtype) -> Tensor:
    """The same memory as numbers, but for what is left of it at its end."""
    return memory[: len(memory) // dtype.itemsize * dtype.itemsize].view(dtype)


def copy_on_host(source: np.ndarray, target: np.ndarray, index: np.ndarray | None = None) -> None:
    """``target[...] = source``, or rows ``index`` of it."""

    def copy(part: slice) -> None:
        target[part] = source[part if index is None else index[part]]

    in_parts(copy, len(target), target.nbytes)

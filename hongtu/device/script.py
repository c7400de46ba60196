"""The arrays of one batch that are no vertex rows, packed behind one another: one copy brings them all to a device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hongtu.hardware import aligned
from hongtu.host import in_parts

Source = Callable[[], Tensor | np.ndarray]  # gives an array of the host
Typed = dict[torch.dtype, Tensor]  # the same memory as numbers of several dtypes, bytes among them


class Part(NamedTuple):
    """Where an array is packed: its first byte, and its shape."""

    begin: int
    shape: tuple[int, ...]


class Script:
    """What one piece of host memory holds of them.

    Args:
        host: uint8 [bytes], pinned.
        dtypes: of all arrays, by name. They come in an order in which each begins at a multiple of its numbers' size.
        stays: what is packed once is not packed again, for the memory is one batch's alone.

    Attributes:
        parts: by name, where the device has the array that was packed last.
        nbytes: that were packed since the last copy, by the link they count on.
    """

    def __init__(self, host: Tensor, dtypes: dict[str, torch.dtype], *, stays: bool = False) -> None:
        self._host, self._stays = host, stays
        self._dtypes = {name: (torch.empty(0, dtype=dtype).numpy().dtype, dtype) for name, dtype in dtypes.items()}
        self._bytes = host.numpy()
        self._device: Typed = {}
        self._packed: dict[str, Part] = {}
        self.parts: dict[str, Tensor] = {}
        self.nbytes: Counter[str] = Counter()

    def __contains__(self, name: str) -> bool:
        return name in self._dtypes

    def goes_to(self, device: Typed) -> None:
        """Bring all arrays to this memory from now on, as ``typed`` has it."""
        if device is not self._device:
            self._device = device
            self.parts.clear()

    def pack(self, name: str, source: Source, link: str, index: np.ndarray | None = None) -> Tensor:
        """Copy an array, or its rows ``index``, behind what is packed; returns where the device will have it."""
        if not (self._stays and name in self._packed):
            self._packed[name] = self._copy(name, source(), link, index)
        begin, shape = self._packed[name]
        _, dtype = self._dtypes[name]
        strides = [prod(shape[k + 1 :]) for k in range(len(shape))]
        memory = self._device[dtype]
        self.parts[name] = memory.as_strided(shape, strides, memory.storage_offset() + begin // dtype.itemsize)
        return self.parts[name]

    def _copy(self, name: str, array: Tensor | np.ndarray, link: str, index: np.ndarray | None) -> Part:
        source = array.numpy() if isinstance(array, Tensor) else array
        number, _ = self._dtypes[name]
        shape = (len(source) if index is None else len(index), *source.shape[1:])
        begin, nbytes = self.nbytes.total(), prod(shape) * number.itemsize
        assert begin % number.itemsize == 0 and begin + nbytes <= len(self._bytes), name
        copy_on_host(source, self._bytes[begin : begin + nbytes].view(number).reshape(shape), index)
        self.nbytes[link] += nbytes
        return Part(begin, shape)

    def take(self) -> tuple[Tensor, Tensor, Counter[str]]:
        """What is packed, on the host and on the device, and how many bytes count on which link; then none is, unless
        it stays."""
        nbytes = self.nbytes
        if not self._stays:
            self.nbytes = Counter()
        end = nbytes.total()
        assert not self._stays or end == len(self._bytes), (end, len(self._bytes))
        return self._host[:end], self._device[torch.uint8][:end], nbytes


def scripts_of(memory: Tensor, nbytes: Sequence[int], dtypes: dict[str, torch.dtype]) -> list[Script]:
    """Scripts that stay, of so many bytes, each at the next multiple of ``ALIGNMENT`` in a piece of host memory."""
    ends = np.cumsum([0, *(aligned(n) for n in nbytes)]).tolist()
    return [Script(memory[at : at + n], dtypes, stays=True) for at, n in zip(ends, nbytes, strict=False)]


def typed(memory: Tensor, dtypes: Iterable[torch.dtype]) -> Typed:
    """uint8 [bytes] as numbers of these dtypes, but for what is left of it at its end."""
    whole = {dtype: len(memory) // dtype.itemsize * dtype.itemsize for dtype in (torch.uint8, *dtypes)}
    return {dtype: memory[:nbytes].view(dtype) for dtype, nbytes in whole.items()}


def copy_on_host(source: np.ndarray, target: np.ndarray, index: np.ndarray | None = None) -> None:
    """``target[...] = source``, or rows ``index`` of it."""

    def copy(part: slice) -> None:
        target[part] = source[part if index is None else index[part]]

    in_parts(copy, len(target), target.nbytes)

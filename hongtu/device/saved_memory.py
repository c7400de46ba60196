"""Memory of its own for what chunks save until a later pass."""

from __future__ import annotations

import weakref

import numpy as np
import torch
from torch import Tensor

from hongtu.kernels.torch_private import memory_id, storage_id

REGION = 64 << 20  # bytes that are asked for at a time; pages that nobody has used yet cost nothing
LEAST = 64 << 10  # bytes; what is smaller may stay where it is
FINE = 16  # sizes of slots per power of two


class SavedMemory:
    """Copies tensors into slots of few sizes, which are used again when nobody refers to the copy any more.

    malloc puts what stays between what layers need for a moment only. All of these differ a little from chunk to chunk,
    so that few of the gaps are of use to anything later: a third of the memory.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[np.ndarray]] = {}
        self._region, self._used = np.empty(0, dtype=np.uint8), 0
        self._saved: set[int] = set()

    def has(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage is one of the copies."""
        return memory_id(storage) in self._saved

    def copy(self, storage: torch.UntypedStorage) -> Tensor:
        """uint8 [bytes]: the content of a storage, as a storage of its own."""
        nbytes = storage.nbytes()
        size = slot_bytes(nbytes)
        spare = self._free.setdefault(size, [])
        slot = spare.pop() if spare else self._cut(size)
        used = slot[:nbytes]
        copied = torch.from_numpy(used)
        key = storage_id(copied)
        self._saved.add(key)

        def free() -> None:
            self._saved.remove(key)
            spare.append(slot)

        weakref.finalize(used, free).atexit = False
        return copied.copy_(torch.empty(0, dtype=torch.uint8).set_(storage))

    def _cut(self, size: int) -> np.ndarray:
        if self._used + size > len(self._region):
            self._region, self._used = np.empty(max(size, REGION), dtype=np.uint8), 0
        self._used += size
        return self._region[self._used - size : self._used]


def slot_bytes(nbytes: int) -> int:
    """The least of the sizes that holds so many bytes: whole cache lines, and about a sixteenth more at most.

    >>> slot_bytes(1000), slot_bytes(1024), slot_bytes(1025)
    (1024, 1024, 1088)
    """
    step = max((1 << nbytes.bit_length() - 1) // FINE, 64)
    return -(-nbytes // step) * step

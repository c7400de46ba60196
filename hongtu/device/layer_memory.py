"""Counts the tensors that layers allocate inside a stage, as a GPU's allocator would see them."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from operator import itemgetter
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hongtu.kernels.torch_private import Operations, dense_parts, memory_id, storage_id

Substitutes = Mapping[Any, Callable[..., Any]]  # by operation, what to call in its place; may give NotImplemented
NONE: Substitutes = MappingProxyType({})
_BYTES = itemgetter(1)
REGION = 64 << 20  # bytes that are asked for at a time; pages that nobody has used yet cost nothing
LEAST = 64 << 10  # bytes; what is smaller may stay where it is
FINE = 16  # sizes of slots per power of two


class WorkspaceTracker(Operations):
    """Adds every storage that an operation creates while the mode is active, until that storage is released.

    Storages that existed before (buffers, parameters, views of them) are not counted: they are announced by
    ``ignore`` or were created outside the mode and only appear as inputs.

    Args:
        on_growth: called with the live bytes after each growth; it may raise.
        substitutes: what to call in place of an operation, where the device knows better.

    Attributes:
        peak: the highest number of live bytes so far.
        recent: the most live bytes since the mode was entered last.
        substituted: since then, how many operations something else was called for.
    """

    def __init__(self, on_growth: Callable[[int], None], substitutes: Substitutes = NONE) -> None:
        super().__init__()
        self.peak = self.recent = self.substituted = 0
        self._on_growth, self._substitutes, self._counts = on_growth, substitutes, True
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}

    def of(self, *, counted: bool, substitutes: bool = True) -> WorkspaceTracker | None:
        """The mode, which counts or only substitutes, or None where neither is to be done: every operation would take
        microseconds longer."""
        self._counts = counted
        return self if counted or (substitutes and self._substitutes) else None

    def __enter__(self) -> WorkspaceTracker:
        self.recent, self.substituted = self.live, 0
        return super().__enter__()

    def reached(self, nbytes: int) -> None:
        """So many bytes were live, while operations ran that were not counted."""
        self.peak = max(self.peak, nbytes)
        self._on_growth(nbytes)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        instead, out = self._substitutes.get(func), NotImplemented
        if instead is not None:
            out = instead(*args, **(kwargs or {}))
            self.substituted += out is not NotImplemented
        if out is NotImplemented:
            out = func(*args, **(kwargs or {}))
        if not self._counts or func.is_view:
            return out
        given = (*args, *kwargs.values()) if kwargs else args  # out= is a keyword
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor) and not any(tensor is x for x in given):
                for part in dense_parts(tensor):
                    self._see(part, given)
        return out

    def _see(self, tensor: torch.Tensor, args: tuple[Any, ...]) -> None:
        storage = tensor.untyped_storage()
        key = memory_id(storage)
        if key in self._known or storage.nbytes() == 0:
            return
        tensors = (given for given in args if isinstance(given, torch.Tensor))
        if any(storage_id(part) == key for given in tensors for part in dense_parts(given)):
            return  # an in-place or aliasing operation on a tensor that the engine owns
        nbytes = storage.nbytes()
        # it is forgotten without a line of Python: an interrupt in one would be lost, and the bytes count for ever
        self._known[key] = (weakref.ref(storage, partial(self._known.pop, key)), nbytes)
        live = self.live
        self.peak, self.recent = max(self.peak, live), max(self.recent, live)
        self._on_growth(live)

    @property
    def live(self) -> int:
        """Bytes of live storages."""
        return sum(map(_BYTES, list(self._known.values())))

    def knows(self, memory: torch.Tensor | torch.UntypedStorage) -> bool:
        """Whether it is counted."""
        if isinstance(memory, torch.UntypedStorage):
            storages = [memory]
        else:
            storages = [part.untyped_storage() for part in dense_parts(memory)]
        return all(memory_id(storage) in self._known for storage in storages)

    def count(self, tensor: torch.Tensor) -> None:
        """Count a storage that no operation has made."""
        for part in dense_parts(tensor):
            self._see(part, ())

    def reset_peak(self) -> None:
        self.peak = self.live


class Sample:
    """Which chunks of a pass are counted: counting takes as long as the operations of a small chunk.

    All are the first time that they run; then every ``EVERY``-th time, not all at once, and where a budget stands the
    one that took the most every ``OFTEN``-th. Otherwise they take the most that they took when they were counted.
    """

    EVERY, OFTEN = 32, 8

    def __init__(self) -> None:
        self._runs: Counter[tuple[str, int]] = Counter()
        self._took: dict[tuple[str, int], tuple[int, int]] = {}  # by pass and chunk: bytes in all, and more than before
        self._most: dict[str, tuple[int, int]] = {}  # by pass, bytes and chunk
        self._substituting: set[str] = set()  # passes

    def takes(self, name: str, chunk: int, *, most: bool) -> bool:
        """Whether to count the next run of a chunk in a pass; ``most``: the one that took the most more often."""
        runs = self._runs[name, chunk]
        often = most and runs > 0 and chunk == self._most[name][1]
        return runs == 0 or (runs + chunk) % (self.OFTEN if often else self.EVERY) == 0

    def took(self, name: str, chunk: int, live: int) -> int:
        """The bytes that are live at most where a chunk is not counted in a pass. What one that was not counted leaves
        to the next is not known: with it, it is at least what it was."""
        whole, beyond = self._took[name, chunk]
        return max(whole, live + beyond)

    def substitutes(self, name: str) -> bool:
        """Whether a chunk that was counted in a pass had an operation that something else was called for."""
        return name in self._substituting

    def ran(self, name: str, chunk: int) -> None:
        """One has run that was not counted."""
        self._runs[name, chunk] += 1

    def counted(self, name: str, chunk: int, nbytes: int, *, before: int = 0, substituted: bool) -> None:
        """One has run with so many bytes live at most, of which some were live ``before``."""
        self.ran(name, chunk)
        whole, beyond = self._took.get((name, chunk), (0, 0))
        self._took[name, chunk] = max(whole, nbytes), max(beyond, nbytes - before)
        if name not in self._most or nbytes > self._most[name][0]:
            self._most[name] = nbytes, chunk
        if substituted:
            self._substituting.add(name)


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

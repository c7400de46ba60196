"""The memory of a device, with an enforced budget.

Planned buffers are allocated by name and counted exactly; tensors that layers create inside a stage are counted by
a ``layer_memory.WorkspaceTracker``. Their sum never exceeds the budget: like a GPU, the device raises.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from math import prod
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from hongtu.device.layer_memory import Sample, Substitutes, WorkspaceTracker
from hongtu.device.pool import Pool, Slab
from hongtu.errors import DeviceOutOfMemory
from hongtu.hardware import padded
from hongtu.kernels.dispatch import Kernels, NumbaKernels, in_use, knowing_hubs, using
from hongtu.metrics import Traffic

NOTHING = nullcontext()
SLACK = 1 / 8  # of a device's pool; a budget is kept all the same


class DeviceMemory(ABC):
    """What one device holds.

    Args:
        name, budget, traffic, substitutes: as for ``Device``.

    Attributes:
        arena: bytes of live planned buffers; ``arena_peak`` is the highest so far.
        workspace: what layers took.
        peak: highest sum of planned buffers and workspace.
        queues: whether it is told of copies before the rows that they copy are there.
        cpu_kernels: what runs on CPU tensors while its layers run, or None where it works on none.
    """

    queues = False
    cpu_kernels: Kernels | None = None

    def __init__(self, name: str, budget: int | None, traffic: Traffic, substitutes: Substitutes) -> None:
        self.name, self.budget, self.traffic = name, budget, traffic
        self.arena = self.arena_peak = self.peak = 0
        self._buffers: dict[str, Tensor] = {}
        self._sets: dict[str, tuple[Tensor, ...]] = {}  # of every buffer
        self._placed: dict[str, Tensor] = {}
        self._wholes: dict[str, Tensor] = {}  # what of these lies in, with what is between rows
        self._reserved: dict[str, int] = {}
        self._pool = Pool(self.empty, SLACK)
        self._host: dict[str, Tensor] = {}  # the host's side of staging memory
        self._begin: dict[tuple[str, int], int] = {}  # the byte of a set of it with which its rows begin
        self._staging_pool = Pool()
        self.slab: Slab | None = None  # in which planned buffers lie, once the device holds one
        self.workspace = WorkspaceTracker(self._account, substitutes)
        self._sample = Sample()
        self._running, self._counted = ("", 0), True
        self._made: dict[tuple[str, int, int | str], bool] = {}  # by pass, chunk and what

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory of the device."""

    def count_every_chunk(self) -> None:
        """That comes next in a pass, whatever was counted so far."""
        self._sample = Sample()

    def reset_peaks(self) -> None:
        self.workspace.reset_peak()
        self.arena_peak = self.arena
        self.peak = self.arena + self.workspace.live

    def reserve(self, name: str, nbytes: int) -> None:
        """Count memory that lives on the device outside its buffers: parameters, optimizer state."""
        self.arena += nbytes - self._reserved.get(name, 0)
        self._reserved[name] = nbytes
        self._account(self.workspace.live)

    def allocate(
        self, name: str, sets: int, shape: tuple[int, ...], dtype: torch.dtype, *, apart: bool = False
    ) -> None:
        """A planned buffer of a pass, so many times, with undefined content.

        Args:
            apart: its rows are padded.

        Raises:
            DeviceOutOfMemory: when it does not fit the budget.
        """
        assert name not in self._buffers, name
        room = (sets, *_room(shape, dtype, apart=apart))
        made = self._make(room, dtype) if self.slab is None else self.slab.stack(room, dtype)
        self._buffers[name] = self._fresh(made)
        self._sets[name] = tuple([_rows(made[k], shape) for k in range(sets)])

    def prepare_staging(self, name: str, sets: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """The host's side of a pass's staging memory."""
        self._host[name] = self._staging_pool.take((sets, *shape), dtype)

    def prepare_script(self, p: str, sets: int, arrays: dict[str, tuple[tuple[int, ...], torch.dtype]]) -> None:
        """The staging memory of pass ``p``, on both sides, for arrays that one copy brings: at most of these shapes."""
        for name, (shape, dtype) in arrays.items():
            self.allocate(name, sets, shape, dtype)
            self.prepare_staging(name, sets, shape, dtype)

    def release_all(self) -> None:
        """Free every planned buffer of a pass, and the host's side of it."""
        for staging in self._host.values():
            self._staging_pool.give(staging)
        self._host.clear()
        self._begin.clear()
        if self.slab is not None:
            self.slab.unstack()
        for buffer in self._buffers.values() if self.slab is None else ():
            self._give(buffer)
        self._buffers.clear()
        self._sets.clear()

    def empty_out(self) -> None:
        """Free all that it holds; nobody needs it any more."""
        self.release_all()
        for name in self.placed():
            self.remove(name)
        self.drop_spare()

    def drop_spare(self) -> None:
        """Free memory that was kept for the next pass and is the host's own: that of staging, or all."""
        self._staging_pool.shrink(0)

    def place(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, at: int | None = None, *, apart: bool = False
    ) -> Tensor:
        """A planned tensor, with undefined content, that stays until ``remove``.

        Args:
            at: where it begins in what the device holds; None: it lies elsewhere.
            apart: its rows are padded.

        Raises:
            DeviceOutOfMemory: when it does not fit the budget.
        """
        assert name not in self._placed, name
        room = _room(shape, dtype, apart=apart)
        made = self._make(room, dtype) if self.slab is None or at is None else self.slab.place(name, at, room, dtype)
        self._wholes[name] = self._fresh(made)
        self._placed[name] = _rows(made, shape)
        return self._placed[name]

    def remove(self, name: str) -> None:
        del self._placed[name]
        whole = self._wholes.pop(name)
        if self.slab is None:
            self._give(whole)
        else:
            self.slab.remove(name)

    def beside(self, name: str, number: int) -> Tensor:
        """The host's side of a pass's staging memory, of one set; batch ``number`` of the pass has the sets in turn."""
        rows, key = self._set_beside(name, number)
        begin = self._begin.get(key, 0)
        if not begin:
            return rows
        count = (rows.nbytes - begin) // (rows.stride(0) * rows.itemsize)
        return rows.as_strided((count, *rows.shape[1:]), rows.stride(), rows.storage_offset() + begin // rows.itemsize)

    def fill_beside(self, name: str, number: int, fill: Callable[[np.ndarray], int]) -> None:
        """Fill such a set; ``fill`` gets its bytes and returns with which of them its rows begin from now on."""
        rows, key = self._set_beside(name, number)
        self._begin[key] = fill(as_numpy(rows).reshape(-1).view(np.uint8))

    def _set_beside(self, name: str, number: int) -> tuple[Tensor, tuple[str, int]]:
        sets = self._host[name]
        return sets[number % len(sets)], (name, number % len(sets))

    @property
    def staged_bytes(self) -> int:
        """What the host's side takes now."""
        return sum(staging.nbytes for staging in self._host.values())

    @property
    def addresses(self) -> tuple[int, ...]:
        """Of all planned buffers and their staging memory."""
        kinds = self._placed, self._buffers, self._host
        return tuple(tensor.data_ptr() for tensors in kinds for tensor in tensors.values())

    def placed(self) -> set[str]:
        """The names of the tensors that stay."""
        return set(self._placed)

    def buffer(self, name: str) -> Tensor:
        """A tensor that stays, or a buffer that a pass has once."""
        return self._placed[name] if name in self._placed else self._sets[name][0]

    def staging(self, name: str, number: int) -> Tensor:
        """A pass's buffer of one set; batches have the sets in turn."""
        sets = self._sets[name]
        return sets[number % len(sets)]

    @contextmanager
    def computing(self, name: str = "", chunk: int = 0) -> Iterator[None]:
        """Layers run inside: their time counts, and what they allocate counts against the budget: in a pass, of the
        chunks that a sample has.

        Args:
            name, chunk: the pass and chunk that they run on.
        """
        start, live = perf_counter(), self.workspace.live
        counted = not name or self._sample.takes(name, chunk, most=self.budget is not None)
        self._running, self._counted = (name, chunk), counted
        kernels = None if self.cpu_kernels in (None, in_use()) else using(self.cpu_kernels)
        hubs = None if isinstance(self.cpu_kernels, NumbaKernels) else knowing_hubs()
        sees = self.workspace.of(counted=counted, substitutes=self._sample.substitutes(name))
        with kernels or NOTHING, hubs or NOTHING, sees or NOTHING:
            yield
        if counted:
            taken = self.workspace
            self._sample.counted(name, chunk, taken.recent, before=live, substituted=taken.substituted > 0)
        else:
            self._sample.ran(name, chunk)
            self.workspace.reached(self._sample.took(name, chunk, live))
        self.traffic.seconds["compute"] += perf_counter() - start

    def recognize(self, tensor: Tensor, what: int | str) -> None:
        """Inside ``computing``: count a tensor of a chunk that is not counted, if layers had made it when it was.

        Args:
            what: which of the chunk's tensors it is.
        """
        key = (*self._running, what)
        if self._counted:
            self._made[key] = self.workspace.knows(tensor)
        elif self._made.get(key, False):
            self.workspace.count(tensor)

    def save(self, storage: torch.UntypedStorage) -> torch.UntypedStorage | None:
        """Inside ``computing``: a copy of what stays until another pass, or None where it stays where it is."""
        return None

    def _fresh(self, tensor: Tensor) -> Tensor:
        """Memory that a planned buffer gets, whatever is in it."""
        return tensor

    def _give(self, tensor: Tensor) -> None:
        self.arena -= tensor.nbytes
        self._pool.give(tensor)

    def _make(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory beside a slab."""
        nbytes = prod(shape) * dtype.itemsize
        self.arena += nbytes
        try:
            self._account(self.workspace.live)
            return self._pool.take(shape, dtype)
        except DeviceOutOfMemory:
            self.arena -= nbytes
            raise

    def _account(self, workspace: int) -> None:
        total = self.arena + workspace
        if self.budget is not None and total > self.budget:
            raise DeviceOutOfMemory(
                f"{self.name}: needs {total} bytes ({self.arena} planned, {workspace} taken by layers), "
                f"the budget is {self.budget}",
                taken=workspace,
            )
        if self.budget is not None and total + self._pool.idle > self.budget:
            self._pool.shrink(self.budget - total)
        if self.arena > self.arena_peak:
            self.arena_peak = self.arena
        if total > self.peak:
            self.peak = total


def _room(shape: tuple[int, ...], dtype: torch.dtype, *, apart: bool) -> tuple[int, ...]:
    """The shape of what rows of a shape lie in."""
    return (shape[0], padded(shape[1], dtype.itemsize)) if apart else shape


def _rows(whole: Tensor, shape: tuple[int, ...]) -> Tensor:
    return whole if whole.shape == shape else whole[:, : shape[1]]


def as_numpy(rows: Tensor) -> np.ndarray:
    """The same memory; numbers that NumPy does not have as integers of their bits."""
    return (rows.view(torch.int16) if rows.dtype == torch.bfloat16 else rows).numpy()

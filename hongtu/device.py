"""The CPU device: plain memory behind a device's interface, with an enforced budget.

Planned buffers are allocated by name and counted exactly; tensors that layers create inside a stage are counted by
a :class:`~hongtu.workspace.WorkspaceTracker`. Their sum never exceeds the budget: like a GPU, the device raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from hongtu import row_copies
from hongtu.errors import DeviceOutOfMemory
from hongtu.metrics import Traffic
from hongtu.workspace import WorkspaceTracker


class CpuDevice:
    """One device of a run.

    Args:
        name: for messages and records, "device 0".
        budget: bytes, or None for no limit.
        traffic: counter that every copy of this device adds to.

    Attributes:
        arena: bytes of live planned buffers; ``arena_peak`` is the highest so far.
        peak: highest sum of planned buffers and workspace.
    """

    def __init__(self, name: str, budget: int | None, traffic: Traffic) -> None:
        self.name = name
        self.budget = budget
        self.traffic = traffic
        self.arena = self.arena_peak = self.peak = 0
        self._buffers: dict[str, Tensor] = {}
        self._placed: dict[str, Tensor] = {}
        self._reserved: dict[str, int] = {}
        self._workspace = WorkspaceTracker(self._account)

    @property
    def workspace_peak(self) -> int:
        """Highest bytes that layers took."""
        return self._workspace.peak

    def reset_peaks(self) -> None:
        self._workspace.reset_peak()
        self.arena_peak = self.arena
        self.peak = self.arena + self._workspace.live

    def reserve(self, name: str, nbytes: int) -> None:
        """Count memory that lives on the device outside its buffers: parameters, optimizer state."""
        self.arena += nbytes - self._reserved.get(name, 0)
        self._reserved[name] = nbytes
        self._account(self._workspace.live)

    def allocate(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A planned buffer with undefined content.

        Raises:
            DeviceOutOfMemory: when it does not fit the budget.
        """
        assert name not in self._buffers, name
        self._buffers[name] = self._make(shape, dtype)
        return self._buffers[name]

    def release_all(self) -> None:
        """Free every planned buffer of a pass."""
        self.arena -= sum(buffer.nbytes for buffer in self._buffers.values())
        self._buffers.clear()

    def place(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A planned tensor, with undefined content, that stays until ``remove``.

        Raises:
            DeviceOutOfMemory: when it does not fit the budget.
        """
        assert name not in self._placed, name
        self._placed[name] = self._make(shape, dtype)
        return self._placed[name]

    def remove(self, name: str) -> None:
        self.arena -= self._placed.pop(name).nbytes

    def placed(self) -> set[str]:
        """The names of the tensors that stay."""
        return set(self._placed)

    def buffer(self, name: str) -> Tensor:
        """A tensor that stays, or a buffer of the pass."""
        return self._placed[name] if name in self._placed else self._buffers[name]

    def staging(self, name: str) -> Tensor:
        """The pass's buffer for rows of a tensor, which may itself be on the device."""
        return self._buffers[name]

    def fill(self, tensor: Tensor, host: Tensor) -> None:
        """Copy contiguous host rows to a tensor that stays."""
        start = perf_counter()
        tensor.copy_(host)
        self.traffic.add("read", tensor.nbytes, seconds=perf_counter() - start)

    def _make(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self.arena += nbytes
        try:
            self._account(self._workspace.live)
        except DeviceOutOfMemory:
            self.arena -= nbytes
            raise
        return torch.empty(shape, dtype=dtype)

    @contextmanager
    def workspace(self) -> Iterator[None]:
        """Layers run inside: what they allocate counts against the budget."""
        with self._workspace:
            yield

    def bring(self, name: str, array: Tensor | np.ndarray, link: str) -> Tensor:
        """Copy a host array into the front of buffer ``name`` and return that part of the buffer."""
        start = perf_counter()
        part = self._buffers[name][: len(array)]
        if isinstance(array, Tensor):
            part.copy_(array)
        else:
            part.numpy()[...] = array
        self.traffic.add(link, part.nbytes, seconds=perf_counter() - start)
        return part

    def bring_rows(self, name: str, host: Tensor, index: Tensor, link: str) -> Tensor:
        """Copy rows ``index`` of a host tensor into the front of buffer ``name``; returns that part."""
        start = perf_counter()
        part = self._buffers[name][: len(index)]
        torch.index_select(host, 0, index, out=part)
        self.traffic.add(link, part.nbytes, seconds=perf_counter() - start)
        return part

    def send(self, array: Tensor, host: Tensor, *, add: bool = False, index: Tensor | None = None) -> None:
        """Copy (or add) a device tensor to contiguous host rows, or to rows ``index`` of them."""
        assert array.shape == (host.shape if index is None else (len(index), host.shape[1])), array.shape
        start = perf_counter()
        if index is not None and add:
            host.index_add_(0, index, array)
        elif index is not None:
            host.index_copy_(0, index.long(), array)
        elif add:
            host.add_(array)
        else:
            host.copy_(array)
        self.traffic.add("write", array.nbytes, seconds=perf_counter() - start)

    def load_rows(self, host: Tensor, rows: Tensor, cache: Tensor, slots: Tensor) -> None:
        """``cache[slots] = host[rows]`` over the host link."""
        start = perf_counter()
        row_copies.copy_rows(host.numpy(), rows.numpy(), cache.numpy(), slots.numpy())
        self._count("load", cache, slots, start)

    def pull_rows(self, peer_cache: Tensor, peer_slots: Tensor, cache: Tensor, slots: Tensor) -> None:
        """``cache[slots] = peer_cache[peer_slots]`` over the peer link."""
        start = perf_counter()
        row_copies.copy_rows(peer_cache.numpy(), peer_slots.numpy(), cache.numpy(), slots.numpy())
        self._count("pull", cache, slots, start)

    def push_rows(self, cache: Tensor, slots: Tensor, peer_cache: Tensor, peer_slots: Tensor) -> None:
        """``peer_cache[peer_slots] += cache[slots]`` over the peer link."""
        start = perf_counter()
        row_copies.add_rows(cache.numpy(), slots.numpy(), peer_cache.numpy(), peer_slots.numpy())
        self._count("push", cache, slots, start)

    def flush_rows(self, cache: Tensor, slots: Tensor, host: Tensor, rows: np.ndarray) -> None:
        """``host[rows] += cache[slots]`` over the host link; the host accumulates."""
        start = perf_counter()
        row_copies.add_rows(cache.numpy(), slots.numpy(), host.numpy(), rows)
        self._count("flush", cache, slots, start)

    def zero_rows(self, cache: Tensor, slots: Tensor) -> None:
        """``cache[slots] = 0``."""
        row_copies.zero_rows(cache.numpy(), slots.numpy())

    def _count(self, link: str, cache: Tensor, slots: Tensor, start: float) -> None:
        nbytes = len(slots) * cache.shape[1] * cache.itemsize
        self.traffic.add(link, nbytes, len(slots), perf_counter() - start)

    def _account(self, workspace: int) -> None:
        total = self.arena + workspace
        if self.budget is not None and total > self.budget:
            raise DeviceOutOfMemory(
                f"{self.name}: needs {total} bytes ({self.arena} planned, {workspace} taken by layers), "
                f"the budget is {self.budget}",
                taken=workspace,
            )
        self.arena_peak = max(self.arena_peak, self.arena)
        self.peak = max(self.peak, total)

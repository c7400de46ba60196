"""The CPU as a device: its memory is the host's, and everything is done at once."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from hongtu.device.base import Chosen, Device, Stores, crossing_bytes
from hongtu.device.capture import Recorder
from hongtu.device.layer_memory import LEAST, SavedMemory
from hongtu.device.pool import Make
from hongtu.device.script import Source
from hongtu.device.streams import Inline, Stream, Streams, ThreadStream
from hongtu.hardware import CPU, Hardware
from hongtu.kernels.dense import substitutes
from hongtu.kernels.dispatch import NUMBA, Kernels, using
from hongtu.metrics import Traffic

CAST = 1 << 14  # numbers that are cast at a time


class Backend:
    """Makes the devices of a run: here the CPU, as many times as there are partitions; others differ in some of this.

    Attributes:
        hardware: the profile that a plan is made for where none is given.
        cpu_kernels: what runs on tensors of the CPU.
    """

    hardware: Hardware = CPU
    cpu_kernels: Kernels = NUMBA

    def __init__(self, kernels: Kernels = NUMBA) -> None:
        self.cpu_kernels = kernels

    @property
    def pinned(self) -> Make | None:
        """Makes host memory that the devices read, or None: they read any."""
        return None

    @property
    def on_host(self) -> bool:
        """Whether the devices' memory is the host's own."""
        return self.where(0).type == "cpu"

    def gpu_of(self, partition: int) -> int:
        """What a partition's parameters live on; partitions on the same one share them."""
        return 0

    def where(self, gpu: int) -> torch.device:
        """The torch device of its tensors."""
        return torch.device("cpu")

    def memory(self, partitions: int) -> int | None:
        """Bytes that each of so many partitions may take where no budget is set; None: no limit but the host's."""
        return None

    def trial(self) -> AbstractContextManager[None]:
        """Inside, what a model takes is found out on the CPU for these devices."""
        return using(self.cpu_kernels)

    def devices(self, partitions: int, budget: int | None, traffic: Traffic) -> list[Device]:
        """One device for each partition; those on one GPU share its streams."""
        disk = ThreadStream()
        return [self._device(f"device {i}", budget, traffic, disk) for i in range(partitions)]

    def recorder(self, devices: list[Device]) -> Recorder | None:
        """Captures what the streams of a run's devices are given; None: nothing is captured."""
        return None

    def _device(self, name: str, budget: int | None, traffic: Traffic, disk: Stream) -> Device:
        return CpuDevice(name, budget, traffic, disk, self.cpu_kernels)


class CpuDevice(Device):
    """Plain memory behind a device's interface."""

    def __init__(
        self, name: str, budget: int | None, traffic: Traffic, disk: Stream | None = None, kernels: Kernels = NUMBA
    ) -> None:
        streams = Streams(Inline(), Inline(), Inline(), Inline(), disk or Inline())
        super().__init__(name, budget, traffic, streams, kernels, substitutes())
        self._saved, self.cpu_kernels = SavedMemory(), kernels

    def drain(self) -> None:
        self.streams.disk.record().synchronize("drain: the disk has taken all")

    def drop_spare(self) -> None:
        super().drop_spare()
        self._pool.shrink(0)

    def abandon(self) -> None:
        with contextlib.suppress(Exception):  # the error that led here is the one to show
            self.drain()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype)

    def save(self, storage: torch.UntypedStorage) -> torch.UntypedStorage | None:
        if storage.nbytes() < LEAST or self._saved.has(storage) or not self.workspace.knows(storage):
            return None
        copied = self._saved.copy(storage)
        self.workspace.count(copied)
        return copied.untyped_storage()

    def _copy_rows(self, src: Tensor, src_index: Tensor, dst: Tensor, dst_index: Tensor) -> None:
        if src.dtype == dst.dtype:
            super()._copy_rows(src, src_index, dst, dst_index)
            return
        step = max(1, CAST // max(src.shape[1], 1))
        for here, there in zip(src_index.split(step), dst_index.split(step), strict=True):
            dst.index_copy_(0, there.long(), src.index_select(0, here).to(dst.dtype))

    def _add_to_peer(
        self, cache: Tensor, slots: Tensor, peer_cache: Tensor, peer_slots: Tensor, contended: bool
    ) -> None:
        self.kernels.add_rows(cache, slots, peer_cache, peer_slots)

    def fill(self, tensor: Tensor, host: Tensor, link: str) -> None:
        start = perf_counter()
        tensor.copy_(host)
        self.traffic.add(link, crossing_bytes(tensor, host), seconds=perf_counter() - start)

    def bring(self, name: str, number: int, source: Source, link: str, chosen: Chosen | None = None) -> Tensor:
        start, array = perf_counter(), source()
        index = None if chosen is None else chosen.rows
        count = (array.shape if index is None else index.shape)[0]
        part = self.staging(name, number)[:count]
        if not count:
            return part
        nbytes = part.nbytes
        if not isinstance(array, Tensor):
            part.numpy()[...] = array
        else:
            nbytes = crossing_bytes(part, array)
            if index is None:
                part.copy_(array)
            elif array.dtype == part.dtype:
                torch.index_select(array, 0, torch.from_numpy(index), out=part)
            else:
                self._copy_rows(array, torch.from_numpy(index), part, torch.arange(count))
        self.traffic.add(link, nbytes, seconds=perf_counter() - start)
        return part

    def emit(
        self, name: str, number: int, rows: Tensor, host: Tensor, *, stores: Stores, index: Tensor | None
    ) -> None:  # fmt: skip
        assert rows.shape == (host.shape if index is None else (len(index), host.shape[1])), rows.shape
        start = perf_counter()
        if rows.dtype != host.dtype and not (stores is True and index is None):
            each = torch.arange(len(rows))
            _put_rounded(rows, each, host, each if index is None else index, stores)
        elif isinstance(stores, np.ndarray):
            every = np.arange(len(rows), dtype=np.int32)
            self.kernels.put_rows(rows, every, host, every if index is None else index.numpy(), stores)
        elif index is not None and stores:
            host.index_copy_(0, index.long(), rows)
        elif index is not None:
            host.index_add_(0, index, rows)
        elif stores:
            host.copy_(rows)
        else:
            host.add_(rows)
        self.traffic.add("write", crossing_bytes(rows, host), seconds=perf_counter() - start)

    def _flush_rows(
        self, number: int, cache: Tensor, slots: Tensor, host: Tensor, rows: np.ndarray, stores: np.ndarray
    ) -> None:
        start, narrow = perf_counter(), host.dtype != cache.dtype
        if narrow:
            _put_rounded(cache, slots, host, torch.from_numpy(rows), stores)
        else:
            self.kernels.put_rows(cache, slots.numpy(), host, rows, stores)
        self._count("flush", host if narrow else cache, slots, start)


def _put_rounded(src: Tensor, src_index: Tensor, dst: Tensor, dst_index: Tensor, stores: Stores) -> None:
    """``dst[dst_index] = src[src_index]``, or ``+=`` where ``stores`` (of each, bool [K], or of all) does not say so,
    in rows of fewer digits: sums are taken in those of ``src`` and rounded when they are kept."""
    step = max(1, CAST // max(src.shape[1], 1))
    flags = torch.from_numpy(stores) if isinstance(stores, np.ndarray) else torch.full((len(dst_index),), stores)
    parts = (index.split(step) for index in (src_index, dst_index.long(), flags))
    for here, there, stored in zip(*parts, strict=True):
        rows = src.index_select(0, here)
        if not stored.all():
            rows += torch.where(stored[:, None], 0, dst.index_select(0, there).to(src.dtype))
        dst.index_copy_(0, there, rows.to(dst.dtype))

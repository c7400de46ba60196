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
        assert src.dtype == torch.bfloat16, (src.dtype, dst.dtype)
        self.kernels.widen_rows(src.view(torch.int16), src_index, dst, dst_index)

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
        rounds = rows.dtype != host.dtype
        if isinstance(stores, np.ndarray) or (rounds and not (stores is True and index is None)):
            every = np.arange(len(rows), dtype=np.int32)
            flags = stores if isinstance(stores, np.ndarray) else np.full(len(rows), stores)
            self._put_rows(rows, every, host, every if index is None else index.numpy(), flags)
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
        start = perf_counter()
        self._put_rows(cache, slots.numpy(), host, rows, stores)
        self._count("flush", host if host.dtype != cache.dtype else cache, slots, start)

    def _put_rows(
        self, src: Tensor, src_index: np.ndarray, dst: Tensor, dst_index: np.ndarray, stores: np.ndarray
    ) -> None:
        if src.dtype == dst.dtype:
            self.kernels.put_rows(src, src_index, dst, dst_index, stores)
        else:
            assert dst.dtype == torch.bfloat16, (src.dtype, dst.dtype)
            self.kernels.put_rounded_rows(src, src_index, dst.view(torch.int16), dst_index, stores)

"""A device with memory of its own: data goes through pinned staging memory, copies run beside arithmetic.

Stored vertex rows are read and written where they are on the host; everything else, and what must be added up there,
passes through a set of staging memory on both sides. The host adds gradient rows up in a stream of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np
import torch
from torch import Tensor

from hongtu.device.base import Chosen, Device, Stores, crossing_bytes
from hongtu.device.host_work import Put
from hongtu.device.memory import as_numpy
from hongtu.device.pool import Make, Pool, Slab
from hongtu.device.script import Script, Source, Typed, scripts_of, typed
from hongtu.device.streams import Streams
from hongtu.hardware import aligned
from hongtu.host import available_bytes
from hongtu.kernels.dispatch import Kernels
from hongtu.metrics import Traffic

HOST_BLOCKS = 64  # of threads that read or write host memory: 1 MiB on its way, ten times what the link holds


class StagedDevice(Device):
    """A GPU, or what behaves like one.

    Args:
        name, budget, traffic, streams, kernels: as for ``Device``.
        where: the torch device of its tensors.
        reaches: whether the device can read and write a tensor of the host or a peer itself; others take a detour.
        adds: the same for adding to a peer's tensor while others do; default: as ``reaches``.
        pinned: makes host memory that the device can read and write; what it made is free again when it is dropped.
    """

    queues = True

    def __init__(
        self,
        name: str,
        budget: int | None,
        traffic: Traffic,
        streams: Streams,
        kernels: Kernels,
        where: torch.device,
        pinned: Make,
        reaches: Callable[[Tensor], bool] = lambda tensor: True,
        adds: Callable[[Tensor], bool] | None = None,
    ) -> None:
        super().__init__(name, budget, traffic, streams, kernels)
        self.where, self._reaches, self._adds = where, reaches, adds or reaches
        self._pinned, self._staging_pool = pinned, Pool(pinned, room=available_bytes)
        self._scripts: list[Script] = []  # of the pass: one for each batch where they stay, else one for each set
        self._kept: dict[str, list[Script]] = {}  # by pass, those that stay
        self._script_memory: list[Typed] = []  # of the pass, one for each set

    def hold(self, nbytes: int) -> None:
        if self.slab is None:
            self._pool.shrink(0)
            self.reserve("slab", nbytes)
            self.slab = Slab(self.empty((nbytes,), torch.uint8))

    def keep_scripts(self, name: str, nbytes: Sequence[int], dtypes: dict[str, torch.dtype]) -> None:
        memory = self._pinned((sum(map(aligned, nbytes)),), torch.uint8)
        self._kept[name] = scripts_of(memory, nbytes, dtypes)

    def prepare_script(self, p: str, sets: int, arrays: dict[str, tuple[tuple[int, ...], torch.dtype]]) -> None:
        nbytes = sum(prod(shape) * dtype.itemsize for shape, dtype in arrays.values())
        dtypes, names = {name: dtype for name, (_, dtype) in arrays.items()}, [f"script {k}" for k in range(sets)]
        for name in names:
            self.allocate(name, 1, (nbytes,), torch.uint8)
        self._script_memory = [typed(self.buffer(name), dtypes.values()) for name in names]
        if p in self._kept:
            self._scripts = self._kept[p]
            return
        for name in names:
            self.prepare_staging(name, 1, (nbytes,), torch.uint8)
        self._scripts = [Script(self.beside(name, 0), dtypes) for name in names]

    def release_all(self) -> None:
        self._scripts, self._script_memory = [], []
        super().release_all()

    def _script(self, number: int) -> Script:
        script = self._scripts[number % len(self._scripts)]
        script.goes_to(self._script_memory[number % len(self._script_memory)])
        return script

    def fill(self, tensor: Tensor, host: Tensor, link: str) -> None:
        self.streams.load.run(lambda: self._copy(link, host, tensor))

    def bring(self, name: str, number: int, source: Source, link: str, chosen: Chosen | None = None) -> Tensor:
        if self._scripts and name in self._script(number):
            return self._script(number).pack(name, source, link, None if chosen is None else chosen.rows)
        array = source()
        assert isinstance(array, Tensor), name
        rows = None if chosen is None else self._script(number).parts[chosen.buffer]
        part = self.staging(name, number)[: len(array if rows is None else rows)]
        if len(part):
            self.streams.load.run(lambda: self._copy(link, array, part, source_index=rows))
        return part

    def ship(self, number: int) -> None:
        host, part, nbytes = self._script(number).take()

        def ship() -> None:
            part.copy_(host, non_blocking=True)
            for link, count in nbytes.items():
                self.traffic.add(link, count)

        if len(host):
            self.streams.load.run(ship)

    def emit(
        self, name: str, number: int, rows: Tensor, host: Tensor, *, stores: Stores, index: Tensor | None
    ) -> None:  # fmt: skip
        self.staging(f"deliver {name}", number)[: len(rows)].copy_(rows)

    def deliver(
        self, name: str, number: int, count: int, host: Tensor, *, stores: Stores, chosen: Chosen | None
    ) -> None:
        part = self.staging(f"deliver {name}", number)[:count]
        if stores is True:
            rows = None if chosen is None else self._script(number).parts[chosen.buffer]
            self.streams.flush.run(lambda: self._copy("write", part, host, target_index=rows))
        else:
            index, staging = None if chosen is None else chosen.rows, self.beside(f"add {name}", number)[:count]
            self._put_on_host("write", part, staging, host, index, stores)

    def _flush_rows(
        self, number: int, cache: Tensor, slots: Tensor, host: Tensor, rows: np.ndarray, stores: np.ndarray
    ) -> None:
        part = self.staging("flush_rows", number)[: len(rows)]
        self.streams.flush.run(lambda: self.kernels.copy_rows(cache, slots, part, None))
        self._put_on_host("flush", part, self.beside("flush_rows", number)[: len(rows)], host, rows, stores)

    def _put_on_host(
        self, link: str, part: Tensor, staging: Tensor, host: Tensor, index: np.ndarray | None, stores: Stores
    ) -> None:
        """Copy device rows to the host's staging memory, and have the host store them or add them up."""

        def copy() -> None:
            self._copy(link, part, staging)
            if link == "flush":
                self.traffic.add(link, 0, len(part))

        self.streams.flush.run(copy)
        self.streams.host.wait(self.streams.flush.record(), "add: the rows have arrived")
        self.streams.host.run(Put(as_numpy(staging), as_numpy(host), index, stores))

    def _copy(
        self, link: str, source: Tensor, target: Tensor, *,
        source_index: Tensor | None = None, target_index: Tensor | None = None,
    ) -> None:  # fmt: skip
        """All rows, or some of either."""
        rounds = source.dtype != target.dtype and torch.bfloat16 in (source.dtype, target.dtype)
        if not rounds and source_index is None and target_index is None and target.is_contiguous():
            target.copy_(source, non_blocking=True)
        else:  # torch would make one beside it that is not apart, or has other numbers
            self._copy_rows(source, source_index, target, target_index)
        ends = (target, source) if target_index is None else (source, target)
        self.traffic.add(link, crossing_bytes(*ends))

    def _copy_rows(self, src: Tensor, src_index: Tensor | None, dst: Tensor, dst_index: Tensor | None) -> None:
        if self._reaches(src) and self._reaches(dst):
            blocks = {} if src.is_cuda and dst.is_cuda else {"max_blocks": HOST_BLOCKS}
            self.kernels.copy_rows(src, src_index, dst, dst_index, **blocks)
            return
        _settle(src, dst)
        rows = src if src_index is None else src.index_select(0, src_index.to(src.device))
        if dst_index is None:
            dst.copy_(rows)
        else:
            dst.index_copy_(0, dst_index.to(dst.device).long(), rows.to(dst))

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.where)

    def _add_to_peer(
        self, cache: Tensor, slots: Tensor, peer_cache: Tensor, peer_slots: Tensor, contended: bool
    ) -> None:
        if self._adds(peer_cache):
            self.kernels.add_rows(cache, slots, peer_cache, peer_slots, "system" if contended else "plain")
        else:
            _settle(peer_cache)
            rows = cache.index_select(0, slots).to(peer_cache.device)
            peer_cache.index_add_(0, peer_slots.to(peer_cache.device), rows)
            _settle(peer_cache)

    def drain(self) -> None:
        streams = self.streams
        for stream in (streams.load, streams.compute, streams.flush, streams.host, streams.disk):
            stream.record().synchronize("drain: the pass is done")


def _settle(*tensors: Tensor) -> None:
    """On a detour, which other streams do not know of: wait for all work on these tensors' GPUs."""
    for tensor in tensors:
        if tensor.is_cuda:
            torch.cuda.synchronize(tensor.device)

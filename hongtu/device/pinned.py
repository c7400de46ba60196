"""Pinned host memory of exact size, near the GPUs that use it."""

from __future__ import annotations

import contextlib
import mmap
import os
import warnings
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hongtu.cuda_ext import driver
from hongtu.host import in_parts

PORTABLE, MAPPED = 1, 2  # cuMemHostRegister's flags


class Registered:
    """Blocks of host memory that GPUs read and write at their own addresses."""

    def __init__(self) -> None:
        self._starts: set[int] = set()
        self._stuck: list[mmap.mmap] = []

    def __contains__(self, tensor: Tensor) -> bool:
        """Whether a tensor is in one of the blocks, each of which is a storage."""
        return tensor.untyped_storage().data_ptr() in self._starts

    def add(self, array: np.ndarray, memory: mmap.mmap, gpu: int) -> bool:
        """Register an array, all of ``memory``, until it is dropped; False when the driver refuses.

        Args:
            gpu: whose context is used where the thread has none; all GPUs reach the block.
        """
        bindings = driver.bindings()  # CUDA's runtime would remember a refusal and fail the next launch for it
        start = array.ctypes.data
        given = driver.answer(gpu, lambda: bindings.cuMemHostRegister(start, array.nbytes, PORTABLE | MAPPED))
        if int(given[0]) != 0:
            return False
        self._starts.add(start)
        weakref.finalize(array, self._remove, start, memory, gpu).atexit = False  # a process that ends gives all back
        return True

    def _remove(self, start: int, memory: mmap.mmap, gpu: int) -> None:
        """On whichever thread drops the array. What the driver does not give up stays mapped: GPUs would read these
        pages, not those of whoever got the address next."""
        self._starts.discard(start)
        given = driver.answer(gpu, lambda: driver.bindings().cuMemHostUnregister(start))
        if int(given[0]) != 0:
            self._stuck.append(memory)
            warnings.warn(f"the driver failed to unpin {len(memory)} bytes of host memory: {given[0]!r}", stacklevel=2)


REGISTERED = Registered()


def pinned(shape: tuple[int, ...], dtype: torch.dtype, near: Sequence[str] = (), gpu: int = 0) -> Tensor:
    """Page-aligned host memory of exact size, registered with the driver until the tensor's memory is dropped.

    torch's own pinned allocator rounds up to powers of two, which would not do for what fills most of a machine. Where
    the driver refuses, mostly because the system limits locked memory, the memory is pageable: a warning says so, and
    rows go through the host's processor.

    Args:
        near: lists of processors; that many parts of the memory are placed near them, in order.
        gpu: one of those that use it.
    """
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if nbytes == 0:
        return torch.empty(shape, dtype=dtype)
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for advice in (mmap.MADV_HUGEPAGE, mmap.MADV_DONTFORK):  # a child's copy would take the GPUs' pages away
        with contextlib.suppress(OSError):  # a kernel without
            memory.madvise(advice)
    array = np.frombuffer(memory, dtype=np.uint8)
    if len(set(near)) > 1:
        touch_near(array, near)
    else:
        in_parts(lambda part: _touch(array[part]), len(array), nbytes)
    if not REGISTERED.add(array, memory, gpu):
        warnings.warn(
            f"the driver refused to pin {nbytes} bytes of host memory: the host gathers rows, which is slow; "
            "raise the limit of locked memory (`ulimit -l unlimited`)",
            stacklevel=2,
        )
    return torch.from_numpy(array).view(dtype).view(shape)


def touch_near(array: np.ndarray, near: Sequence[str]) -> None:
    """Write to every page of part k of an array from a processor of list k: the system then takes its memory there."""
    before = os.sched_getaffinity(0)
    try:
        for k, listed in enumerate(near):
            os.sched_setaffinity(0, processors(listed) & before or before)
            _touch(array[k * len(array) // len(near) : (k + 1) * len(array) // len(near)])
    finally:
        os.sched_setaffinity(0, before)


def _touch(part: np.ndarray) -> None:
    part[:: mmap.PAGESIZE] = 0


def processors(listed: str) -> set[int]:
    """Numbers of a list as Linux writes it.

    >>> sorted(processors("0-2,8"))
    [0, 1, 2, 8]
    """
    found: set[int] = set()
    for part in listed.strip().split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def processors_near(gpu: int) -> str:
    """The processors on the socket of a GPU, as Linux lists them; all where it does not say."""
    try:
        return Path(f"/sys/bus/pci/devices/{driver.bus_id(gpu)}/local_cpulist").read_text()
    except OSError:
        return f"0-{(os.cpu_count() or 1) - 1}"

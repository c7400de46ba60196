"""Runs CUDA kernels on numpy arrays, between guards that show what is written or read outside of a tensor."""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from hongtu.cuda_ext.host_build import compiler
from hongtu.cuda_ext.sources import KernelError


def skip_without_compiler() -> None:
    """Skip the test where there is no C++ compiler for kernels."""
    try:
        compiler()
    except KernelError as error:
        pytest.skip(str(error))


GUARD = 64  # elements before and behind: whole 16-byte lanes past an end fall into them


@dataclass
class Machine:
    """Runs kernels of a launcher on numpy arrays.

    Attributes:
        fenced: on the CPU, tensors end where unreadable memory begins: one element read too far is a crash.
    """

    launcher: Any
    stream: Any
    device: str
    fenced: bool = False
    put: list[tuple[torch.Tensor, torch.Tensor, bytes | None]] = field(default_factory=list)

    def tensor(self, array: np.ndarray, shift: int = 0, *, output: bool = False, host: bool = False) -> torch.Tensor:
        """A guarded copy of an array on the device (``host``: in pinned host memory)."""
        source = torch.from_numpy(np.ascontiguousarray(array))
        if self.fenced:
            return before_a_fence(source)
        whole = torch.empty(2 * GUARD + shift + source.numel(), dtype=source.dtype)
        if host and self.device != "cpu":
            whole = whole.pin_memory()
        elif not host:
            whole = whole.to(self.device)
        whole.view(torch.uint8).fill_(0x5A)
        part = whole[GUARD + shift : GUARD + shift + source.numel()]
        part.copy_(source.flatten())
        self.put.append((whole, part, None if output else _bytes(whole)))
        return part.view(source.shape)

    def check(self) -> None:
        """All guards, and all inputs, are as they were."""
        if self.device != "cpu":
            torch.cuda.synchronize()
        for whole, part, before in self.put:
            if before is None:
                start = part.data_ptr() - whole.data_ptr()
                after = _bytes(whole)
                guards = after[:start] + after[start + part.nbytes :]
                assert guards == b"\x5a" * len(guards), "written outside of an output"
            else:
                assert _bytes(whole) == before, "an input was changed"
        self.put.clear()

    def run(self, kernel: Any, inputs: list, outputs: list[np.ndarray], shift: int = 0, **options: Any) -> list:
        """``kernel(*inputs, *outputs)``; returns what the outputs became."""
        given = [
            self.tensor(x, shift if x.dtype.kind == "f" else 0) if isinstance(x, np.ndarray) else x for x in inputs
        ]
        made = [self.tensor(out, shift, output=True) for out in outputs]
        kernel(self.launcher, self.stream, *given, *made, **options)
        self.check()
        return [out.cpu().numpy() for out in made]


def before_a_fence(source: torch.Tensor) -> torch.Tensor:
    """A copy that ends where a page begins that nobody may read; the fence stands for the life of the process."""
    size = -(-max(1, source.nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, size + mmap.PAGESIZE)
    whole = np.frombuffer(memory, np.uint8)
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(whole.ctypes.data + size), mmap.PAGESIZE, 0) == 0
    part = torch.from_numpy(whole[size - source.nbytes : size]).view(source.dtype).view(source.shape)
    return part.copy_(source)


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.view(torch.uint8).cpu().numpy().tobytes()

"""Runs CUDA kernels on numpy arrays, between guards that show what is written or read outside of a tensor."""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from hongtu.cuda_ext.compile import KernelError
from hongtu.cuda_ext.host_build import compiler


def skip_without_compiler() -> None:
    """Skip the test where there is no C++ compiler for kernels."""
    try:
        compiler()
    except KernelError as error:
        pytest.skip(str(error))


GUARD = 64  # elements before and behind: whole 16-byte lanes past an end fall into them
APART = "apart"  # rows, with padding between, and aligned
MIXED = "mixed"  # those that loops move again and again are, others lie apart as it comes


def lies(array: np.ndarray, shift: int | str, *, moved: bool = True) -> dict[str, int]:
    """How ``Machine.tensor`` puts rows for a test: ``shift`` elements past an aligned address, or apart."""
    if isinstance(shift, int):
        return {"shift": shift if array.dtype.kind == "f" else 0}
    width = array.shape[-1]
    lanes = -(-width // 4) * 4 + 4 * (width % 3 == 0)  # with more padding, or less than a lane
    return {"stride": lanes if moved or shift == APART else width + 1}


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

    def tensor(
        self, array: np.ndarray, shift: int = 0, stride: int = 0, *, output: bool = False, host: bool = False
    ) -> torch.Tensor:
        """A guarded copy of an array on the device (``host``: in pinned host memory), its rows ``stride`` elements
        apart."""
        source = torch.from_numpy(np.ascontiguousarray(array))
        shape = (len(source), stride) if stride else tuple(source.shape)
        if self.fenced:
            return before_a_fence(torch.empty(shape, dtype=source.dtype))[..., : source.shape[-1]].copy_(source)
        count = int(np.prod(shape))
        whole = torch.empty(2 * GUARD + shift + count, dtype=source.dtype)
        if host and self.device != "cpu":
            whole = whole.pin_memory()
        elif not host:
            whole = whole.to(self.device)
        whole.view(torch.uint8).fill_(0x5A if output else 0x5B)  # no copy of one is the other
        part = whole[GUARD + shift : GUARD + shift + count].view(shape)
        part = part[:, : source.shape[1]] if stride else part
        part.copy_(source)
        self.put.append((whole, part, None if output else _bytes(whole)))
        return part

    def check(self) -> None:
        """All guards, what is between rows among them, and all inputs, are as they were."""
        if self.device != "cpu":
            torch.cuda.synchronize()
        for whole, part, before in self.put:
            if before is None:
                rest = whole.clone()
                rest.as_strided(part.shape, part.stride(), part.storage_offset()).copy_(whole[:1].expand(part.shape))
                assert _bytes(rest) == b"\x5a" * rest.nbytes, "written outside of an output"
            else:
                assert _bytes(whole) == before, "an input was changed"
        self.put.clear()

    def run(
        self, kernel: Any, inputs: list, outputs: list[np.ndarray], shift: int | str = 0,
        rows: dict[int, bool] | None = None, **options: Any,
    ) -> list:  # fmt: skip
        """``kernel(*inputs, *outputs)``; returns what the outputs became.

        Args:
            rows: the places of those that may be apart, and whether loops move them again and again; None: all, and do.
        """

        def put(k: int, x: np.ndarray, *, output: bool) -> torch.Tensor:
            whole = x.dtype.kind != "f" or x.ndim != 2 or (rows is not None and k not in rows)
            if whole and isinstance(shift, str):
                return self.tensor(x, output=output)
            return self.tensor(x, **lies(x, shift, moved=rows is None or rows.get(k, True)), output=output)

        given = [put(k, x, output=False) if isinstance(x, np.ndarray) else x for k, x in enumerate(inputs)]
        made = [put(k, out, output=True) for k, out in enumerate(outputs, len(inputs))]
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

"""Dense float32 products on processors where torch's own do not use what the processor has.

torch's products are MKL's, which runs AVX2 code on every processor that is not Intel's; oneDNN, which is in torch, too,
runs AVX-512 there: about twice as fast from Zen 5 on, which has units of 512 bits. But oneDNN makes code for every
shape that it meets and keeps it, which takes a millisecond and a megabyte each, and chunks are of many shapes. So
products are cut into blocks of one shape, and MKL takes what is left. Not used for float64, which oneDNN does not
multiply. A block's own output is the library's workspace, which nobody counts.

Each function here gives NotImplemented where torch's own is as good.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hongtu.kernels.torch_private import onednn_linear
from hongtu.threads import shared_cores

MOST = 8  # threads: each holds Python's lock for a part of the time
_here = threading.local()
BLOCK = 512  # rows of a block: its output stays in the processor's cache until it is copied
LEAST = 64 * 128  # numbers in the matrix that rows are multiplied with; anything smaller is not worth a call
SHORT, LONG = 40, 256  # columns of two matrices of rows whose product is worth it
LARGEST = 512 * 1024  # numbers in that product: each thread's part of it is added up block by block
ZEN_5 = 26  # AMD's family; before it AVX-512 code does as much in a cycle as AVX2 code, and blocks take longer
aten = torch.ops.aten


def each_block(work: Callable[[int], object], blocks: int) -> None:
    """Call ``work`` with every number below ``blocks``, in any order; what it computes must not depend on how many
    threads torch has, and none of its tensors is differentiated.

    On a quiet machine one block comes after another, each by all of OpenMP's threads, which wait for one another at its
    end. Where others use the cores, the thread that they wait for may not be running, thousands of times in an epoch:
    then every thread takes the next block by itself, and nobody waits before the last.
    """
    threads = torch.get_num_threads()
    if not shared_cores.crowded or not 1 < threads <= MOST or blocks < 2:
        for k in range(blocks):
            work(k)
        return
    turns, every = iter(range(blocks)), os.sched_getaffinity(0)
    own = [{processor} for processor in every] if len(every) == threads else [every] * threads

    def take_turns(number: int) -> None:
        os.sched_setaffinity(0, own[number])  # else several may come to one processor, beside somebody else's thread
        with torch.no_grad(), torch.inference_mode(inference):
            try:
                for k in turns:
                    work(k)
            finally:
                _end(turns)

    inference = torch.is_inference_mode_enabled()
    others = [_pool(threads - 1).submit(take_turns, number) for number in range(1, threads)]
    torch.set_num_threads(1)
    try:
        take_turns(0)
    finally:
        try:
            _end(turns)
            wait(others)
        finally:
            torch.set_num_threads(threads)  # also of threads that begin later
            os.sched_setaffinity(0, every)
    for other in others:
        other.result()


def _end(turns: Iterator[int]) -> None:
    """After an error nobody goes on."""
    for _ in turns:
        pass


def _pool(threads: int) -> ThreadPoolExecutor:
    """The caller's own, of threads that compute alone."""
    pool: tuple[int, ThreadPoolExecutor] | None = getattr(_here, "pool", None)
    if pool is None or pool[0] != threads:
        pool = _here.pool = threads, ThreadPoolExecutor(threads, "hongtu block", initializer=_alone)
    return pool[1]


def _alone() -> None:
    torch.get_num_threads()  # the first time, torch sets this thread's number itself
    torch.set_num_threads(1)


@cache
def substitutes() -> dict[Any, Callable[..., Tensor]]:
    """Functions to call in place of torch's operations, by operation; {} where torch's are as good."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch.backends.mkl.is_available():
        return {}
    family = re.search(r"AuthenticAMD\s+cpu family\s*: (\d+)", _cpuinfo())
    if family is None or int(family[1]) < ZEN_5 or not torch.backends.mkldnn.is_available():
        return {}
    try:
        onednn_linear(torch.ones(1, 1), torch.ones(1, 1))
    except (AttributeError, RuntimeError, TypeError):
        return {}
    return {aten.mm.default: mm, aten.addmm.default: addmm, aten.addmm_.default: addmm_}


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""


def mm(a: Tensor, b: Tensor) -> Tensor:
    """a @ b, as ``torch.mm``."""
    if _rows_in_blocks(a, b):
        out = a.new_empty((len(a), b.shape[1]))
        _multiply(a, b, None, out, add=False)
        return out
    if _sum_in_blocks(a, b):
        return _sum_of_products(a, b)
    return NotImplemented


def addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """bias + a @ b, as ``torch.addmm``."""
    plain = beta == alpha == 1 and bias.dim() == 1 and bias.dtype == a.dtype and len(bias) == b.shape[1]
    if not (plain and _rows_in_blocks(a, b)):
        return NotImplemented
    out = a.new_empty((len(a), b.shape[1]))
    _multiply(a, b, bias.contiguous(), out, add=False)
    return out


def addmm_(out: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """out += a @ b, as ``torch.Tensor.addmm_``."""
    if beta == alpha == 1 and out.dtype == a.dtype and _rows_in_blocks(a, b):
        _multiply(a, b, None, out, add=True)
        return out
    return NotImplemented


def _multiply(a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor, *, add: bool) -> None:
    w = b.t().contiguous()
    whole = len(a) // BLOCK * BLOCK

    def multiply(k: int) -> None:
        rows = slice(k * BLOCK, (k + 1) * BLOCK)
        part = onednn_linear(a[rows], w, bias)
        out[rows].add_(part) if add else out[rows].copy_(part)

    each_block(multiply, whole // BLOCK)
    if whole < len(a):
        rest = out[whole:]
        if add:
            rest.addmm_(a[whole:], b)
        elif bias is not None:
            torch.addmm(bias, a[whole:], b, out=rest)
        else:
            torch.mm(a[whole:], b, out=rest)


def _sum_of_products(a: Tensor, b: Tensor) -> Tensor:
    blocks, parts = len(b) // BLOCK, min(torch.get_num_threads(), MOST)
    sums, whole = [a.new_zeros((len(a), b.shape[1])) for _ in range(parts)], blocks * BLOCK

    def add_up(part: int) -> None:
        for k in range(part * blocks // parts, (part + 1) * blocks // parts):
            left, right = a[:, k * BLOCK : (k + 1) * BLOCK], b[k * BLOCK : (k + 1) * BLOCK]
            if len(a) <= b.shape[1]:
                sums[part] += onednn_linear(left, right.t())
            else:  # the shorter side as rows
                sums[part] += onednn_linear(right.t(), left).t()

    each_block(add_up, parts)
    out, *others = sums
    for other in others:
        out += other
    return out.addmm_(a[:, whole:], b[whole:]) if whole < len(b) else out


def _rows_in_blocks(a: Tensor, b: Tensor) -> bool:
    return len(a) >= BLOCK and a.is_contiguous() and b.numel() >= LEAST and _suits(a, b)


def _sum_in_blocks(a: Tensor, b: Tensor) -> bool:
    short, long = sorted((len(a), b.shape[1]))
    worth = short >= SHORT and long >= LONG and short * long <= LARGEST
    return len(b) >= BLOCK and worth and a.t().is_contiguous() and b.is_contiguous() and _suits(a, b)


def _suits(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype == torch.float32 and a.device.type == b.device.type == "cpu" and a.layout == torch.strided

"""Kernels on the CPU, with every load and store of every thread written down.

A launch is checked at once: nothing lies outside of the tensors that it was given, nothing is written between rows that
are apart, and no two threads race. No kernel
has a barrier, so two different threads of a launch, of one block or of two, must not touch a byte that one of them
writes, unless both add to it atomically.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from hongtu.cuda_ext.compile import FOLDER, KERNELS_OF, digest, fetch, file_of
from hongtu.cuda_ext.host_build import LANGUAGE, HostLauncher, compiler

TRACE = Path(__file__).resolve().parent / "cuda_ext" / "trace.cuh"
OPTIONS = ("-O1", *LANGUAGE, "-fPIC")
READS, WRITES, ADDS = range(3)
ACCESS = np.dtype([("address", "u8"), ("by", "u8"), ("thread", "u4"), ("bytes", "u2"), ("kind", "u2")])
SECTOR, LANE = 32, 16  # bytes that memory gives at least; that a lane moves at most


class TracingLauncher(HostLauncher):
    """Launches kernels on the CPU and checks what they touch.

    Attributes:
        accesses: ACCESS [K], those of the last launch.
        seen: the kernels that were launched.
    """

    def __init__(self, descending: bool = False, folder: Path = FOLDER) -> None:
        super().__init__(descending, folder)
        self.seen: set[str] = set()

    def launch(
        self,
        name: str,
        grid: tuple[int, int],
        block: tuple[int, int],
        args: Sequence[int],
        stream: None,
        tensors: tuple[Tensor | None, ...],
    ) -> None:
        file = file_of(name)
        if file not in self._files:
            self._files[file] = ctypes.CDLL(str(traced(self.folder / file)))
        library = self._files[file]
        shape, values = (ctypes.c_uint * 6)(*grid, 1, *block, 1), (ctypes.c_int64 * len(args))(*args)
        assert getattr(library, f"{name}_on_cpu")(shape, values, len(args), self.descending) == 0
        own = [(ctypes.addressof(x), ctypes.sizeof(x)) for x in (shape, values)]
        found = taken(library)
        self.seen.add(next(kernel for kernel in sorted(KERNELS_OF[file], reverse=True) if name.startswith(kernel)))
        self.accesses = found[~inside(found, own)]
        given = [x for x in tensors if x is not None and x.nbytes]
        outside = self.accesses[~inside(self.accesses, [span(x) for x in given])]
        assert not len(outside), f"{name}: {len(outside)} accesses outside of its tensors, the first {outside[0]}"
        between = sum(len(written_between(self.accesses, x)) for x in given if not x.is_contiguous())
        assert not between, f"{name}: {between} bytes between rows are written"
        racing = races(self.accesses)
        assert not len(racing), f"{name}: threads race for {len(racing)} bytes, the first at {racing[0]}"


def traced(source: Path) -> Path:
    """A kernel file as a library that writes down what it does."""
    command, version = compiler()
    key = digest(source, *command, *OPTIONS, version, TRACE.read_text())
    return fetch(f"{source.stem}-traced-{key}.so", lambda: _compile(source, command))


def _compile(source: Path, command: Sequence[str]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        made, out = Path(folder, "kernels.o"), Path(folder, "kernels.so")
        flags = [*OPTIONS, "-fsanitize=thread", f"-I{FOLDER}", "-include", str(TRACE)]
        subprocess.run([*command, *flags, "-x", "c++", "-c", str(source), "-o", str(made)], check=True)
        subprocess.run([*command, "-shared", "-Wl,-Bsymbolic", str(made), "-o", str(out)], check=True)
        return out.read_bytes()


def taken(library: Any) -> np.ndarray:
    """ACCESS [K], what was written down since the last call."""
    library.traced_accesses.restype = ctypes.c_void_p
    count = ctypes.c_uint64()
    at = library.traced_accesses(ctypes.byref(count))
    if not count.value:
        return np.empty(0, ACCESS)
    return np.frombuffer(ctypes.string_at(at, count.value * ACCESS.itemsize), ACCESS)


def inside(accesses: np.ndarray, ranges: list[tuple[int, int]]) -> np.ndarray:
    """bool [K], whether each access lies wholly in one of some ranges (first byte, bytes)."""
    begin = accesses["address"].astype(np.int64)
    end, found = begin + accesses["bytes"], np.zeros(len(accesses), dtype=bool)
    for first, nbytes in ranges:
        found |= (begin >= first) & (end <= first + nbytes)
    return found


def span(x: Tensor) -> tuple[int, int]:
    """The first byte, and the bytes, of a tensor; of rows that are apart with what is behind the last."""
    if x.is_contiguous():
        return x.data_ptr(), x.nbytes
    storage = x.untyped_storage()
    return x.data_ptr(), min(
        x.shape[0] * x.stride(0) * x.itemsize, storage.data_ptr() + storage.nbytes() - x.data_ptr()
    )


def written_between(accesses: np.ndarray, x: Tensor) -> np.ndarray:
    """ACCESS [K], those that write to what is between the rows of a tensor."""
    found = accesses[inside(accesses, [span(x)]) & (accesses["kind"] != READS)]
    column = (found["address"].astype(np.int64) - x.data_ptr()) % (x.stride(0) * x.itemsize)
    return found[column + found["bytes"] > x.shape[1] * x.itemsize]


def races(accesses: np.ndarray) -> np.ndarray:
    """The bytes for which different threads race; of words the first, where nothing smaller is touched."""
    begin, length = accesses["address"].astype(np.int64), accesses["bytes"].astype(np.int64)
    unit = 1 if ((begin | length) % 4).any() else 4
    begin, length = begin // unit, length // unit
    each = np.repeat(np.arange(len(accesses)), length)
    at = begin[each] + np.arange(len(each)) - np.repeat(np.cumsum(length) - length, length)
    byte, number = np.unique(at, return_inverse=True)
    kind, thread = accesses["kind"][each], accesses["thread"][each].astype(np.int64)
    first, last = np.full(len(byte), np.iinfo(np.int64).max), np.full(len(byte), -1)
    np.minimum.at(first, number, thread)
    np.maximum.at(last, number, thread)
    read, written, added = (np.bincount(number[kind == k], minlength=len(byte)) > 0 for k in (READS, WRITES, ADDS))
    return unit * byte[(first != last) & (written | (added & read))]


def requests(accesses: np.ndarray, lanes: int) -> tuple[np.ndarray, np.ndarray]:
    """What groups of lanes ask memory for: accesses by one instruction, each lane's beside that of the lane before.
    What is not beside is a request of its own. A lane's 16 bytes may come element by element.

    Returns:
        int64 [R], of every request the bytes; and the sectors in which these lie.
    """
    thread, kind = accesses["thread"].astype(np.int64), accesses["kind"]
    order = np.argsort(thread, kind="stable")
    thread, kind, by = thread[order], kind[order], accesses["by"][order].astype(np.int64)
    address, length = accesses["address"][order].astype(np.int64), accesses["bytes"][order].astype(np.int64)
    same = (np.diff(thread) == 0) & (np.diff(kind) == 0) & (address[1:] == (address + length)[:-1])
    begins = np.flatnonzero(np.r_[True, ~same | (np.diff(address // LANE) != 0)])
    length = np.add.reduceat(length, begins)
    thread, by, address = thread[begins], by[begins], address[begins]
    base = address - thread % lanes * length
    times = _rank(thread, by, base)
    order = np.lexsort((address, times, base, thread // lanes, by))
    key = np.stack([by, thread // lanes, base, times])[:, order]
    begins = np.flatnonzero(np.r_[True, (np.diff(key) != 0).any(axis=0)])
    first, last = address[order][begins], np.maximum.reduceat((address + length)[order], begins)
    return np.add.reduceat(length[order], begins), (last - 1) // SECTOR - first // SECTOR + 1


def _rank(*columns: np.ndarray) -> np.ndarray:
    """int64 [K], how many rows before each one are equal to it."""
    order = np.lexsort(columns[::-1])  # stable
    new = np.r_[True, np.any([np.diff(column[order]) != 0 for column in columns], axis=0)]
    place = np.arange(len(order))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = place - np.maximum.accumulate(np.where(new, place, 0))
    return rank

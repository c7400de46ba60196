"""Memories below the host's: bytes that go between them and memory of the host, one class for each memory.

All is work of one stream's thread, and NumPy's: Torch would start OpenMP threads for a thread more, and with more of
them than processors none waits for another without sleeping.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import RawIOBase
from typing import Protocol

import numpy as np

from hongtu.engine.blocks import Blocks, Uncached
from hongtu.errors import OutputError
from hongtu.host import CACHE_LINE, DISK_BLOCK, in_large_pages

STEP = 4 << 20  # bytes that are read at a time


class Store(Protocol):
    """A memory of bytes.

    Attributes:
        nbytes: what it holds.
    """

    @property
    def nbytes(self) -> int: ...

    def write(self, begin: int, data: np.ndarray) -> None:
        """Take bytes (uint8 [n]), from a byte on."""

    def read(self, begin: int, into: np.ndarray) -> None:
        """Fill memory (uint8 [n]) from a byte on."""

    def pieces(self, begin: int, nbytes: int) -> Iterator[np.ndarray]:
        """So many bytes (uint8 [n]) from one on, in pieces, each there until the next one."""

    def read_within(self, begin: int, nbytes: int, room: np.ndarray) -> int:
        """Fill so many bytes of memory; returns where in it they begin."""

    def mapped(self, begin: int, nbytes: int) -> np.ndarray:
        """Bytes where they lie (uint8 [n])."""

    def close(self) -> None:
        """Free its space."""


class File:
    """A file that is read, in large pieces where they go around the system's cache: a disk takes many parts of one at a
    time, and every call takes Python's lock, which whoever computes meanwhile needs.

    Args:
        file: open for reading.
        path: for errors.

    Raises:
        OutputError: from its methods, when the system does not do it.
    """

    def __init__(self, file: RawIOBase, path: str) -> None:
        self._file, self._path = file, path
        self._uncached, self._memory = Uncached(file.fileno()), in_large_pages(STEP)

    @property
    def nbytes(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def read(self, begin: int, into: np.ndarray) -> None:
        at = 0
        for piece in self.pieces(begin, len(into)):
            into[at : at + len(piece)] = piece
            at += len(piece)

    def pieces(self, begin: int, nbytes: int) -> Iterator[np.ndarray]:
        first, end, memory = begin // DISK_BLOCK * DISK_BLOCK, begin + nbytes, self._memory
        for at in range(first, end, STEP):
            lo, hi = max(at, begin), min(at + STEP, end)
            whole = memory[: -(-(hi - at) // DISK_BLOCK) * DISK_BLOCK]
            with self._tried(read=True):
                if not self._uncached.around(partial(_fill, whole, hi - at, at)):
                    _fill(memory[: hi - at], hi - at, at, self._uncached.file)
                    self._uncached.came_through(hi - at)
            yield memory[lo - at : hi - at]

    def read_within(self, begin: int, nbytes: int, room: np.ndarray) -> int:
        """As they come from the disk, in whole blocks, where the memory has room for the rest of the first and of the
        last."""
        before, address = begin % DISK_BLOCK, room.ctypes.data
        first = -address % DISK_BLOCK
        whole = room[first : first + -(-(before + nbytes) // DISK_BLOCK) * DISK_BLOCK]
        fits = before % CACHE_LINE == 0 and len(whole) >= before + nbytes and len(whole) % DISK_BLOCK == 0
        with self._tried(read=True):
            if fits and self._uncached.around(partial(_fill, whole, before + nbytes, begin - before)):
                return first + before
        self.read(begin, room[:nbytes])
        return 0

    def close(self) -> None:
        self._uncached.close()
        self._file.close()

    @contextmanager
    def _tried(self, *, read: bool = False) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(self._path, error, read=read) from error


class DiskStore(File):
    """A file without a name, which is gone when its process is.

    Args:
        directory: where it is.
        nbytes: of all that it will hold; they are taken now, so that the disk cannot be full later.
        ends: how many places are appended to in turns.
    """

    def __init__(self, directory: str, nbytes: int, ends: int) -> None:
        self._path = directory
        with self._tried():
            file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115 - as long as the engine
            if nbytes:
                os.posix_fallocate(file.fileno(), 0, nbytes)
            self._blocks = Blocks(file.fileno(), nbytes, ends)
            super().__init__(file, directory)

    def write(self, begin: int, data: np.ndarray) -> None:
        with self._tried():
            self._blocks.put(begin, data)

    def pieces(self, begin: int, nbytes: int) -> Iterator[np.ndarray]:
        self._settle(begin, nbytes)
        yield from super().pieces(begin, nbytes)

    def read_within(self, begin: int, nbytes: int, room: np.ndarray) -> int:
        self._settle(begin, nbytes)
        return super().read_within(begin, nbytes, room)

    def mapped(self, begin: int, nbytes: int) -> np.ndarray:
        self._settle(begin, nbytes)
        return np.memmap(f"/proc/self/fd/{self._file.fileno()}", np.uint8, "r+", begin, (nbytes,))

    def close(self) -> None:
        self._blocks.close()
        super().close()

    def _settle(self, begin: int, nbytes: int) -> None:
        with self._tried():
            self._blocks.settle(begin, begin + nbytes)


def _fill(memory: np.ndarray, wanted: int, at: int, file: int) -> None:
    """Read a file from a byte on; so many bytes have to come, for it may end inside of the last whole block."""
    got = 0
    while got < wanted:
        came = os.preadv(file, [memory[got:].data], at + got)
        got += came
        if not came:
            raise OSError(errno.EIO, f"a file ends at byte {at + got}, expected {wanted - got} bytes more")


STORES: dict[str, Callable[[str, int, int], Store]] = {"disk": DiskStore}  # given the directory of --spill

"""Memories below the host's: bytes that go between them and memory of the host, one class for each memory.

All is work of one stream's thread, and NumPy's: Torch would start OpenMP threads for a thread more, and with more of
them than processors none waits for another without sleeping.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import RawIOBase
from typing import Protocol

import numpy as np

from hongtu.engine.blocks import Blocks
from hongtu.engine.reads import Reads
from hongtu.errors import OutputError


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

    def read_within(self, begin: int, nbytes: int, room: np.ndarray) -> int:
        """Fill so many bytes of memory; returns where in it they begin."""

    def close(self) -> None:
        """Free its space."""


class File:
    """A file that is read.

    Args:
        file: open for reading.
        path: for errors.

    Raises:
        OutputError: from its methods, when the system does not do it.
    """

    def __init__(self, file: RawIOBase, path: str) -> None:
        self._file, self._path, self._reads = file, path, Reads(file.fileno())

    @property
    def nbytes(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def read(self, begin: int, into: np.ndarray) -> None:
        with self._tried(read=True):
            self._reads.read(begin, into)

    def read_within(self, begin: int, nbytes: int, room: np.ndarray) -> int:
        with self._tried(read=True):
            return self._reads.read_within(begin, nbytes, room)

    def close(self) -> None:
        self._reads.close()
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

    def read(self, begin: int, into: np.ndarray) -> None:
        self._settle(begin, len(into))
        super().read(begin, into)

    def read_within(self, begin: int, nbytes: int, room: np.ndarray) -> int:
        self._settle(begin, nbytes)
        return super().read_within(begin, nbytes, room)

    def close(self) -> None:
        self._blocks.close()
        super().close()

    def _settle(self, begin: int, nbytes: int) -> None:
        with self._tried():
            self._blocks.settle(begin, begin + nbytes)


STORES: dict[str, Callable[[str, int, int], Store]] = {"disk": DiskStore}  # given the directory of --spill

"""Arrays of a .npz file, block by block, compressed or not: none is ever in memory as a whole."""

from __future__ import annotations

import contextlib
import io
import math
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hongtu.errors import InputError
from hongtu.files import LONGEST_HEADER, create_array

BLOCK = 1 << 20  # numbers of a block
KINDS = "biuf"


class Member(NamedTuple):
    """One array, as its header describes it.

    Attributes:
        file: the archive.
        name: in it.
        dtype, shape: of the array.
        by_column: its numbers stand in Fortran's order.
        start: bytes of its header.
    """

    file: Path
    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    by_column: bool
    start: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def blocks(self, first: int = 0, last: int | None = None, step: int = 0) -> Iterator[np.ndarray]:
        """The numbers from ``first`` to ``last`` [B], in the order of the file; what comes before them is read, too, so
        that the archive's checksum is compared wherever its end is reached.
        """
        size, step = math.prod(self.shape), step or BLOCK
        last = size if last is None else last
        with _readable(self.file), zipfile.ZipFile(self.file) as archive, archive.open(self.name) as stream:
            skipped = self.start + first * self.dtype.itemsize
            for lo in range(0, skipped, BLOCK):
                stream.read(min(BLOCK, skipped - lo))
            for lo in range(first, last, step):
                yield np.frombuffer(stream.read(min(step, last - lo) * self.dtype.itemsize), self.dtype)
            if last == size and stream.read(1):
                raise ValueError(f"{self.name} is longer than its header says")

    def whole(self) -> np.ndarray:
        """The array, of a size that memory has room for."""
        flat = np.concatenate([np.empty(0, self.dtype), *self.blocks()])
        return flat.reshape(self.shape, order="F" if self.by_column else "C")

    def unpacked(self, into: Path, progress: Callable[[int], None]) -> np.ndarray:
        """The array in a .npy file; ``progress`` is told the bytes of every block."""
        if not self.nbytes:
            return np.empty(self.shape, self.dtype)
        array = create_array(into, self.dtype, self.shape[::-1] if self.by_column else self.shape)
        flat, at = array.reshape(-1), 0
        for block in self.blocks():
            flat[at : at + len(block)] = block
            at += len(block)
            progress(block.nbytes)
        return array.T if self.by_column else array


def members(file: Path) -> dict[str, Member]:
    """What an archive holds, by name, from its headers alone."""
    found = {}
    with _readable(file), zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            with archive.open(info) as stream:
                head = io.BytesIO(stream.read(LONGEST_HEADER))  # which would be read before its length is looked at
            version = np.lib.format.read_magic(head)
            header = np.lib.format.read_array_header_1_0 if version == (1, 0) else None
            shape, by_column, dtype = (header or np.lib.format.read_array_header_2_0)(head)
            member = Member(file, info.filename, dtype, shape, by_column, head.tell())
            if dtype.kind not in KINDS or min(shape, default=0) < 0:
                raise ValueError(f"{info.filename} is {dtype} of shape {shape}, expected numbers")
            if member.start + member.nbytes != info.file_size:
                raise ValueError(f"{info.filename} has {info.file_size} bytes, its header says otherwise")
            found[info.filename.removesuffix(".npy")] = member
    return found


@contextlib.contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of zip, zlib, headers, keys and memory: all mean that the file is not as it was
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{file}: not readable ({reason}); download it again") from None

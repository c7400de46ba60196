"""Reads of a file, in large pieces where they go around the system's cache: a disk takes many parts of one at a time,
and every call takes Python's lock, which whoever computes meanwhile needs."""

from __future__ import annotations

import errno
import os
from functools import partial

import numpy as np

from hongtu.engine.uncached import Uncached
from hongtu.host import CACHE_LINE, DISK_BLOCK, in_large_pages

STEP = 4 << 20  # bytes of one of them


class Reads:
    """Reads one file.

    Args:
        file: open for reading.
    """

    def __init__(self, file: int) -> None:
        self._file = Uncached(file)
        self._memory = in_large_pages(STEP)

    def close(self) -> None:
        """Nothing is read any more."""
        self._file.close()

    def read(self, begin: int, into: np.ndarray) -> int:
        """Fill memory (uint8 [n]) from a byte on; returns how many there are.

        Raises:
            OSError: the system's, or because the file ends before that.
        """
        if self._file.around(partial(self._around_cache, begin, into)):
            return len(into)
        done = 0
        while done < len(into):
            got = os.preadv(self._file.file, [into[done : done + STEP].data], begin + done)
            if not got:
                raise _ends(begin + done, len(into) - done)
            done += got
        self._file.came_through(len(into))
        return len(into)

    def read_within(self, begin: int, nbytes: int, room: np.ndarray) -> int:
        """Fill so many bytes of memory (uint8 [n]) as they come from the disk, in whole blocks, where it has room for
        the rest of the first and of the last; returns where in it they begin.

        Raises:
            OSError: as for ``read``.
        """
        before, address = begin % DISK_BLOCK, room.ctypes.data
        first = -address % DISK_BLOCK
        whole = room[first : first + -(-(before + nbytes) // DISK_BLOCK) * DISK_BLOCK]
        fits = before % CACHE_LINE == 0 and len(whole) >= before + nbytes and len(whole) % DISK_BLOCK == 0
        if fits and self._file.around(partial(_straight, begin - before, before + nbytes, whole)):
            return first + before
        self.read(begin, room[:nbytes])
        return 0

    def _around_cache(self, begin: int, into: np.ndarray, direct: int) -> None:
        first, end, memory = begin // DISK_BLOCK * DISK_BLOCK, begin + len(into), self._memory
        for at in range(first, end, STEP):
            lo, hi = max(at, begin), min(at + STEP, end)
            got = os.preadv(direct, [memory[: -(-(hi - at) // DISK_BLOCK) * DISK_BLOCK].data], at)
            if at + got < hi:
                raise _ends(at + got, hi - at - got)
            into[lo - begin : hi - begin] = memory[lo - at : hi - at]


def _straight(at: int, wanted: int, memory: np.ndarray, direct: int) -> None:
    """Fill whole blocks; so many bytes have to come, for a file may end inside of the last one."""
    got = 0
    while got < wanted:
        came = os.preadv(direct, [memory[got:].data], at + got)
        if not came or (got + came < wanted and came % DISK_BLOCK):
            raise _ends(at + got + came, wanted - got - came)
        got += came


def _ends(at: int, wanted: int) -> OSError:
    return OSError(errno.EIO, f"a file ends at byte {at}, expected {wanted} bytes more")

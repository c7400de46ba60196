"""Reads of a file, in large pieces where they go around the system's cache: a disk takes many parts of one at a time,
and every call takes Python's lock, which whoever computes meanwhile needs."""

from __future__ import annotations

import errno
import os
from functools import partial

import numpy as np

from hongtu.engine.uncached import Uncached
from hongtu.host import in_large_pages

ALIGNED = 1 << 12  # bytes: where reads around the cache begin and end
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

    def _around_cache(self, begin: int, into: np.ndarray, direct: int) -> None:
        first, end, memory = begin // ALIGNED * ALIGNED, begin + len(into), self._memory
        for at in range(first, end, STEP):
            lo, hi = max(at, begin), min(at + STEP, end)
            got = os.preadv(direct, [memory[: -(-(hi - at) // ALIGNED) * ALIGNED].data], at)
            if at + got < hi:
                raise _ends(at + got, hi - at - got)
            into[lo - begin : hi - begin] = memory[lo - at : hi - at]


def _ends(at: int, wanted: int) -> OSError:
    return OSError(errno.EIO, f"a file ends at byte {at}, expected {wanted} bytes more")

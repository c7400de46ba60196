"""Reads of a file, several at a time where they go around the system's cache."""

from __future__ import annotations

import errno
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import numpy as np

from hongtu.engine.uncached import Uncached

ALIGNED = 1 << 12  # bytes: where reads around the cache begin and end
STEP = 1 << 20  # bytes of one of them
LARGE = 2 << 20  # bytes of a large page
AT_A_TIME = 4  # a disk takes several together


class Reads:
    """Reads one file.

    Args:
        file: open for reading.
    """

    def __init__(self, file: int) -> None:
        self._file = Uncached(file)
        self._pool = ThreadPoolExecutor(AT_A_TIME - 1, thread_name_prefix="hongtu disk")
        self._memory = _in_large_pages(AT_A_TIME * STEP).reshape(AT_A_TIME, STEP)

    def close(self) -> None:
        """Nothing is read any more."""
        self._pool.shutdown()
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
        first, end = begin // ALIGNED * ALIGNED, begin + len(into)
        steps, step = range(first, end, STEP), partial(self._steps, direct, begin, into)
        others = [self._pool.submit(step, k, steps[k::AT_A_TIME]) for k in range(1, min(AT_A_TIME, len(steps)))]
        try:
            step(0, steps[::AT_A_TIME])
        finally:
            for other in others:  # they write into the caller's memory
                other.exception()
        for other in others:
            other.result()

    def _steps(self, direct: int, begin: int, into: np.ndarray, number: int, steps: range) -> None:
        end, memory = begin + len(into), self._memory[number]
        for at in steps:
            lo, hi = max(at, begin), min(at + STEP, end)
            got = os.preadv(direct, [memory[: -(-(hi - at) // ALIGNED) * ALIGNED].data], at)
            if at + got < hi:
                raise _ends(at + got, hi - at - got)
            into[lo - begin : hi - begin] = memory[lo - at : hi - at]


def _in_large_pages(nbytes: int) -> np.ndarray:
    """uint8 [n], of as few pieces as the system has: a disk takes each by itself."""
    pages = mmap.mmap(-1, nbytes + LARGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError, AttributeError):
        pages.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(pages, np.uint8)
    begin = -memory.ctypes.data % LARGE
    return memory[begin : begin + nbytes]


def _ends(at: int, wanted: int) -> OSError:
    return OSError(errno.EIO, f"a file ends at byte {at}, expected {wanted} bytes more")

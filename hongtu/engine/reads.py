"""Reads of a file around the system's cache, which would take memory and more time than the copy of each byte here."""

from __future__ import annotations

import errno
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np

from hongtu.host import CACHED, drop_file_pages

ALIGNED = 1 << 12  # bytes: where reads around the cache begin and end
STEP = 1 << 20  # bytes of one of them
LARGE = 2 << 20  # bytes of a large page
AT_A_TIME = 4  # a disk takes several together


class Reads:
    """Reads one file; where its file system has no such reads, through the cache.

    Args:
        file: open for reading.
    """

    def __init__(self, file: int) -> None:
        self._file, self._cached = file, 0
        self._direct: int | None = None
        with suppress(OSError, AttributeError):
            self._direct = os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_DIRECT)
        self._pool = ThreadPoolExecutor(AT_A_TIME - 1, thread_name_prefix="hongtu disk")
        self._memory = _in_large_pages(AT_A_TIME * STEP).reshape(AT_A_TIME, STEP)

    def close(self) -> None:
        """Nothing is read any more."""
        self._pool.shutdown()
        if self._direct is not None:
            os.close(self._direct)
            self._direct = None

    def read(self, begin: int, into: np.ndarray) -> int:
        """Fill memory (uint8 [n]) from a byte on; returns how many there are.

        Raises:
            OSError: the system's, or because the file ends before that.
        """
        if self._direct is not None:
            try:
                self._around_cache(begin, into)
                return len(into)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                os.close(self._direct)  # the file system does not take them
                self._direct = None
        done = 0
        while done < len(into):
            got = os.preadv(self._file, [into[done : done + STEP].data], begin + done)
            if not got:
                raise _ends(begin + done, len(into) - done)
            done += got
        self._cached += len(into)
        if self._cached >= CACHED:
            drop_file_pages(self._file)
            self._cached = 0
        return len(into)

    def _around_cache(self, begin: int, into: np.ndarray) -> None:
        first, end = begin // ALIGNED * ALIGNED, begin + len(into)
        steps = range(first, end, STEP)
        others = [self._pool.submit(self._steps, k, steps[k::AT_A_TIME], begin, into) for k in range(1, AT_A_TIME)]
        try:
            self._steps(0, steps[::AT_A_TIME], begin, into)
        finally:
            for other in others:  # they write into the caller's memory
                other.exception()
        for other in others:
            other.result()

    def _steps(self, number: int, steps: range, begin: int, into: np.ndarray) -> None:
        assert self._direct is not None
        end, memory = begin + len(into), self._memory[number]
        for at in steps:
            lo, hi = max(at, begin), min(at + STEP, end)
            got = os.preadv(self._direct, [memory[: -(-(hi - at) // ALIGNED) * ALIGNED].data], at)
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

"""What is written to a file here and there, collected into blocks: many small appends become few large writes.

Whole blocks go around the system's cache where the file system lets them; what is left of the others goes through it.
"""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from hongtu.host import CACHED, drop_file_pages

LEAST, LARGEST = 1 << 12, 1 << 20  # bytes of a block, which is a multiple of the least
BEHIND = 32 << 20  # bytes of all blocks at a time, at most
OTHERS = 8  # places beside those that are told: own rows, and what regions share a block with
Spans = list[tuple[int, int]]  # of a block, from a byte to another; apart from one another
JOINED = 4 << 20  # bytes of whole blocks behind one another that are written together


class Uncached:
    """A file whose bytes go around the system's cache, which would take memory and more time than the copy of each byte
    here; where its file system has no such way, they go through it and do not stay.

    Args:
        file: open for reading, or for reading and writing where it is ``written``.
    """

    def __init__(self, file: int, *, written: bool = False) -> None:
        self.file, self._written, self._cached = file, written, 0
        self._direct: int | None = None
        with suppress(OSError, AttributeError):
            mode = os.O_WRONLY if written else os.O_RDONLY
            self._direct = os.open(f"/proc/self/fd/{file}", mode | os.O_DIRECT)
            self._forget = weakref.finalize(self, os.close, self._direct)

    def close(self) -> None:
        """Go around the cache no more."""
        if self._direct is not None:
            self._forget()
            self._direct = None

    def around(self, move: Callable[[int], object]) -> bool:
        """Move bytes around the cache by a descriptor for that; returns whether the file system takes them.

        Raises:
            OSError: the system's.
        """
        if self._direct is None:
            return False
        try:
            move(self._direct)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self.close()
            return False
        return True

    def came_through(self, nbytes: int) -> None:
        """So many bytes have gone through the cache, which lets them go when they are many."""
        self._cached += nbytes
        if self._cached >= CACHED:
            drop_file_pages(self.file, written=self._written)
            self._cached = 0


class Blocks:
    """Writes to a file that have not reached it yet.

    Args:
        file: open for reading and writing.
        nbytes: of the file.
        ends: how many places are appended to in turns; each has a block at a time.
    """

    def __init__(self, file: int, nbytes: int, ends: int) -> None:
        self._file = Uncached(file, written=True)
        self.block = min(max(BEHIND // (ends + OTHERS) // LEAST, 1) * LEAST, LARGEST)
        self._nbytes = nbytes // self.block * self.block  # the last one is not whole
        self._memory = np.frombuffer(mmap.mmap(-1, JOINED + BEHIND), np.uint8)  # taken when it is touched
        self._joined = self._memory[:JOINED]
        self._spare = [
            self._memory[at : at + self.block] for at in range(JOINED, JOINED + BEHIND - self.block + 1, self.block)
        ][::-1]
        self._open: OrderedDict[int, tuple[np.ndarray, Spans]] = OrderedDict()  # the first is given up first

    def close(self) -> None:
        """Nothing is written any more."""
        self._file.close()

    def put(self, begin: int, data: np.ndarray) -> None:
        """Write bytes (uint8 [n]) at a place, now or later.

        Raises:
            OSError: the system's, of these bytes or earlier ones.
        """
        at, size, n = 0, self.block, len(data)
        while at < n:
            number, lo = divmod(begin + at, size)
            whole = 0 if lo else min(n - at, JOINED, self._nbytes - number * size) // size
            if whole > 0:
                for one in range(number, number + whole):  # they write over it
                    if one in self._open:
                        self._spare.append(self._open.pop(one)[0])
                self._joined[: whole * size] = data[at : at + whole * size]
                self._write(self._joined[: whole * size], number * size)
                at += whole * size
            else:
                count = min(size - lo, n - at)
                self._fill(number, lo, data[at : at + count])
                at += count

    def _fill(self, number: int, lo: int, data: np.ndarray) -> None:
        """A part of a block, from a byte of it on; it is written when it is whole."""
        if number not in self._open:
            if not self._spare:
                self._part(next(iter(self._open)))
            self._open[number] = self._spare.pop(), []
        (memory, spans), hi = self._open[number], lo + len(data)
        memory[lo:hi] = data
        spans = _with(spans, lo, hi)
        self._open[number] = memory, spans
        if spans == [(0, self.block)] and number * self.block < self._nbytes:
            del self._open[number]
            self._spare.append(memory)
            self._write(memory, number * self.block)
        else:  # given up last, but where who appends goes on in the next one: that is given up first
            self._open.move_to_end(number, last=hi < self.block)

    def settle(self, begin: int, end: int) -> None:
        """What was put between two bytes is in the file from now on."""
        for number in range(begin // self.block, -(-end // self.block)) if self._open else ():
            if number in self._open:
                self._part(number)

    def _part(self, number: int) -> None:
        """Write what there is of a block."""
        memory, spans = self._open.pop(number)
        self._spare.append(memory)
        for lo, hi in spans:
            self._through_cache(memory[lo:hi], number * self.block + lo)

    def _write(self, memory: np.ndarray, begin: int) -> None:
        if not self._file.around(lambda direct: _pwrite(direct, memory, begin)):
            self._through_cache(memory, begin)

    def _through_cache(self, data: np.ndarray, begin: int) -> None:
        _pwrite(self._file.file, data, begin)
        self._file.came_through(len(data))


def _with(spans: Spans, lo: int, hi: int) -> Spans:
    """
    >>> _with([(0, 2), (4, 6), (8, 9)], 2, 5)
    [(8, 9), (0, 6)]
    """
    apart = []
    for begin, end in spans:
        if end < lo or begin > hi:
            apart.append((begin, end))
        else:
            lo, hi = min(lo, begin), max(hi, end)
    return [*apart, (lo, hi)]


def _pwrite(file: int, data: np.ndarray, begin: int) -> None:
    done, view = 0, data.data
    while done < len(view):
        done += os.pwrite(file, view[done:], begin + done)

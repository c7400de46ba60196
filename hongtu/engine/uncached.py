"""A file whose bytes go around the system's cache, which would take memory and more time than the copy of each byte
here; where its file system has no such way, they go through it and do not stay."""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Callable
from contextlib import suppress

from hongtu.host import CACHED, drop_file_pages


class Uncached:
    """One file.

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

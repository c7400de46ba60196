"""How much memory this process may still take from the host."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import numpy as np

from hongtu.errors import InputError

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
LARGEST_REUSED = 32 << 20  # glibc takes no more
KEPT = 256 << 20


def available_bytes() -> int | None:
    """Bytes that the machine and its control group leave, or None where that cannot be told."""
    limits = [limit for limit in (_machine(), _cgroup()) if limit is not None]
    return min(limits) if limits else None


def check_host(needed: int) -> None:
    """Refuse a run whose vertex tensors do not fit the host.

    Raises:
        InputError: with the bytes needed and those available.
    """
    available = available_bytes()
    if available is not None and needed > available:
        raise InputError(
            f"host memory: the run needs {needed} bytes for vertex tensors, {available} are available; use a machine "
            "with more memory, fewer hidden columns or fewer layers"
        )


def reuse_freed_memory() -> None:
    """Let glibc hand freed blocks of up to 32 MiB out again instead of mapping, and clearing, fresh pages each time."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    mallopt(M_MMAP_THRESHOLD, LARGEST_REUSED)
    mallopt(M_TRIM_THRESHOLD, KEPT)


def drop_pages(array: np.ndarray) -> None:
    """Give up the memory of a file-backed array; it is read again where it is needed again."""
    pages = getattr(array, "_mmap", None)
    if isinstance(pages, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        pages.madvise(mmap.MADV_DONTNEED)


def _machine() -> int | None:
    try:
        lines = MEMINFO.read_text().splitlines()
    except OSError:
        return None
    kib = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return kib[0] * 1024 if kib else None


def _cgroup() -> int | None:
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
        return None if limit == "max" else int(limit) - int((CGROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return None

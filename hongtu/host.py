"""The host: how much memory is left, how freed memory is used again, and copies by several threads.

Copies and sums run on several threads: one alone is slower than the link to a GPU. The calls come from the thread that
drives the GPUs and from the one that adds gradient rows up beside it.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from hongtu.config import parse_bytes
from hongtu.errors import InputError
from hongtu.parallel import parallel_for
from hongtu.threads import control_groups

STATED = "HONGTU_HOST_MEMORY"  # environment variable: what is available, whatever the system says
MOUNTS, IN_MEMORY = Path("/proc/self/mounts"), ("tmpfs", "ramfs")
MEMINFO, STATUS, STATM = Path("/proc/meminfo"), Path("/proc/self/status"), Path("/proc/self/statm")
# of version 2, and of version 1's controller: limit, use, and the part of it that can be had back: the page cache that
# nobody is using
CGROUP_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def available_bytes() -> int | None:
    """Bytes that the machine and its control group leave, or None where that cannot be told.

    ``HONGTU_HOST_MEMORY`` ("48GiB") says it instead: some virtual machines get their memory as they use it, and tell of
    what they have got.

    Raises:
        InputError: its value is no size.
    """
    if stated := os.environ.get(STATED):
        try:
            return parse_bytes(stated)
        except InputError as error:
            raise InputError(f"{STATED}: {error}") from None
    limits = [limit for limit in (proc_bytes(MEMINFO, "MemAvailable"), _cgroup()) if limit is not None]
    return min(limits) if limits else None


def check_host(needed: int) -> None:
    """Refuse a run that does not fit the host.

    Args:
        needed: bytes of vertex tensors, and of devices that are the host's own memory.
    """
    available = available_bytes()
    if available is not None and needed > available:
        raise InputError(
            f"host memory: the run needs {needed} bytes, {available} are available; use a machine with more memory, a "
            "disk for vertex rows (host_memory and spill; --host-memory, --spill), fewer hidden columns or fewer "
            f"layers; where the system understates its memory, say how much there is: {STATED}=48GiB"
        )


def check_disk(directory: str | os.PathLike[str], needed: int, *, make: bool = False) -> None:
    """Refuse a directory that rows cannot be spilled to; warn of one that is memory.

    Args:
        needed: bytes that will lie there.
        make: make it, where it is not there.
    """
    if not isinstance(directory, str | os.PathLike) or directory == "":
        raise InputError(f"spill: found {directory!r}, expected the path of a directory")
    path, why = Path(directory), ""
    try:
        if make:
            path.mkdir(parents=True, exist_ok=True)
        there = path.is_dir() and os.access(path, os.W_OK | os.X_OK)
    except OSError as error:
        there, why = False, f" ({error.strerror})"
    if not there:
        raise InputError(f"spill {directory}: not a writable directory{why}; make it so, or give another (--spill DIR)")
    free = shutil.disk_usage(path).free
    if needed > free:
        raise InputError(
            f"spill {directory}: the run takes {needed} bytes there, {free} are free; free some space, give another "
            "directory (--spill DIR), or more host_memory (--host-memory)"
        )
    if _file_system(path) in IN_MEMORY:
        warnings.warn(f"spill {directory}: this file system is memory; give a directory on a disk", stacklevel=2)


def _file_system(path: Path) -> str:
    """The kind of file system that a directory is on, or "" where that cannot be told."""
    try:
        mounts = [line.split()[1:3] for line in MOUNTS.read_text().splitlines()]
    except OSError:
        return ""
    around = {str(parent) for parent in (path.resolve(), *path.resolve().parents)}
    return max((mount for mount in mounts if mount[0] in around), key=lambda mount: len(mount[0]), default=["", ""])[1]


def drop_pages(array: np.ndarray, *, cached: bool = False) -> None:
    """Give up the memory of a file-backed array; it is read again where it is needed again.

    Args:
        cached: that of the system's cache, too, which others may read from.
    """
    pages = getattr(array, "_mmap", None)
    if isinstance(pages, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        pages.madvise(mmap.MADV_DONTNEED)
        if cached:
            with contextlib.suppress(OSError, AttributeError), open(array.filename, "rb") as stream:  # type: ignore[attr-defined]
                drop_file_pages(stream.fileno())


def is_mapped(array: np.ndarray) -> bool:
    """Whether an array is a file's, or a part of one."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return isinstance(array, np.memmap)


CACHED = 16 << 20  # bytes that the system may have of a file in memory before they are dropped


def drop_file_pages(file: int, *, written: bool = False) -> None:
    """Leave no page of a file in the system's cache.

    Args:
        written: pages that are not on the disk yet go there first.
    """
    if written:
        os.fdatasync(file)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def proc_bytes(file: Path, field: str) -> int | None:
    """The memory that a file of /proc says under a name, or None where it does not tell."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), None)


@contextlib.contextmanager
def taking_at_most(nbytes: int | None) -> Iterator[None]:
    """Inside, the process takes at most so many bytes more for itself: whatever asks for more fails with a MemoryError
    or an error of its library, before the system ends a process. None, or a system that counts no such bytes: any."""
    limits, taken = resource.getrlimit(resource.RLIMIT_DATA), proc_bytes(STATUS, "VmData")
    if nbytes is not None and taken is not None and limits[0] == resource.RLIM_INFINITY:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (taken + nbytes, limits[1]))
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, limits)


def anonymous_bytes() -> int:
    """Memory of this process that no file backs, or 0 where that cannot be told."""
    try:
        _, resident, shared, *_ = STATM.read_text().split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * mmap.PAGESIZE


def _cgroup() -> int | None:
    """What the process's control group and those around it leave, where they have limits."""
    left = []
    for controller, (limit, use, reclaimable) in CGROUP_FILES.items():
        for group in control_groups(controller):
            try:
                most, used = (int((group / name).read_text()) for name in (limit, use))
                pages = [line.split() for line in (group / "memory.stat").read_text().splitlines()]
                left.append(most - used + sum(int(count) for name, count in pages if name == reclaimable))
            except (OSError, ValueError):  # no such group, or no limit
                pass
    return min(left, default=None)


LEAST = 1 << 18  # bytes that are worth a thread
MOST = 8  # threads, which take what most hosts' memory gives


def in_parts(work: Callable[[slice], object], rows: int, nbytes: int) -> None:
    """Do work that releases the GIL on ranges that make up ``rows`` rows, on several threads where it is much.

    Args:
        work: called with every range, in no order.
        nbytes: of all rows.
    """
    parts = max(1, min(copy_threads(), nbytes // LEAST, rows))
    parallel_for(lambda k: work(slice(rows * k // parts, rows * (k + 1) // parts)), parts, threads=parts)


def copy_threads() -> int:
    """Half of this process's processors, for a trainer calls from two threads."""
    return max(1, min(MOST, len(os.sched_getaffinity(0)) // 2))


LARGE = 2 << 20  # bytes of a large page
CACHE_LINE = 64  # bytes, at a multiple of which rows begin that are computed from
DISK_BLOCK = 1 << 12  # bytes: where reads around the system's cache begin and end


def in_large_pages(nbytes: int) -> np.ndarray:
    """uint8 [n], zeros, in as few pieces as the system has: it makes them sooner, and a disk takes each by itself."""
    pages = mmap.mmap(-1, nbytes + LARGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory = np.frombuffer(pages, np.uint8)
    begin = -memory.ctypes.data % LARGE
    if nbytes >= LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE, begin, nbytes // LARGE * LARGE)
    return memory[begin : begin + nbytes]


M_MXFAST, M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = 1, -1, -3  # of malloc.h
LARGEST_REUSED = 32 << 20  # glibc takes no more
KEPT = (2 << 30) - 1  # the most that an int says
KEPT_BESIDE_DISK = 32 << 20  # bytes, where memory is dear
RETURNED = 1 << 20  # bytes of a block that goes back to the system at once


def reuse_freed_memory(kept: int = KEPT) -> None:
    """Let glibc hand freed blocks of up to 32 MiB out again instead of mapping, and clearing, fresh pages each time.

    Args:
        kept: bytes that it may have free at the end of its memory; ``trim_freed_memory`` frees the rest.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, LARGEST_REUSED)
        mallopt(M_TRIM_THRESHOLD, kept)
        mallopt(M_MXFAST, 0)


def trim_freed_memory() -> None:
    """Give freed blocks back to the system, once."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def trim_beyond(most: int) -> int:
    """Give freed blocks back to the system where the process has more anonymous memory than so many bytes: gaps that no
    later block fits into are many where blocks are large. Returns from how many bytes on it is worth it again."""
    if anonymous_bytes() <= most:
        return most
    trim_freed_memory()
    return max(most, anonymous_bytes() + KEPT_BESIDE_DISK)


def return_freed_memory() -> None:
    """Let glibc give freed blocks back to the system from now on, where memory is dearer than the time for it."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, RETURNED)
        mallopt(M_TRIM_THRESHOLD, RETURNED)
    trim_freed_memory()

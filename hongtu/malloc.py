"""How glibc's malloc is set, so that what layers free is used again.

torch asks for blocks at multiples of 64 bytes. glibc takes a larger block and cuts the ends off, up to 96 bytes; its
threads put such ends aside one by one, for small requests to come. So a block that is freed lacks its ends, and is too
short for the next tensor of the same size: a chunk's tensors take several times the memory that they have at any time.
Without the threads' caches a freed block joins its ends again. These can only be turned off when a process starts.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from contextlib import suppress

M_MXFAST, M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = 1, -1, -3  # of malloc.h
LARGEST_REUSED = 32 << 20  # glibc takes no more
KEPT = (2 << 30) - 1  # the most that an int says
TUNABLES = "GLIBC_TUNABLES"
RESTARTED = "HONGTU_RESTARTED"
NO_CACHES = "glibc.malloc.tcache_count=0"


def reuse_freed_memory() -> None:
    """Let glibc hand freed blocks of up to 32 MiB out again instead of mapping, and clearing, fresh pages each time."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    mallopt(M_MMAP_THRESHOLD, LARGEST_REUSED)
    mallopt(M_TRIM_THRESHOLD, KEPT)
    mallopt(M_MXFAST, 0)


def without_caches(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which a process starts without the threads' caches, unless it says something of its own."""
    said = environment.get(TUNABLES, "")
    if not _glibc() or "glibc.malloc.tcache" in said:
        return dict(environment)
    return {**environment, TUNABLES: f"{said}:{NO_CACHES}" if said else NO_CACHES}


def restart_without_caches() -> None:
    """Start this program again without the threads' caches, before anything is loaded; once, and only where it can."""
    restarted = os.environ.pop(RESTARTED, None)  # a wrapper of Python may drop the setting on the way
    environment = without_caches(os.environ)
    read_from_input = sys.argv[0] in ("", "-")  # what it said is gone
    if restarted or read_from_input or environment == dict(os.environ) or not sys.executable:
        return
    with suppress(OSError):  # then it takes more memory
        os.execve(sys.executable, sys.orig_argv, {**environment, RESTARTED: "1"})


def _glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError, OSError):  # another system, another C library
        return False

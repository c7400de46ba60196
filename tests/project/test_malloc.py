"""Freed blocks are used again where the threads' caches are off, as docs/training.md says."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

GROWTH = """
import ctypes
from hongtu.host import reuse_freed_memory
reuse_freed_memory()
libc = ctypes.CDLL(None)
def aligned(size):
    block = ctypes.c_void_p()
    assert libc.posix_memalign(ctypes.byref(block), 64, size) == 0
    return block
libc.free.argtypes = [ctypes.c_void_p]
libc.sbrk.restype = ctypes.c_void_p
before = libc.sbrk(0)
live = [aligned(1 << 20) for _ in range(3)]
for _ in range(30):
    libc.free(live.pop(0))
    live.append(aligned(1 << 20))
print((libc.sbrk(0) - before) >> 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="this C library is not glibc")
def test_a_block_that_was_freed_is_used_for_the_next_as_large() -> None:
    environment = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
    done = subprocess.run([sys.executable, "-c", GROWTH], env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 4  # MiB, of which 3 are in use

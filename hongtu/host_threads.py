"""Copies and sums in host memory by several threads: one alone is slower than the link to a GPU.

numba's and torch's own threads do not do here. The calls come from the thread that drives the GPUs and from the one
that adds gradient rows up beside it, and numba's parallel loops must not run in two threads at a time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise

import numpy as np

LEAST = 1 << 18  # bytes that are worth a thread
MOST = 8  # threads, which take what most hosts' memory gives
_here = threading.local()


def in_parts(work: Callable[[slice], object], rows: int, nbytes: int) -> None:
    """Do work that releases the GIL on ranges that make up ``rows`` rows, on several threads where it is much.

    Args:
        work: called with every range, in no order.
        nbytes: of all rows.
    """
    parts = max(1, min(num_threads(), nbytes // LEAST, rows))
    bounds = np.linspace(0, rows, parts + 1).astype(np.int64).tolist()
    first, *others = (slice(a, b) for a, b in pairwise(bounds))
    running = [_pool().submit(work, part) for part in others]
    try:
        work(first)
    finally:
        wait(running)  # all of them: after an error somebody else may have the memory
    for part in running:
        part.result()


def num_threads() -> int:
    """Half of this process's processors, for a trainer calls from two threads."""
    return max(1, min(MOST, len(os.sched_getaffinity(0)) // 2))


def _pool() -> ThreadPoolExecutor:
    """Every caller has its own, so that none waits for another's work."""
    if not hasattr(_here, "pool"):
        _here.pool = ThreadPoolExecutor(max(num_threads() - 1, 1), thread_name_prefix="hongtu host")
    pool: ThreadPoolExecutor = _here.pool
    return pool

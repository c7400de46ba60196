"""Work in blocks, on a quiet machine one after another, each by all of OpenMP's threads; on a crowded one every thread
takes the next block by itself.

Threads that share every block wait for one another at its end, and where others use the cores the one that they wait
for may not be running: thousands of times in an epoch. So then nobody waits before the last block.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait

import torch

from hongtu.threads import shared_cores

MOST = 8  # threads: each holds Python's lock for a part of the time
_here = threading.local()


def each_block(work: Callable[[int], object], blocks: int) -> None:
    """Call ``work`` with every number below ``blocks``, in any order; what it computes must not depend on how many
    threads torch has, and none of its tensors is differentiated."""
    threads = torch.get_num_threads()
    if not shared_cores.crowded or not 1 < threads <= MOST or blocks < 2:
        for k in range(blocks):
            work(k)
        return
    turns, every = iter(range(blocks)), os.sched_getaffinity(0)
    own = [{processor} for processor in every] if len(every) == threads else [every] * threads

    def take_turns(number: int) -> None:
        os.sched_setaffinity(0, own[number])  # else several may come to one processor, beside somebody else's thread
        with torch.no_grad(), torch.inference_mode(inference):
            try:
                for k in turns:
                    work(k)
            finally:
                _end(turns)

    inference = torch.is_inference_mode_enabled()
    others = [_pool(threads - 1).submit(take_turns, number) for number in range(1, threads)]
    torch.set_num_threads(1)
    try:
        take_turns(0)
    finally:
        try:
            _end(turns)
            wait(others)
        finally:
            torch.set_num_threads(threads)  # also of threads that begin later
            os.sched_setaffinity(0, every)
    for other in others:
        other.result()


def _end(turns: Iterator[int]) -> None:
    """After an error nobody goes on."""
    for _ in turns:
        pass


def _pool(threads: int) -> ThreadPoolExecutor:
    """The caller's own, of threads that compute alone."""
    pool: tuple[int, ThreadPoolExecutor] | None = getattr(_here, "pool", None)
    if pool is None or pool[0] != threads:
        pool = _here.pool = threads, ThreadPoolExecutor(threads, "hongtu block", initializer=_alone)
    return pool[1]


def _alone() -> None:
    torch.get_num_threads()  # the first time, torch sets this thread's number itself
    torch.set_num_threads(1)

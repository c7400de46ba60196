"""A process that torchrun has started: it joins the others, and takes its part of the machine's threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from hongtu.errors import InputError, uninterrupted
from hongtu.ranks.group import Ranks
from hongtu.ranks.parent import torchruns
from hongtu.ranks.together import BEFORE, Alone, Together
from hongtu.ranks.words import begins
from hongtu.threads import usable_cores

TIMEOUT = 1800


@contextmanager
def joined(timeout: float = TIMEOUT, say: Callable[[str], None] = print) -> Iterator[Together]:
    """Inside, the processes that torchrun started make a group; one that it did not start is alone.

    Args:
        timeout: seconds that a rank waits for another.
        say: to a person, whom rank 0 waits for.
    """
    import torch.distributed as dist

    if torchruns("WORLD_SIZE", "1") == 1:
        yield Alone()
        return
    if torchruns("RANK") >= (size := torchruns("WORLD_SIZE")):
        raise InputError(
            f"RANK is {torchruns('RANK')} and WORLD_SIZE {size}, expected ranks below it, as torchrun sets "
            "them; start the ranks with torchrun"
        )
    torchruns("MASTER_PORT")
    if not os.environ.get("MASTER_ADDR"):
        raise InputError("MASTER_ADDR is not set, expected rank 0's host; start the ranks with torchrun, which sets it")
    take_threads()
    store, rank, size = next(dist.rendezvous("env://", timeout=timedelta(seconds=timeout)))
    ranks = None
    try:
        with uninterrupted() as interrupts:  # torch's own code hears of no rank that ends meanwhile
            begins(rank, size, timeout, say, interrupts)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout))
            ranks = Ranks()
            ranks.where = BEFORE
        yield ranks
        ranks.leave(None)
    except (Exception, KeyboardInterrupt) as error:
        if ranks is None:
            raise
        reason = ranks.reason(error)
        ranks.leave(reason)
        if reason is not error:
            raise reason from error
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def take_threads() -> None:
    """As many threads as this process's part of the machine's cores; torchrun has set one for each."""
    import torch

    threads = max(1, usable_cores() // torchruns("LOCAL_WORLD_SIZE", "1"))
    torch.set_num_threads(threads)

"""What a rank that stops tells the others, by way of the store in which torchrun let them meet."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch.distributed as dist

KEY = "hongtu: why a rank stopped"
WAITS = "hongtu: waits for another: rank {}"
PATIENCE = timedelta(seconds=5)


def leave_words(rank: int, text: str) -> None:
    """Say why this rank stops; of several the first is heard."""
    with suppress(KeyError, ValueError, RuntimeError):  # nobody is there to listen
        _store().compare_set(KEY, "", f"rank {rank} ({socket.gethostname()}, pid {os.getpid()}) stopped: {text}")


def last_words(wait: float = 0.0) -> str:
    """Why the first rank that stopped did, or "" where it did not say within some seconds."""
    until = time.monotonic() + wait
    try:
        store = _store()
        while not store.check([KEY]):
            if time.monotonic() >= until:
                return ""
            time.sleep(0.05)
        return str(store.get(KEY), "utf-8")
    except (KeyError, ValueError, RuntimeError):
        return ""


def silent(rank: int, others: Iterable[int], wait: float) -> list[int]:
    """Of processes that wait for one another in vain, those that do not say so within some seconds, as this does."""
    until = time.monotonic() + wait
    try:
        store = _store()
        store.set(WAITS.format(rank), "")
        while found := [other for other in others if not store.check([WAITS.format(other)])]:
            if time.monotonic() >= until:
                break
            time.sleep(0.05)
        return found
    except (KeyError, ValueError, RuntimeError):
        return []


def _store() -> dist.TCPStore:
    import torch.distributed as dist

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(address, port, is_master=False, timeout=PATIENCE)

"""A process that another one started to work for it, torchrun or a benchmark, ends with it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from hongtu.errors import InputError

LOOK = 0.2  # seconds between two looks at the parent
GRACE = 5.0  # seconds that a process has from SIGTERM on
TORCHRUN = "TORCHELASTIC_RUN_ID"  # environment variable, of all that torchrun starts
INIT = Path("/proc/1/cmdline")

_watched: int | None = None  # process that this one ends with


def watched_parent() -> int | None:
    """The process that this one ends with, or None."""
    return _watched


def torchruns(name: str, otherwise: str | None = None) -> int:
    """A number that torchrun tells in an environment variable.

    Raises:
        InputError: where it is none.
    """
    found = os.environ.get(name, otherwise)
    if found is None or not found.isdecimal():
        raise InputError(f"{name} is {found!r}, expected a number, which torchrun sets; start the ranks with torchrun")
    return int(found)


def end_with_torchrun() -> None:
    """Where torchrun has started this process."""
    if TORCHRUN in os.environ:
        end_with_parent()


def end_with_parent() -> None:
    """Get SIGTERM as soon as the process that started this one has ended, also where it has already, and SIGKILL where
    that does not do."""
    global _watched
    if _watched is not None:
        return
    starter = multiprocessing.parent_process()
    above = _parent() if starter is None else os.getppid()  # a fork server's, which lives as long as this one
    _watched = above if starter is None else starter.pid
    alive = None if starter is None else starter.is_alive
    threading.Thread(target=_watch, args=(above, alive), name="hongtu parent", daemon=True).start()


def _parent() -> int:
    """The process that started this one; 0 where that has ended and init has taken its place."""
    parent = os.getppid()
    if parent == 1:
        try:
            command = INIT.read_bytes()
        except OSError:
            return parent
        return parent if b"python" in command or b"torchrun" in command else 0  # torchrun may be a container's init
    return parent


def _watch(above: int, alive: Callable[[], bool] | None) -> None:
    while os.getppid() == above and (alive is None or alive()):
        time.sleep(LOOK)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)  # some wait for others where no signal is handled
    os.kill(os.getpid(), signal.SIGKILL)

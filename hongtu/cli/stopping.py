"""How a command ends before its time: exit codes, the line on stderr, and SIGTERM as an exception.

Exit codes: 0 done; 2 bad arguments or bad input; 130 interrupted (SIGINT); 141 nobody reads its output;
143 terminated (SIGTERM); 1 anything else.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from hongtu.errors import AnomalyError, DeviceOutOfMemory, InputError, OutputError, RankLost


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived; everything cleans up as it does for SIGINT."""


class Stopped(Exception):
    """An error, together with what is kept of the work."""

    def __init__(self, error: BaseException, kept: str) -> None:
        super().__init__(f"{describe(error)}; {kept}")
        self.code = exit_code(error)


def exit_code(error: BaseException) -> int:
    """The exit code of a command that ended with this error."""
    if isinstance(error, Stopped):
        return error.code
    if isinstance(error, InputError):
        return 2
    if isinstance(error, Terminated):
        return 128 + signal.SIGTERM
    if isinstance(error, BrokenPipeError):
        return 128 + signal.SIGPIPE
    return 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1


def describe(error: BaseException) -> str:
    """One line for stderr."""
    if isinstance(error, KeyboardInterrupt):
        text = str(error) or ("stopped by SIGTERM" if isinstance(error, Terminated) else "interrupted")
    elif isinstance(error, Stopped | InputError | OutputError | DeviceOutOfMemory | AnomalyError | RankLost):
        text = str(error)
    elif isinstance(error, MemoryError):
        text = f"host memory: an allocation was refused ({error}); use a machine with more memory"
    elif isinstance(error, BrokenPipeError):  # such as `head`, which has enough of it
        text = "nobody reads the output any more"
    elif isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        text = f"{error.filename}: {error.strerror}"
    else:
        text = f"{type(error).__name__}: {error}"
    return " ".join(text.split())


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises ``Terminated`` inside, in the main thread."""
    if threading.current_thread() is not threading.main_thread():  # only that one may set a handler
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

"""The standard streams of a command, and how it ends before its time: exit codes, the line on stderr, and
signals as exceptions.

Exit codes: 0 done; 2 bad arguments or bad input; 129 hung up (SIGHUP); 130 interrupted (SIGINT); 141 nobody reads its
output; 143 terminated (SIGTERM); 1 anything else.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from hongtu.errors import (
    INTERRUPTS,
    AnomalyError,
    DeviceOutOfMemory,
    InputError,
    Interrupted,
    OutputError,
    RankLost,
    printable,
)


class Stopped(Exception):
    """An error, together with what is kept of the work."""

    def __init__(self, error: BaseException, kept: str) -> None:
        super().__init__(f"{describe(error)}; {kept}")
        self.code = exit_code(error)


def exit_code(error: BaseException) -> int:
    """The exit code of a command that ended with this error."""
    if isinstance(error, Stopped):
        return error.code
    if isinstance(error, InputError) or (isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG):
        return 2
    if isinstance(error, Interrupted):
        return 128 + error.number
    if isinstance(error, BrokenPipeError):
        return 128 + signal.SIGPIPE
    return 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1


def describe(error: BaseException) -> str:
    """One line for stderr."""
    if isinstance(error, KeyboardInterrupt):
        text = str(error) or "interrupted"
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


class Signals:
    """The first of ``INTERRUPTS`` raises ``Interrupted``, once; those after it are for a command that ends already.

    Attributes:
        first: its number, once it came.
        over: the command has ended, so that none raises any more.
    """

    def __init__(self) -> None:
        self.first: int | None = None
        self._begun = self.over = False

    def begin(self) -> None:
        """From now on the first raises, one that came before this, too."""
        self._begun = True
        if self.first is not None:
            raise Interrupted(self.first)

    def install(self) -> dict[int, Any]:
        """Handle the signals, but for those that whoever started the process had it ignore (``nohup``, ``&`` in a
        script); returns the handlers before."""
        found = {number: signal.getsignal(number) for number in INTERRUPTS}
        before = {number: handler for number, handler in found.items() if handler not in (signal.SIG_IGN, None)}
        for number in before:
            signal.signal(number, self._stop)
        return before

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.first is None and not self.over:
            self.first = number
            if self._begun:
                raise Interrupted(number)

    def again(self, lost: Any) -> None:
        """Where Python loses the exception, as in a finalizer, raise it anew, outside of that."""
        if not isinstance(lost.exc_value, Interrupted) or self.first is None:
            sys.__unraisablehook__(lost)
            return
        number, self.first = self.first, None
        main_thread = threading.get_ident()

        def resend() -> None:
            while any(frame.f_code is Signals.again.__code__ for frame in _frames(main_thread)):
                time.sleep(0.001)
            os.kill(os.getpid(), number)

        threading.Thread(target=resend, daemon=True).start()


def _frames(thread: int) -> Iterator[FrameType]:
    frame = sys._current_frames().get(thread)
    while frame is not None:
        yield frame
        frame = frame.f_back


@contextmanager
def stoppable() -> Iterator[Signals]:
    """Signals raise ``Interrupted`` inside, in the main thread, from ``begin`` on."""
    signals = Signals()
    if threading.current_thread() is not threading.main_thread():  # only that one may set a handler
        yield signals
        return
    hook, sys.unraisablehook = sys.unraisablehook, signals.again
    before = signals.install()
    try:
        yield signals
    finally:
        signals.over = True
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook


class Printed(io.TextIOWrapper):
    """Text without control characters, which a terminal would obey; what the encoding cannot say is spelled out."""

    def write(self, text: str) -> int:
        return super().write(printable(text))


def own_streams() -> None:
    """Open the streams that are closed, as daemons leave them: a file would take their number, and get what is printed.
    What libraries in C print to stdout, such as METIS, goes to stderr from here on; warnings are plain, too."""
    form = warnings.formatwarning
    warnings.formatwarning = lambda *given, **options: printable(form(*given, **options))
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            assert os.open(os.devnull, os.O_RDWR) == number  # the lowest that is free
            os.set_inheritable(number, True)
    if sys.stderr is None:  # so Python says that one was closed
        sys.stderr = os.fdopen(2, "w", closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
        return
    terminal, binary = sys.stdout.isatty(), os.fdopen(os.dup(1), "wb", closefd=False)  # open until the process ends
    sys.stdout = Printed(binary, sys.stdout.encoding, errors="backslashreplace", line_buffering=terminal)
    os.dup2(2, 1)


def drop_unread() -> None:
    """Leave out what stdout cannot take any more: Python flushes it once more at its end, and fails again."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):  # no file, in tests and notebooks
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

"""The standard streams of a command: open, whoever started it; stdout for what hongtu prints, and nobody else."""

from __future__ import annotations

import io
import os
import sys
import warnings
from contextlib import suppress

from hongtu.errors import printable


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

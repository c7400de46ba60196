"""The errors a user can meet; each message says what was found, what was expected and what mends it. Interrupts, and
what they wait for. And notes, which are no errors."""

from __future__ import annotations

import errno
import inspect
import pickle
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import wraps
from types import FrameType
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class InputError(ValueError):
    """Bad arguments, a bad graph or a bad artifact. Commands exit with status 2 and write nothing."""


class BudgetError(InputError):
    """The device budget is too small for any plan; the message names the smallest one that works.

    Attributes:
        smallest: that budget in bytes, or 0 where it is not known.
    """

    def __init__(self, message: str, smallest: int = 0) -> None:
        super().__init__(message)
        self.smallest = smallest


class OutputError(RuntimeError):
    """What a run was to write could not be written: a full disk, a directory that may not be written to; or it could
    not be read again."""

    def __init__(self, path: object, error: OSError, *, read: bool = False) -> None:
        if read:
            what, remedy = "read", "look whether its disk is well, or choose another directory"
        else:
            what, remedy = "written", _REMEDY.get(error.errno or 0, _OTHERWISE)
        super().__init__(f"{path}: cannot be {what} ({error.strerror or error}); {remedy}")


_REMEDY = {
    errno.ENOSPC: "free some space there, or choose another directory",
    errno.EDQUOT: "free some of your quota there, or choose another directory",
    errno.ELOOP: "it is a link, which hongtu does not write through; remove it, or choose another directory",
    errno.EMLINK: "it has other names, which hongtu does not write through; copy it anew, or choose another directory",
    errno.EFBIG: "allow larger files (ulimit -f), or choose another directory",
}
_OTHERWISE = "choose a directory that may be written to"


class DeviceOutOfMemory(RuntimeError):
    """A device allocation went over the device budget while running.

    Attributes:
        taken: bytes that layers had taken when it did.
    """

    def __init__(self, message: str, taken: int = 0) -> None:
        super().__init__(message)
        self.taken = taken


class AnomalyError(RuntimeError):
    """The loss or a gradient is NaN or infinite; the message says where the first such value appears.

    Attributes:
        vertex: the original id of the vertex whose value it is, or None where it is not one vertex's.
    """

    def __init__(self, message: str, vertex: int | None = None) -> None:
        super().__init__(message)
        self.vertex = vertex


class RankLost(RuntimeError):
    """Another rank has stopped, and this one cannot go on; the message has that one's last words, or the network's."""


INTERRUPTS: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """A signal asked a command to end.

    Attributes:
        number: the signal's.
    """

    def __init__(self, number: int) -> None:
        super().__init__("interrupted" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}")
        self.number = number


@contextmanager
def uninterrupted() -> Iterator[list[int]]:
    """What happens inside is done whole: a signal that a Python function handles waits for its end, in the list that
    this gives. Other threads than the main one are never interrupted."""
    if threading.current_thread() is not threading.main_thread():  # only that one may set a handler
        yield []
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in INTERRUPTS}
    waiting: list[int] = []
    over = False

    def wait(number: int, frame: FrameType | None) -> None:
        if over:  # while handlers are put back
            before[number](number, frame)
        else:
            waiting.append(number)

    handled = [number for number in INTERRUPTS if callable(before[number])]
    try:
        for number in handled:
            signal.signal(number, wait)
        yield waiting
    finally:
        over = True
        for number in handled:
            signal.signal(number, before[number])
        for number in waiting:
            before[number](number, None)


_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""A text whose control characters, which a terminal would obey, are spelled out; lines and tabs stay.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)


def has_stderr() -> bool:
    """Whether this process has a standard error: ``2>&-`` and services leave Python none, or a closed one."""
    return sys.stderr is not None and not getattr(sys.stderr, "closed", False)


def note(text: str) -> None:
    """Tell a person something that is no error, in one line on stderr, where somebody still reads it."""
    if not has_stderr():
        return
    with suppress(OSError, ValueError):
        print(f"hongtu: note: {' '.join(printable(text).split())}", file=sys.stderr)


def nearest(word: str, known: Iterable[str], before: str = "") -> str:
    """What an unknown word may have meant, to go on with in a message; nothing where none of the known is near. A word
    of the same letters is nearer than any other.

    >>> nearest("hiden", ["hidden", "heads"], "--"), nearest("Relu", ["ReLU"]), nearest("colour", ["hidden", "heads"])
    ('; did you mean --hidden?', '; did you mean ReLU?', '')
    >>> nearest("modle", ["modules", "model"])
    '; did you mean model?'
    """
    spelled, letters = {name.lower(): name for name in known}, sorted(word.lower())
    found = get_close_matches(word.lower(), spelled, n=max(1, len(spelled)))
    meant = min(found, key=lambda name: sorted(name) != letters, default="")
    return f"; did you mean {before}{spelled[meant]}?" if meant else ""


_WORDS = TypeError, ValueError, RuntimeError, AssertionError, AttributeError, ArithmeticError, LookupError


@contextmanager
def refused_as(what: str, remedy: str) -> Iterator[None]:
    """Inside, Python's and torch's words on arguments become an InputError that says of what, and what to do.

    >>> with refused_as("optimizer", "pass another"):
    ...     raise TypeError("no lr")
    Traceback (most recent call last):
    hongtu.errors.InputError: optimizer: no lr; pass another
    """
    try:
        yield
    except (*_WORDS, pickle.PickleError) as error:
        if type(error).__module__ not in ("builtins", "_pickle"):  # ours, or memory that ran out
            raise
        raise InputError(f"{what}: {' '.join(str(error).split())}; {remedy}") from error


def names_known(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """The function, or the class, which refuses an argument by a name that it does not have, with the nearest one.

    >>> names_known(lambda epochs: epochs)(epoch=3)
    Traceback (most recent call last):
    hongtu.errors.InputError: <lambda>: no argument is named 'epoch'; did you mean epochs?

    Raises:
        InputError: by the call.
    """
    if isinstance(function, type):
        function.__init__ = names_known(function.__init__)  # type: ignore[misc]
        return function
    known = inspect.signature(function).parameters

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        for name in kwargs:
            if name not in known:
                made = type(args[0]) if function.__name__ == "__init__" else function  # of a subclass, perhaps
                near = nearest(name, [*known, *inspect.signature(made).parameters])
                raise InputError(f"{made.__qualname__}: no argument is named {name!r}{near}")
        return function(*args, **kwargs)

    return call

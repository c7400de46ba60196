"""The errors a user can meet; each message says what was found, what was expected and the remedy."""

from __future__ import annotations

import errno


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
    """What a run was to write could not be written: a full disk, a directory that may not be written to."""

    def __init__(self, path: object, error: OSError) -> None:
        super().__init__(
            f"{path}: cannot be written ({error.strerror or error}); {_REMEDY.get(error.errno or 0, _OTHERWISE)}"
        )


_REMEDY = {
    errno.ENOSPC: "free some space there, or choose another directory",
    errno.EDQUOT: "free some of your quota there, or choose another directory",
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

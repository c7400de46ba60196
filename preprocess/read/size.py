"""How many vertices a graph may have."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hongtu.errors import InputError
from hongtu.host import available_bytes

LARGEST = 2**31 - 1  # vertex numbers are int32
PER_VERTEX = 16  # bytes that any run takes at least
FREE = 1 << 20  # vertices that any file may speak of
PER_ROW = 100  # vertices that it may, beyond these, for each end of an edge or row of an array that it holds


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What the headers of an input say.

    Attributes:
        title: what messages call the input.
        vertices, edges, width: V, E, and the columns of the features.
        labels: bytes of the labels.
        beside: bytes of what edges have beside them.
        unpacked: bytes that are unpacked to disk before they can be used.
    """

    title: str
    vertices: int
    edges: int
    width: int
    labels: int = 0
    beside: int = 0
    unpacked: int = 0


@dataclass(frozen=True)
class Reading:
    """Whom a reader tells how far it is: ``expect`` the sizes, before it reads more than headers, and which may refuse
    them; ``progress`` the share of them that is read."""

    expect: Callable[[Sizes], None] = lambda sizes: None
    progress: Callable[[float], None] = lambda share: None


def check_count(vertices: int, whence: str) -> None:
    """Refuse a number of vertices before anything of that size is made.

    Args:
        whence: where it comes from, for messages.

    Raises:
        InputError: when there is none, when int32 cannot number them, or when the host has no memory for so many.
    """
    if vertices <= 0:
        raise InputError(f"{whence}: a graph of {vertices} vertices, expected at least one")
    if vertices > LARGEST:
        raise InputError(f"{whence}: {vertices} vertices, expected fewer than {LARGEST + 1}")
    available, needed = available_bytes(), PER_VERTEX * vertices
    if available is not None and needed > available:
        raise InputError(
            f"{whence}: {vertices} vertices take at least {needed} bytes of memory, {available} are available; "
            "use a larger machine, or pass --relabel where most ids are not used"
        )


def check_held(vertices: int, held: int, whence: str) -> None:
    """Refuse a number of vertices that a file states, or that one id makes, and next to nothing in it is about.

    Args:
        held: ends of edges and rows of vertices that there are.
        whence: where V comes from, for messages.

    Raises:
        InputError: when most of so many vertices could only be isolated and without data.
    """
    if vertices > max(FREE, PER_ROW * held):
        raise InputError(
            f"{whence}: {vertices} vertices, expected at most {max(FREE, PER_ROW * held)} of so few edges; number them "
            "from 0 without gaps (--relabel does that to an edge list), or give features, labels or masks of all"
        )


def check_archive(path: Path) -> None:
    """Refuse a .npz file that would not fit, before any of its arrays is read.

    Raises:
        InputError: when the host has less memory.
        zipfile.BadZipFile, OSError: when it is no archive.
    """
    with zipfile.ZipFile(path) as archive:
        needed = sum(member.file_size for member in archive.infolist())
    available = available_bytes()
    if available is not None and needed > available:
        raise InputError(
            f"{path}: its arrays take {needed} bytes of memory, {available} are available; use a larger machine, or "
            "save them as .npy files, which are read in parts"
        )

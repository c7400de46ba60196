"""How many vertices a graph may have."""

from __future__ import annotations

from hongtu.errors import InputError
from hongtu.host import available_bytes

LARGEST = 2**31 - 1  # vertex numbers are int32
PER_VERTEX = 16  # bytes that any run takes at least


def check_count(vertices: int, whence: str) -> None:
    """Refuse a number of vertices before anything of that size is made.

    Args:
        vertices: V.
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

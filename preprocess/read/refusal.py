"""How a piece of a graph is refused."""

from __future__ import annotations

from typing import Any

from hongtu.errors import InputError
from hongtu.preprocess.read.graph import RawGraph

FREE_CLASSES = 1024  # class ids that even a tiny graph may have; above, there are at most as many as vertices


def expect(raw: RawGraph, piece: str, array: Any, good: bool, expected: str) -> None:
    """Refuse an array of another form.

    Raises:
        InputError: unless it is ``good``.
    """
    if not good:
        raise InputError(f"{raw.name(piece)}: {array.dtype} of shape {array.shape}, expected {expected}")


def refuse_value(position: str, value: Any) -> None:
    """Refuse what is no finite number.

    Raises:
        InputError: always.
    """
    raise InputError(
        f"{position} is {value}, expected a finite float32 number; replace it (numpy.nan_to_num) or drop it"
    )

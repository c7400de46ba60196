"""Opening .npy files that anything may be in: an array, or a message; never code, a crash or a huge allocation."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np

from hongtu.errors import InputError


def open_npy(file: Path, remedy: str) -> np.ndarray:
    """A read-only memory map of an array; one without elements, which cannot be mapped, is made.

    Raises:
        InputError: with the remedy, when the file is no array or holds fewer bytes than its header says.
    """
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):  # of headers by other versions, of absurd shapes
            warnings.simplefilter("ignore")
            array = _without_elements(file)
            if array is None:
                array = np.load(file, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # ValueError, OSError, EOFError, but also TokenError, OverflowError, TypeError, ...
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{file}: not a readable .npy array ({reason}); {remedy}") from None
    if not isinstance(array, np.ndarray):
        raise InputError(f"{file}: a .npz archive, expected one .npy array; {remedy}")
    return array


def _without_elements(file: Path) -> np.ndarray | None:
    """The array of a file whose header says that it has no elements, else None."""
    with open(file, "rb") as stream:
        if stream.read(6) != b"\x93NUMPY":
            return None
        stream.seek(0)
        read = np.lib.format.read_array_header_1_0
        if np.lib.format.read_magic(stream) != (1, 0):
            read = np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(stream)
        if dtype.hasobject or math.prod(shape) != 0 or min(shape) < 0:
            return None
        return np.empty(shape, dtype, order="F" if fortran else "C")

"""Arrays and paths as people give them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from hongtu.errors import InputError


def as_path(title: str, path: Any, what: str = "a file") -> Path:
    """A path from what Python takes for one."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise InputError(f"{title} is {path!r}, expected {what}; pass its path")
    return Path(path)


def as_array(name: str, value: Any) -> np.ndarray:
    """An array of what numpy takes, and of a tensor of a type that it has not (bfloat16), as float32.

    Raises:
        InputError: with the name, for anything else; for masked numbers, which would be there again.
    """
    try:
        if np.ma.is_masked(value):
            raise ValueError("some of its numbers are masked; put others there, as array.filled(0)")
        try:
            return np.asarray(value)
        except TypeError:
            if not hasattr(value, "float"):
                raise
            return np.asarray(value.float())
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{name}: not convertible to a numpy array ({error}); pass a numpy array or a detached CPU tensor"
        ) from None

"""Rows of every vertex as a .npy file in the original order, complete or absent."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
from torch import Tensor
from tqdm import tqdm

from hongtu.errors import InputError, OutputError
from hongtu.files import reserve

BLOCK = 1 << 22  # numbers copied in one step


def check_rows_file(path: str | os.PathLike[str]) -> Path:
    """Refuse a file that cannot be made, before any work.

    Raises:
        InputError: with the remedy.
    """
    path = Path(path)
    if path.suffix != ".npy":
        raise InputError(f"{path}: expected a name that ends in .npy")
    if path.is_dir() or not path.absolute().parent.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        raise InputError(f"{path}: expected a file in a directory that exists and can be written")
    return path


def write_rows(path: Path, rows: Tensor, ids: Tensor) -> np.ndarray:
    """Store ``rows[k]`` as row ``ids[k]``, block by block: no second copy is made in memory.

    Args:
        path: the file, replaced when it is there.
        rows: [V, C] on the CPU.
        ids: int64 [V], on the CPU, each number once.

    Returns:
        a read-only memory map of the file.

    Raises:
        OutputError: when it cannot be written.
    """
    found, order = rows.numpy(), ids.numpy()
    step = max(1, BLOCK // max(found.shape[1], 1))
    partial = None
    try:
        descriptor, partial = tempfile.mkstemp(
            prefix=f".{path.name}.partial-", suffix=".npy", dir=path.absolute().parent
        )
        os.close(descriptor)
        into = np.lib.format.open_memmap(partial, mode="w+", dtype=found.dtype, shape=found.shape)
        reserve(Path(partial))
        for lo in tqdm(range(0, len(found), step), desc=path.name, delay=2, disable=None):
            into[order[lo : lo + step]] = found[lo : lo + step]
        into.flush()
        del into
        os.chmod(partial, 0o644)
        os.replace(partial, path)
    except OSError as error:
        raise OutputError(path, error) from error
    finally:
        if partial is not None and os.path.exists(partial):
            os.unlink(partial)
    return np.load(path, mmap_mode="r")

"""Rows of every vertex as a .npy file in the original order, complete or absent."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from torch import Tensor
from tqdm import tqdm

from hongtu.errors import InputError
from hongtu.files import create_array, whole_file
from hongtu.graph.given import as_path
from hongtu.ranks.together import Together

BLOCK = 1 << 22  # numbers copied in one step


def check_rows_file(path: str | os.PathLike[str]) -> Path:
    """Refuse a file that cannot be made, before any work.

    Raises:
        InputError: with the remedy.
    """
    path = as_path("out", path, "a .npy file")
    if path.suffix != ".npy":
        raise InputError(f"{path}: expected a name that ends in .npy")
    if path.is_dir() or not path.absolute().parent.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        raise InputError(f"{path}: expected a file in a directory that exists and can be written")
    return path


def write_rows(path: Path, rows: Tensor, ids: Tensor, ranks: Together) -> np.ndarray:
    """Store ``rows[k]`` as row ``ids[k]``, block by block: no second copy is made in memory. Rank 0 writes all ranks'
    rows, one rank after the other.

    Args:
        path: the file, replaced when it is there.
        rows: [R, C] on the CPU, this rank's.
        ids: int64 [R], on the CPU; of all ranks together each number once.

    Returns:
        a read-only memory map of the file.

    Raises:
        OutputError: when it cannot be written.
    """
    vertices = int(ranks.sum(len(rows)))
    parts = zip(ranks.each(rows), ranks.each(ids), strict=True)
    with ranks.agreed():
        try:
            if ranks.rank == 0:
                _write(path, parts, (vertices, rows.shape[1]), rows.numpy().dtype)
        finally:
            for _ in parts:  # the others are sending
                pass
    return np.load(path, mmap_mode="r")


def _write(path: Path, parts: Iterable[tuple[Tensor, Tensor]], shape: tuple[int, int], dtype: np.dtype) -> None:
    step = max(1, BLOCK // max(shape[1], 1))
    with whole_file(path) as partial:
        into = create_array(partial, dtype, shape)
        with tqdm(total=shape[0], desc=path.name, delay=2, disable=None) as bar:
            for rows, ids in parts:
                found, order = rows.numpy(), ids.numpy()
                for lo in range(0, len(found), step):
                    into[order[lo : lo + step]] = found[lo : lo + step]
                    bar.update(len(order[lo : lo + step]))
        into.flush()

"""A partition that the user made: an array, or a file of METIS's programs or of numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hongtu.errors import InputError
from hongtu.files import open_npy
from hongtu.graph.given import as_array

FORMS = "expected integers [V], the partition of every vertex from 0, in the order of their numbers"
STEP = 1 << 16  # characters parsed at a time
LONGEST = 20  # characters of a line


def read_partition(source: Any) -> tuple[np.ndarray, str]:
    """The partition of every vertex, int32 [V], and what messages call it.

    Args:
        source: integers [V], or the path of a .npy file of such, or of text with one integer a line, as METIS writes
            ``graph.part.8``.

    Raises:
        InputError: when it is no such thing.
    """
    if not isinstance(source, str | Path):
        found, name = as_array("partitioner", source), "partitioner"
    else:
        file, name = Path(source), str(source)
        if not file.is_file():
            raise InputError(f"{name}: no such file, {FORMS}, as .npy or one a line; or name a partitioner")
        found = np.asarray(open_npy(file, FORMS)) if file.suffix == ".npy" else _read_lines(file)
    if found.ndim != 1 or found.dtype.kind not in "iu" or not len(found):
        raise InputError(f"{name}: {found.dtype} of shape {found.shape}, {FORMS}")
    bad = np.flatnonzero((found < 0) | (found >= len(found)))
    if len(bad):
        raise InputError(f"{name}: [{bad[0]}] is {found[bad[0]]}, expected a partition from 0 to {len(found) - 1}")
    return found.astype(np.int32), name


def check_partition(part: np.ndarray, name: str, vertices: int, partitions: int) -> None:
    """Refuse one of another graph, or of more partitions than there are to be.

    Raises:
        InputError: saying which.
    """
    if len(part) != vertices:
        raise InputError(f"{name}: {len(part)} vertices, the graph has {vertices}; give the partition of every vertex")
    most = int(part.max())
    if most >= partitions:
        raise InputError(
            f"{name}: [{int(part.argmax())}] is {most}, expected 0 to {partitions - 1}; pass --partitions {most + 1}, "
            "or leave --partitions out"
        )


def _read_lines(file: Path) -> np.ndarray:
    found, rest = [], ""
    try:
        with file.open(encoding="ascii") as stream:
            while text := stream.read(STEP):
                lines = (rest + text).split("\n")
                rest = lines.pop()
                if len(rest) > LONGEST:
                    raise ValueError(f"{rest[:LONGEST]!r}")
                found.append(np.array(lines, dtype=np.int64) if lines else np.empty(0, dtype=np.int64))
        return np.concatenate([*found, np.array([rest] if rest else [], dtype=np.int64)])
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(f"{file}: not readable ({error}), {FORMS}, one a line") from None

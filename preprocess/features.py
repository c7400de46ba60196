"""Features in a new order, through a bounded buffer: never all of them in memory.

Legend: V vertices, F columns.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from hongtu.host_memory import available_bytes

BUFFER = 1 << 22  # elements of a block
SHARE = 4  # of the memory that is left, for blocks of features that do not fit it


def copy_rows(
    features: Any,
    original_id: np.ndarray,
    into: np.ndarray,
    change: Callable[[np.ndarray], np.ndarray] | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> None:
    """``into[v] = change(features[original_id[v]])``.

    Args:
        features: float [V, F], perhaps a memory map, or a scipy CSR matrix.
        original_id: int32 [V].
        into: float32 [V, F].
        change: of rows float32, or None.
        progress: told the share that is done.
    """
    count, width = into.shape
    step = max(1, _buffer(into.nbytes) // width)

    def copy(lo: int) -> None:
        ids = original_id[lo : lo + step]
        ascending = np.argsort(ids)  # a file is read from front to back
        rows = features[ids[ascending]]
        rows = (rows if isinstance(rows, np.ndarray) else rows.toarray()).astype(np.float32, copy=False)
        into[lo + ascending] = rows if change is None else change(rows)

    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        for lo, _ in zip(range(0, count, step), pool.map(copy, range(0, count, step))):
            progress(min(1.0, (lo + step) / count))


def _buffer(nbytes: int) -> int:
    """Elements of a block. Rows that lie anywhere in a file larger than memory are read again for every block, so
    that blocks are then as large as memory allows."""
    available = available_bytes()
    if available is None or nbytes < available // 2:
        return BUFFER
    return max(BUFFER, available // (4 * SHARE * 2))

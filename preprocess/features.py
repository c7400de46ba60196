"""Features in a new order, through a bounded buffer: never all of them in memory.

Legend: V vertices, F columns.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from hongtu.preprocess.blocks import block_rows


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
    step = block_rows(into.nbytes, width)

    def copy(lo: int) -> None:
        ids = original_id[lo : lo + step]
        ascending = np.argsort(ids)  # a file is read from front to back
        rows = features[ids[ascending]]
        rows = (rows if isinstance(rows, np.ndarray) else rows.toarray()).astype(np.float32, copy=False)
        into[lo + ascending] = rows if change is None else change(rows)

    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        for lo, _ in zip(range(0, count, step), pool.map(copy, range(0, count, step))):
            progress(min(1.0, (lo + step) / count))

"""Features in a new order, through a bounded buffer: dense ones are never in memory as a whole.

Legend: V vertices, F columns.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from hongtu.files import Create
from hongtu.preprocess.blocks import block_rows

BLOCK = 1 << 18  # rows of CSR copied in one step
SPARSE = 4  # CSR is kept where it takes at most one part in so many of the dense rows


def copy_rows(
    features: Any,
    original_id: np.ndarray,
    into: np.ndarray,
    change: Callable[[np.ndarray], np.ndarray] | None = None,
    progress: Callable[[float], None] = lambda share: None,
    most: int | None = None,
) -> None:
    """``into[v] = change(features[original_id[v]])``.

    Args:
        features: float [V, F], perhaps a memory map, or a scipy CSR matrix.
        original_id: int32 [V].
        into: float32 [V, F].
        change: of rows float32, or None.
        progress: told the share that is done.
        most: bytes of memory for blocks; None: what the machine has.
    """
    count, width = into.shape
    step = block_rows(into.nbytes, width, most)

    def copy(lo: int) -> None:
        ids = original_id[lo : lo + step]
        ascending = np.argsort(ids)  # a file is read from front to back
        rows = features[ids[ascending]]
        rows = (rows if isinstance(rows, np.ndarray) else rows.toarray()).astype(np.float32, copy=False)
        into[lo + ascending] = rows if change is None else change(rows)

    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        for lo, _ in zip(range(0, count, step), pool.map(copy, range(0, count, step))):
            progress(min(1.0, (lo + step) / count))


def stays_sparse(features: Any) -> bool:
    """Whether features are kept in CSR, because that is much smaller."""
    if not hasattr(features, "nnz"):
        return False
    rows, columns = features.shape
    return SPARSE * (8 * (rows + 1) + 8 * features.nnz) <= 4 * rows * columns


def copy_sparse_rows(features: Any, original_id: np.ndarray, create: Create, *, normalize: bool) -> None:
    """The CSR rows in new order, as "feature_start", "feature_column" and "feature_value" made by ``create``.

    Args:
        features: scipy CSR [V, F].
        original_id: int32 [V].
        normalize: divide each row by ``max(1, its sum)``.
    """
    start = create("feature_start", "int64", (len(original_id) + 1,))
    start[0] = 0
    np.cumsum(np.diff(features.indptr)[original_id], out=start[1:])
    column = create("feature_column", "int32", (int(start[-1]),))
    value = create("feature_value", "float32", column.shape)
    for lo in range(0, len(original_id), BLOCK):
        rows = features[original_id[lo : lo + BLOCK]].astype(np.float32)
        if normalize:
            sums = np.asarray(rows.sum(axis=1, dtype=np.float64)).ravel().clip(min=1)
            rows.data /= np.repeat(sums.astype(np.float32), np.diff(rows.indptr))
        part = slice(start[lo], start[lo] + rows.nnz)
        column[part], value[part] = rows.indices, rows.data

"""Row copies between host tensors and caches, by index, on CPU memory (numba, deterministic).

Destination indices of one call are unique, so rows can be moved in parallel.
"""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True, nogil=True, parallel=True)
def copy_rows(src: np.ndarray, src_index: np.ndarray, dst: np.ndarray, dst_index: np.ndarray) -> None:
    """``dst[dst_index] = src[src_index]``; src [N, F], dst [M, F], indices int32 [K]."""
    for k in numba.prange(len(src_index)):
        to, row = dst_index[k], src_index[k]
        for f in range(dst.shape[1]):
            dst[to, f] = src[row, f]


@numba.njit(cache=True, nogil=True, parallel=True)
def add_rows(src: np.ndarray, src_index: np.ndarray, dst: np.ndarray, dst_index: np.ndarray) -> None:
    """``dst[dst_index] += src[src_index]``; src [N, F], dst [M, F], indices int32 [K], ``dst_index`` unique."""
    for k in numba.prange(len(src_index)):
        to, row = dst_index[k], src_index[k]
        for f in range(dst.shape[1]):
            dst[to, f] += src[row, f]


@numba.njit(cache=True, nogil=True, parallel=True)
def zero_rows(dst: np.ndarray, dst_index: np.ndarray) -> None:
    """``dst[dst_index] = 0``; dst [M, F], index int32 [K]."""
    for k in numba.prange(len(dst_index)):
        to = dst_index[k]
        for f in range(dst.shape[1]):
            dst[to, f] = 0


@numba.njit(inline="always")
def put_row(src: np.ndarray, row: int, dst: np.ndarray, to: int, store: bool) -> None:
    """Store row ``row`` of ``src`` in row ``to`` of ``dst``, or add it there."""
    if store:
        for f in range(dst.shape[1]):
            dst[to, f] = src[row, f]
    else:
        for f in range(dst.shape[1]):
            dst[to, f] += src[row, f]


@numba.njit(cache=True, nogil=True, parallel=True)
def put_rows(
    src: np.ndarray, src_index: np.ndarray, dst: np.ndarray, dst_index: np.ndarray, stores: np.ndarray
) -> None:
    """Store ``src[src_index]`` in ``dst[dst_index]`` where ``stores``, bool [K], else add; as ``add_rows``."""
    for k in numba.prange(len(src_index)):
        put_row(src, src_index[k], dst, dst_index[k], stores[k])


@numba.njit(cache=True, nogil=True)
def put_rows_alone(src: np.ndarray, dst: np.ndarray, dst_index: np.ndarray, stores: np.ndarray) -> None:
    """``put_rows`` of all rows of ``src``, on one thread."""
    for k in range(len(dst_index)):
        put_row(src, k, dst, dst_index[k], stores[k])

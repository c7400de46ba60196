"""`make bounds` sees what it is there to see."""

from __future__ import annotations

import os

import numpy as np
import pytest

from hongtu.kernels import sums
from hongtu.kernels.rows import copy_rows

checked = pytest.mark.skipif(os.environ.get("NUMBA_BOUNDSCHECK") != "1", reason="only with NUMBA_BOUNDSCHECK=1")


@checked
def test_a_row_out_of_bounds_is_an_error():
    rows, index = np.zeros((4, 2), np.float32), np.array([0, 3, 4], np.int32)
    with pytest.raises(IndexError):
        copy_rows(rows, index, rows.copy(), index % 4)


@checked
def test_an_edge_out_of_bounds_is_an_error():
    indptr, source, slots = np.array([0, 2]), np.array([0, 9], np.int32), np.array([0, 1], np.int32)
    cache, out = np.zeros((2, 3), np.float32), np.zeros((1, 3), np.float32)
    with pytest.raises(IndexError):
        sums.csc_aggregate(indptr, source, slots, np.empty(0, np.float32), False, cache, out)

"""Bits of 64-bit words, for kernels."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(inline="always")
def count_ones(word):
    """How many bits of a uint64 are set."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@numba.njit(inline="always")
def lowest(word):
    """The position of the lowest set bit of a uint64 that is not 0."""
    return count_ones((word & (~word + np.uint64(1))) - np.uint64(1))

"""Sets of rows as bits: rows go in, in any order and more than once, and come out ascending, each once."""

from __future__ import annotations

import numpy as np

from hongtu.compiled import compiled


@compiled
def insert(words, rows, offset):
    """Add ``rows - offset`` to the set, which is uint64 words of 64 rows each.

    >>> words, out = np.zeros(2, dtype=np.uint64), np.empty(3, dtype=np.int32)
    >>> insert(words, np.array([163, 101, 163, 102]), 100)
    >>> take_all(words, 0, 128, 100, out, 0), out.tolist(), words.tolist()
    (3, [101, 102, 163], [0, 0])
    """
    for k in range(len(rows)):
        row = np.uint64(rows[k] - offset)
        words[row >> np.uint64(6)] |= np.uint64(1) << (row & np.uint64(63))


@compiled
def take_all(words, first, end, offset, out, at):
    """Move the set's rows within first .. end - 1 to ``out[at:]``, plus ``offset``; returns where they end."""
    if first >= end:
        return at
    for w in range(first >> 6, ((end - 1) >> 6) + 1):
        bits = words[w]
        while bits != np.uint64(0):
            out[at] = offset + 64 * w + lowest(bits)
            at += 1
            bits &= bits - np.uint64(1)
        words[w] = np.uint64(0)
    return at


@compiled(inline="always")
def count_ones(word):
    """How many bits of a uint64 are set."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@compiled(inline="always")
def lowest(word):
    """The position of the lowest set bit of a uint64 that is not 0."""
    return count_ones((word & (~word + np.uint64(1))) - np.uint64(1))

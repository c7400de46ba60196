"""Sets of rows: they go in, in any order and more than once, and come out ascending, each once; sorted, or as bits."""

from __future__ import annotations

import numpy as np

from hongtu.compiled import compiled


def distinct(values: np.ndarray) -> np.ndarray:
    """The values of an integer array, ascending, each once.

    As ``np.unique``, which since numpy 2.3 puts millions of keys in a hash table, ten times as slow as sorting them.

    >>> distinct(np.array([3, 1, 3])).tolist(), distinct(np.array([], np.int32)).tolist()
    ([1, 3], [])
    """
    values = np.sort(values)
    first = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return values[first]


def _plain_put_distinct(rows, offset, words, out, at):
    found = distinct(rows)
    out[at : at + len(found)] = found
    return at + len(found)


@compiled(plain=_plain_put_distinct)
def put_distinct(rows, offset, words, out, at):
    """Write ``rows``, ascending and each once, to ``out[at:]``, by way of words of 64 rows from ``offset`` on, which
    are 0 before and after; returns where they end.

    >>> words, out = np.zeros(2, dtype=np.uint64), np.empty(3, dtype=np.int32)
    >>> put_distinct(np.int32([163, 101, 163, 102]), 100, words, out, 0), out.tolist(), words.tolist()
    (3, [101, 102, 163], [0, 0])
    """
    first, last = len(words), -1
    for k in range(len(rows)):
        row = np.int64(rows[k]) - offset
        word = row >> 6
        words[word] |= np.uint64(1) << np.uint64(row & 63)
        first = word if word < first else first
        last = word if word > last else last
    for word in range(first, last + 1):
        bits = words[word]
        while bits != np.uint64(0):
            out[at] = offset + 64 * word + lowest(bits)
            at += 1
            bits &= bits - np.uint64(1)
        words[word] = np.uint64(0)
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

"""Ids of any kind to numbers 0..V-1, in the order in which they are first seen: hash tables of O(V) memory.

Legend: V vertices so far, B ids of a block, T slots of the table (a power of two, at least 2 V).
"""

from __future__ import annotations

import numba
import numpy as np

from hongtu.preprocess.read.source import Names

FEWEST_SLOTS = 1 << 10


class IntegerIds:
    """Numbers for int64 ids.

    >>> ids = IntegerIds()
    >>> ids.number(np.array([70, -5, 70])).tolist(), ids.ids().tolist()
    ([0, 1, 0], [70, -5])
    """

    def __init__(self) -> None:
        self._slots = np.full(FEWEST_SLOTS, -1, dtype=np.int32)
        self._ids = np.empty(FEWEST_SLOTS // 2, dtype=np.int64)
        self._count = 0

    def number(self, ids: np.ndarray) -> np.ndarray:
        """int32 [B]."""
        numbers = np.empty(len(ids), dtype=np.int32)
        done = 0
        while True:
            done, self._count = _number_integers(ids, numbers, done, self._slots, self._ids, self._count)
            if done == len(ids):
                return numbers
            self._ids = np.resize(self._ids, 2 * len(self._ids))
            self._slots = np.full(2 * len(self._slots), -1, dtype=np.int32)
            _place_integers(self._slots, self._ids, self._count)

    def ids(self) -> np.ndarray:
        """int64 [V], the id of every number."""
        return self._ids[: self._count].copy()

    def __len__(self) -> int:
        return self._count


class NameIds:
    """Numbers for ids that are text.

    >>> from hongtu.preprocess.read.source import as_names
    >>> ids = NameIds()
    >>> ids.number(as_names(np.array(["x", "yy", "x"]))).tolist(), ids.ids().name(1)
    ([0, 1, 0], 'yy')
    """

    def __init__(self) -> None:
        self._slots = np.full(FEWEST_SLOTS, -1, dtype=np.int32)
        self._end = np.zeros(FEWEST_SLOTS // 2, dtype=np.int64)
        self._text = np.empty(FEWEST_SLOTS, dtype=np.uint8)
        self._count = 0

    def number(self, names: Names) -> np.ndarray:
        """int32 [B]."""
        numbers = np.empty(len(names), dtype=np.int32)
        done = 0
        while True:
            tables = (self._slots, self._end, self._text)
            done, self._count = _number_names(*names, numbers, done, *tables, self._count)
            if done == len(names):
                return numbers
            used = self._end[self._count - 1] if self._count else 0
            if used + names.end[done] - names.start[done] > len(self._text):
                longer = max(2 * len(self._text), int(used + names.end[done] - names.start[done]))
                self._text = np.resize(self._text, longer)
            if self._count == len(self._end):
                self._end = np.resize(self._end, 2 * len(self._end))
                self._slots = np.full(2 * len(self._slots), -1, dtype=np.int32)
                _place_names(self._slots, self._end, self._text, self._count)

    def ids(self) -> Names:
        """The id of every number."""
        end = self._end[: self._count].copy()
        start = np.concatenate([[0], end[:-1]]).astype(np.int64) if self._count else end
        return Names(self._text[: end[-1] if self._count else 0].copy(), start, end)

    def __len__(self) -> int:
        return self._count


@numba.njit(inline="always")
def _mixed(key):
    key ^= key >> np.uint64(33)
    key *= np.uint64(0xFF51AFD7ED558CCD)
    return key ^ (key >> np.uint64(33))


@numba.njit(cache=True)
def _number_integers(keys, numbers, done, slots, ids, count):
    """Number ``keys[done:]``; stops early, before a new id, when ``ids`` is full."""
    mask = np.uint64(len(slots) - 1)
    for k in range(done, len(keys)):
        slot = _mixed(np.uint64(keys[k])) & mask
        while slots[slot] >= 0 and ids[slots[slot]] != keys[k]:
            slot = (slot + np.uint64(1)) & mask
        if slots[slot] < 0:
            if count == len(ids):
                return k, count
            slots[slot] = count
            ids[count] = keys[k]
            count += 1
        numbers[k] = slots[slot]
    return len(keys), count


@numba.njit(cache=True)
def _place_integers(slots, ids, count):
    mask = np.uint64(len(slots) - 1)
    for k in range(count):
        slot = _mixed(np.uint64(ids[k])) & mask
        while slots[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = k


@numba.njit(inline="always")
def _hashed(text, lo, hi):
    value = np.uint64(0xCBF29CE484222325)
    for at in range(lo, hi):
        value = (value ^ np.uint64(text[at])) * np.uint64(0x100000001B3)
    return _mixed(value)


@numba.njit(inline="always")
def _equal(text, lo, hi, other, other_lo, other_hi):
    if hi - lo != other_hi - other_lo:
        return False
    for k in range(hi - lo):  # noqa: SIM110 - numba has no all() of a generator
        if text[lo + k] != other[other_lo + k]:
            return False
    return True


@numba.njit(cache=True)
def _number_names(text, start, end, numbers, done, slots, ends, stored, count):
    """Number the names from ``done`` on; stops early, before a new name, when a table is full."""
    mask = np.uint64(len(slots) - 1)
    for k in range(done, len(start)):
        lo, hi = start[k], end[k]
        slot = _hashed(text, lo, hi) & mask
        while slots[slot] >= 0:
            other = slots[slot]
            if _equal(text, lo, hi, stored, ends[other - 1] if other > 0 else 0, ends[other]):
                break
            slot = (slot + np.uint64(1)) & mask
        if slots[slot] < 0:
            used = ends[count - 1] if count > 0 else 0
            if count == len(ends) or used + hi - lo > len(stored):
                return k, count
            stored[used : used + hi - lo] = text[lo:hi]
            ends[count] = used + hi - lo
            slots[slot] = count
            count += 1
        numbers[k] = slots[slot]
    return len(start), count


@numba.njit(cache=True)
def _place_names(slots, ends, stored, count):
    mask = np.uint64(len(slots) - 1)
    for k in range(count):
        slot = _hashed(stored, ends[k - 1] if k > 0 else 0, ends[k]) & mask
        while slots[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = k

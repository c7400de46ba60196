"""Ids of any kind to numbers 0..V-1, in the order in which they are first seen, in O(V) memory.

Legend: V vertices so far, B ids of a block.
"""

from __future__ import annotations

import numpy as np


class IntegerIds:
    """Numbers for int64 ids, from a sorted table.

    >>> ids = IntegerIds()
    >>> ids.number(np.array([70, -5, 70])).tolist(), ids.ids().tolist()
    ([0, 1, 0], [70, -5])
    """

    def __init__(self) -> None:
        self._sorted, self._numbers = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)

    def number(self, ids: np.ndarray) -> np.ndarray:
        """int32 [B]."""
        unique, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
        at = np.searchsorted(self._sorted, unique)
        new = np.flatnonzero(~np.isin(unique, self._sorted, assume_unique=True))
        numbers = np.empty(len(new), dtype=np.int32)
        numbers[np.argsort(first[new])] = np.arange(len(self), len(self) + len(new))
        self._sorted = np.insert(self._sorted, at[new], unique[new])
        self._numbers = np.insert(self._numbers, at[new], numbers)
        return self._numbers[np.searchsorted(self._sorted, unique)][inverse]

    def ids(self) -> np.ndarray:
        """int64 [V], the id of every number."""
        return self._sorted[np.argsort(self._numbers)]

    def __len__(self) -> int:
        return len(self._sorted)


class NameIds:
    """Numbers for ids that are text.

    >>> ids = NameIds()
    >>> ids.number(["x", "yy", "x"]).tolist(), ids.ids()
    ([0, 1, 0], ['x', 'yy'])
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, names: list[str]) -> np.ndarray:
        """int32 [B]."""
        table = self._numbers
        return np.fromiter((table.setdefault(name, len(table)) for name in names), np.int32, len(names))

    def ids(self) -> list[str]:
        """The id of every number."""
        return list(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

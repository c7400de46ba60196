"""The values of an array, each once."""

from __future__ import annotations

import numpy as np


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

"""How often a sequence of accesses to rows finds them in a cache."""

from __future__ import annotations

import numpy as np

from hongtu.compiled import compiled

SIZES = 32  # of caches: 1, 2, 4, ... rows


def miss_ratio(rows: np.ndarray) -> np.ndarray:
    """float64 [SIZES]: the share of accesses that do not find their row among the 1, 2, 4, ... used most recently.

    As many rows are held as a window of so many accesses has on average, which follows from the gaps between accesses
    to the same row; accesses with longer gaps miss (P. J. Denning and S. C. Schwartz, Properties of the working-set
    model, 1972).

    Args:
        rows: integers [N], not negative.

    >>> miss_ratio(np.array([0, 1] * 1000))[:3].round(2).tolist()
    [1.0, 0.0, 0.0]
    """
    if not len(rows):
        return np.ones(SIZES)
    gaps = np.zeros(len(rows), np.int64)
    _count_gaps(rows, np.full(int(rows.max()) + 1, -1, np.int64), gaps)
    longer = 1 - np.cumsum(gaps) / len(rows)  # of accesses with a gap beyond each number, or without one
    held = np.cumsum(longer)  # rows in a window of each number of accesses, from 1 on
    window = np.searchsorted(held, 2.0 ** np.arange(SIZES) + 1e-6, side="right")  # the longest that holds no more
    return longer[np.minimum(window, len(rows) - 1)]


def _plain_count_gaps(rows, last, gaps):
    order = np.argsort(rows, kind="stable")
    again = rows[order[1:]] == rows[order[:-1]]
    gaps += np.bincount(np.diff(order)[again], minlength=len(gaps))
    last[rows[order]] = order


@compiled(plain=_plain_count_gaps)
def _count_gaps(rows, last, gaps):
    """Adds to ``gaps``, by their lengths, those between accesses to the same row; ``last`` starts at -1."""
    for k in range(len(rows)):
        if last[rows[k]] >= 0:
            gaps[k - last[rows[k]]] += 1
        last[rows[k]] = k

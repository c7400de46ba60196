"""How a quantity grows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of a straight line through the logarithms, by least squares.

    >>> round(exponent([1, 2, 4], [3, 6, 12]), 6)
    1.0
    """
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def largest_step(values: Sequence[float]) -> float:
    """The most that one value is over the one before it.

    >>> largest_step([1.0, 1.5, 1.2, 1.8])
    1.5
    """
    return max((after / before for before, after in itertools.pairwise(values)), default=1.0)

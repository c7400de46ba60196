"""What amounts of several kinds cost each, from what they took together."""

from __future__ import annotations

import numpy as np
from scipy.optimize import lsq_linear


def explained(
    amounts: np.ndarray,
    seconds: np.ndarray,
    least: np.ndarray | float = 0.0,
    most: np.ndarray | float = np.inf,
) -> tuple[np.ndarray, float]:
    """Seconds of one of each amount with the smallest errors relative to the seconds, and the errors' mean square.

    Args:
        amounts: [N, K], of each at least one that is not 0.
        seconds: [N], what was measured.
        least, most: bounds of each.
    """
    weighted = amounts / seconds[:, None]
    scale = weighted.max(axis=0)
    bounds = np.broadcast_to(least, scale.shape) * scale, np.broadcast_to(most, scale.shape) * scale
    found = lsq_linear(weighted / scale, np.ones(len(seconds)), bounds, method="bvls")
    return found.x / scale, 2 * found.cost / len(seconds)

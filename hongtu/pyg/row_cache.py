"""Rows of other ranks' vertices that stay from one window of steps to the next.

Legend: R rows, F features.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


class RowCache:
    """What the last window read, and as much of what earlier ones read as there is room for: those that were read last.

    Args:
        capacity: rows; a window may have more.

    Attributes:
        vertices: int64 [R], ascending.
        rows: float32 [R, F].

    >>> cache, asked = RowCache(4, 1), []
    >>> def fetch(vertices):
    ...     asked.append(vertices.tolist())
    ...     return torch.from_numpy(vertices).float()[:, None]
    >>> [cache.take(np.array(window), fetch)[:, 0].tolist() for window in ([1, 2, 3], [2, 9], [3, 5, 9], [1, 2, 3])][3]
    [1.0, 2.0, 3.0]
    >>> asked, cache.vertices.tolist()
    ([[1, 2, 3], [9], [5], [1]], [1, 2, 3, 5])
    """

    def __init__(self, capacity: int, width: int) -> None:
        self.capacity = capacity
        self.vertices = np.empty(0, dtype=np.int64)
        self.rows = torch.empty(0, width, dtype=torch.float32)
        self._read = np.empty(0, dtype=np.int64)  # the window that read each last
        self._window = 0

    def take(self, vertices: np.ndarray, fetch: Callable[[np.ndarray], Tensor]) -> Tensor:
        """float32 [R, F], the rows of a window.

        Args:
            vertices: int64 [R], ascending.
            fetch: gets those that are not there.
        """
        at = np.searchsorted(self.vertices, vertices)
        there = at < len(self.vertices)
        there[there] = self.vertices[at[there]] == vertices[there]
        rows = torch.empty(len(vertices), self.rows.shape[1], dtype=torch.float32)
        rows[torch.from_numpy(there)] = self.rows[at[there]]
        rows[torch.from_numpy(~there)] = fetch(vertices[~there])
        self._keep(vertices, rows, np.delete(np.arange(len(self.vertices)), at[there]))
        return rows

    def _keep(self, vertices: np.ndarray, rows: Tensor, others: np.ndarray) -> None:
        """Hold a window's rows, and of the ``others`` those that were read last."""
        self._window += 1
        room = max(0, self.capacity - len(vertices))
        others = others[np.argsort(-self._read[others], kind="stable")[:room]]
        together = np.concatenate([vertices, self.vertices[others]])
        read = np.concatenate([np.full(len(vertices), self._window), self._read[others]])
        order = np.argsort(together)
        self.rows = torch.cat([rows, self.rows[others]])[order]
        self.vertices, self._read = together[order], read[order]

"""Vertex rows of which most numbers are zero, in CSR: the features of an artifact whose input was sparse.

Legend: V vertices, K stored numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hongtu.graph.topology import Topology

PARTS = ("start", "column", "value")
MOST = 1 / 16  # of a matrix's numbers, where its products take less time in CSR, by far
WIDE = 256  # columns of a matrix whose products take most of an epoch
_BLOCK, _SAMPLE = 1 << 24, 1 << 10  # numbers, rows that are looked at at once


@dataclass(frozen=True, eq=False)
class SparseRows:
    """CSR rows over new vertex ids.

    Attributes:
        start: int64 [V + 1].
        column: int32 [K].
        value: float32 [K], or of a run's dtype.
        width: columns.
    """

    start: np.ndarray
    column: np.ndarray
    value: np.ndarray
    width: int

    def nbytes(self, itemsize: int) -> int:
        """Bytes where a number takes ``itemsize``."""
        return self.start.nbytes + self.column.nbytes + len(self.value) * itemsize

    @classmethod
    def of_dense(cls, rows: np.ndarray) -> SparseRows | None:
        """Of a wide matrix of which at most ``MOST`` numbers are not zero; None: it is another.

        >>> rows = np.zeros((3, 300), np.float32)
        >>> rows[0, 7], rows[2, 1:3] = 5, (6, 7)
        >>> of = SparseRows.of_dense(rows)
        >>> of.start.tolist(), of.column.tolist(), of.value.tolist()
        ([0, 1, 1, 3], [7, 1, 2], [5.0, 6.0, 7.0])
        >>> SparseRows.of_dense(np.ones((3, 300))) is SparseRows.of_dense(rows[:, :8]) is None
        True
        """
        (count, width), counts, columns, values = rows.shape, [0], [], []
        sample = rows[:: max(1, count // _SAMPLE)]
        if width < WIDE or np.count_nonzero(sample) > 2 * MOST * sample.size:
            return None
        for first in range(0, count, step := max(1, _BLOCK // width)):
            block = np.asarray(rows[first : first + step])
            row, column = block.nonzero()
            counts.extend(np.bincount(row, minlength=len(block)))
            columns.append(column.astype(np.int32))
            values.append(block[row, column])
        start = np.cumsum(counts, dtype=np.int64)
        if start[-1] > MOST * rows.size:
            return None
        return cls(start, np.concatenate(columns), np.concatenate(values), width)

    @property
    def share(self) -> float:
        """Of all numbers of a matrix, those that are stored."""
        return len(self.value) / max(1, (len(self.start) - 1) * self.width)

    def part(self, rows: slice | np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Start, column and value of some rows alone.

        >>> of = SparseRows(np.array([0, 1, 3, 4]), np.array([1, 0, 1, 0]), np.float32([5, 6, 7, 8]), 2)
        >>> [[part.tolist() for part in of.part(rows)] for rows in (slice(1, 3), np.array([2, 0]))]
        [[[0, 2, 3], [0, 1, 0], [6.0, 7.0, 8.0]], [[0, 1, 2], [0, 1], [8.0, 5.0]]]
        """
        if isinstance(rows, slice):
            start = self.start[rows.start : rows.stop + 1]
            return start - start[0], self.column[start[0] : start[-1]], self.value[start[0] : start[-1]]
        at, count = positions(self.start, rows), self.start[rows + 1] - self.start[rows]
        return np.concatenate([[0], np.cumsum(count)]), self.column[at], self.value[at]

    def dense(self) -> np.ndarray:
        """float32 [V, F].

        >>> SparseRows(np.array([0, 1, 3]), np.array([1, 0, 1]), np.float32([5, 6, 7]), 2).dense().tolist()
        [[0.0, 5.0], [6.0, 7.0]]
        """
        rows = np.zeros((len(self.start) - 1, self.width), dtype=np.float32)
        rows[np.repeat(np.arange(len(rows)), np.diff(self.start)), self.column] = self.value
        return rows

    def numbers(self, topology: Topology) -> np.ndarray:
        """int64 [C]: the numbers stored in the rows that each chunk computes.

        >>> topology = Topology(1, 2, np.array([0, 2, 3]), np.zeros(4), *[np.zeros(3, int)] * 3, None)
        >>> SparseRows(np.array([0, 1, 4, 4]), np.zeros(4, int), np.zeros(4), 2).numbers(topology).tolist()
        [4, 0]
        """
        if topology.active is None or topology.active_start is None:
            return np.diff(self.start[topology.chunk_start])
        before = np.zeros(len(topology.active) + 1, dtype=np.int64)
        np.cumsum(self.start[topology.active + 1] - self.start[topology.active], out=before[1:])
        return np.diff(before[topology.active_start])


def positions(start: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """int64: where the numbers of some rows are stored, row by row.

    >>> positions(np.array([0, 2, 2, 5]), np.array([2, 0])).tolist()
    [2, 3, 4, 0, 1]
    """
    count = start[rows + 1] - start[rows]
    first = np.cumsum(count) - count
    return np.repeat(start[rows] - first, count) + np.arange(int(count.sum()))

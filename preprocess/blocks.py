"""Blocks: of rows, how many of a large array are copied in one step; of vertices, of about equally many edges, for
threads."""

from __future__ import annotations

import numpy as np

from hongtu.host import available_bytes
from hongtu.threads import num_threads

BUFFER = 1 << 22  # elements of a block
SHARE = 4  # of the memory that is left, for blocks of an array that does not fit it
BLOCKS = 8  # of about equally many edges, per thread


def block_rows(nbytes: int, width: int, most: int | None = None) -> int:
    """Rows of a block of an array of so many bytes. Rows that lie anywhere in a file larger than memory are read again
    for every block, so that blocks are then as large as memory allows.

    Args:
        most: bytes of memory that may be used for blocks; None: what the machine has.
    """
    available = min((left for left in (available_bytes(), most) if left is not None), default=None)
    small = available is None or nbytes < available // 2
    elements = BUFFER if small else max(BUFFER, available // (4 * SHARE * 2))
    return max(1, elements // width)


def even_blocks(in_edge_start: np.ndarray, blocks: int) -> np.ndarray:
    """First vertex of each of some ranges with about as many edges, then V; int64 [blocks + 1].

    >>> even_blocks(np.array([0, 6, 6, 7, 8]), 2).tolist()
    [0, 1, 4]
    """
    num_vertices = len(in_edge_start) - 1
    inner = np.searchsorted(in_edge_start, np.linspace(0, in_edge_start[-1], blocks + 1)[1:-1])
    return np.concatenate([[0], np.minimum(inner, num_vertices), [num_vertices]]).astype(np.int64)


def vertex_ranges(in_edge_start: np.ndarray) -> np.ndarray:
    """The same, some for each thread."""
    return even_blocks(in_edge_start, BLOCKS * num_threads())

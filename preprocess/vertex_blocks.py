"""Blocks of vertices for threads: of equal numbers, by which neighbour sets are cut, and of about equally many edges.

Neighbour sets ascend, so that the part of each that lies in a block is one slice.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from hongtu.threads import num_threads

BITS = 16  # 2 ** 16 vertices a block
BLOCKS = 8  # of about equally many edges, per thread


def block_cuts(source_start: np.ndarray, sources: np.ndarray, num_vertices: int) -> np.ndarray:
    """int64 [C, B + 1]: the sources of chunk c in block b are ``sources[cuts[c, b] : cuts[c, b + 1]]``.

    >>> block_cuts(np.array([0, 2, 3]), np.int32([5, 70000, 9]), 70001).tolist()
    [[0, 1, 2], [2, 3, 3]]
    """
    cuts = np.empty((len(source_start) - 1, ((num_vertices - 1) >> BITS) + 2), dtype=np.int64)
    first = (np.arange(cuts.shape[1] - 1) << BITS).astype(sources.dtype)  # of another, all sources would be converted
    for c, (lo, hi) in enumerate(pairwise(source_start)):
        cuts[c, :-1] = lo + np.searchsorted(sources[lo:hi], first)
        cuts[c, -1] = hi
    return cuts


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

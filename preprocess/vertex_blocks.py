"""Neighbour sets cut into blocks of vertices: what is counted per vertex is counted block by block, in parallel.

Neighbour sets ascend, so that the part of each that lies in a block is one slice.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from hongtu.compiled import compiled, prange

BITS = 16  # 2 ** 16 vertices a block


def block_cuts(source_start: np.ndarray, sources: np.ndarray, num_vertices: int) -> np.ndarray:
    """int64 [C, B + 1]: the sources of chunk c in block b are ``sources[cuts[c, b] : cuts[c, b + 1]]``.

    >>> block_cuts(np.array([0, 2, 3]), np.int32([5, 70000, 9]), 70001).tolist()
    [[0, 1, 2], [2, 3, 3]]
    """
    return _cuts(source_start, sources, ((num_vertices - 1) >> BITS) + 1)


def _plain_cuts(source_start, sources, blocks):
    cuts = np.empty((len(source_start) - 1, blocks + 1), dtype=np.int64)
    for c, (lo, hi) in enumerate(pairwise(source_start)):
        cuts[c, :blocks] = lo + np.searchsorted(sources[lo:hi], np.arange(blocks) << BITS)
        cuts[c, blocks] = hi
    return cuts


@compiled(plain=_plain_cuts, parallel=True)
def _cuts(source_start, sources, blocks):
    cuts = np.empty((len(source_start) - 1, blocks + 1), dtype=np.int64)
    for c in prange(len(source_start) - 1):
        own = sources[source_start[c] : source_start[c + 1]]
        for b in range(blocks):
            cuts[c, b] = source_start[c] + np.searchsorted(own, b << BITS)
        cuts[c, blocks] = source_start[c + 1]
    return cuts

"""Neighbour sets and local source indices of every chunk: ``build_topology`` in parallel, straight to where they stay.

Legend: V vertices, E edges, C chunks.
"""

from __future__ import annotations

import numba
import numpy as np

from hongtu.graph.neighbour_sets import fill_set, set_size
from hongtu.preprocess.bucket_sort import Create, in_memory


def neighbour_sets(
    chunk_start: np.ndarray, in_edge_start: np.ndarray, source: np.ndarray, create: Create = in_memory
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """source_start int64 [C + 1], sources int32 [sum |N_c|] and local_source int32 [E] of ``Topology``.

    Args:
        chunk_start: int64 [C + 1].
        in_edge_start: int64 [V + 1].
        source: int32 [E], new ids.
        create: makes "sources" and "local_source".

    >>> # five vertices, two chunks {0, 1} and {2, 3, 4}; edges 3->0, 4->1, 3->1, 0->2, 0->4
    >>> found = neighbour_sets(np.array([0, 2, 5]), np.array([0, 1, 3, 4, 4, 5]), np.int32([3, 4, 3, 0, 0]))
    >>> [array.tolist() for array in found]
    [[0, 2, 3], [3, 4, 0], [0, 1, 0, 0, 0]]
    """
    edge_start = np.asarray(in_edge_start)[chunk_start]
    words = (len(in_edge_start) - 1 + 63) // 64
    source_start = np.zeros(len(chunk_start), dtype=np.int64)
    np.cumsum(_set_sizes(edge_start, source, words), out=source_start[1:])
    sources = create("sources", "int32", (int(source_start[-1]),))
    local_source = create("local_source", "int32", source.shape)
    _fill(edge_start, source, words, source_start, sources, local_source)
    return source_start, sources, local_source


@numba.njit(cache=True, parallel=True)
def _set_sizes(edge_start, source, words):
    sizes = np.zeros(len(edge_start) - 1, dtype=np.int64)
    for c in numba.prange(len(edge_start) - 1):
        sizes[c] = set_size(source, edge_start[c], edge_start[c + 1], words)
    return sizes


@numba.njit(cache=True, parallel=True)
def _fill(edge_start, source, words, source_start, sources, local_source):
    for c in numba.prange(len(edge_start) - 1):
        own = sources[source_start[c] : source_start[c + 1]]
        fill_set(source, edge_start[c], edge_start[c + 1], words, own, local_source)

"""Order by recursive bisection: a partitioner cuts the graph into many parts, numbered as they lie in its tree."""

from __future__ import annotations

import numpy as np

from hongtu.preprocess.parts import cut_graph

PARTS = 512  # enough for a cache of any useful size; more gain little
VERTICES_PER_PART = 16


def recursive_order(
    library: str, start: np.ndarray, neighbour: np.ndarray, part: np.ndarray, seed: int = 0
) -> np.ndarray:
    """int32 [V], vertices sorted by (partition, part that the library made, id).

    Args:
        library: "metis" or "kaminpar".
        start: int64 [V + 1], undirected neighbour lists.
        neighbour: int32 [A].
        part: int32 [V], partition of every vertex.

    Raises:
        InputError: when the library is not installed or its integers are too small for the graph.
    """
    parts = min(PARTS, len(part) // VERTICES_PER_PART)
    return np.lexsort((cut_graph(library, start, neighbour, parts, seed, recursive=True), part)).astype(np.int32)

"""Order by recursive bisection: a partitioner cuts the graph into many parts, numbered as they lie in its tree."""

from __future__ import annotations

import numpy as np

from hongtu.errors import InputError
from hongtu.preprocess.kaminpar import kaminpar_parts

PARTS = 512  # enough for a cache of any useful size; more gain little
VERTICES_PER_PART = 16


def recursive_order(start: np.ndarray, neighbour: np.ndarray, part: np.ndarray, seed: int = 0) -> np.ndarray:
    """int32 [V], vertices sorted by (partition, METIS part, id).

    Args:
        start: int64 [V + 1], undirected neighbour lists.
        neighbour: int32 [A].
        part: int32 [V], partition of every vertex.

    Raises:
        InputError: when pymetis is absent or its integers are too small for the graph.
    """
    try:
        import pymetis
    except ImportError:
        raise InputError("order 'recursive' needs pymetis; run `pip install pymetis`, or pass --order input") from None
    integer = pymetis.zero_copy_dtype()
    if len(neighbour) > np.iinfo(integer).max:
        raise InputError(
            f"order 'recursive': {len(neighbour)} adjacency entries are too many; pass --order clusters or kaminpar"
        )
    parts = _parts(len(part))
    if parts < 2 or len(neighbour) == 0:
        return np.argsort(part, kind="stable").astype(np.int32)
    found = pymetis.part_graph(
        parts,
        pymetis.CSRAdjacency(start.astype(integer, copy=False), neighbour.astype(integer, copy=False)),
        recursive=True,
        options=pymetis.Options(seed=seed % (2**31 - 1) + 1),
    )
    return np.lexsort((np.asarray(found.vertex_part), part)).astype(np.int32)


def kaminpar_order(start: np.ndarray, neighbour: np.ndarray, part: np.ndarray, seed: int = 0) -> np.ndarray:
    """int32 [V], vertices sorted by (partition, KaMinPar part, id); arguments as above.

    Raises:
        InputError: when kaminpar is not installed.
    """
    return np.lexsort((kaminpar_parts(start, neighbour, max(1, _parts(len(part))), seed), part)).astype(np.int32)


def _parts(num_vertices: int) -> int:
    return min(PARTS, num_vertices // VERTICES_PER_PART)

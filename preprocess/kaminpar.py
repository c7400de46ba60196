"""KaMinPar, an optional partitioner: several times faster than METIS, and without its limit on edges.

https://github.com/KaHIP/KaMinPar (pip install kaminpar). It reads graphs from files only, so the graph goes through a
temporary one in the ParHIP format. One thread: with more its result changes from run to run.
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

import numpy as np

from hongtu.errors import InputError

IMBALANCE = 0.03  # as METIS by default
NO_EDGE_WEIGHTS, NO_VERTEX_WEIGHTS = 1, 2  # flags of the format


def kaminpar_installed() -> bool:
    """Whether the package is there."""
    return importlib.util.find_spec("kaminpar") is not None


def kaminpar_parts(
    start: np.ndarray, neighbour: np.ndarray, parts: int, seed: int, weights: np.ndarray | None = None
) -> np.ndarray:
    """The part of every vertex, int32 [V]; parts that are near in number are near in the graph.

    Args:
        start: int64 [V + 1], undirected neighbour lists.
        neighbour: int32 [A].
        weights: int64 [V], positive, what is balanced; None for one per vertex.

    Raises:
        InputError: when kaminpar is not installed.
    """
    if not kaminpar_installed():
        raise InputError("kaminpar is not installed; run `pip install 'hongtu[kaminpar]'`, or pass another name")
    import kaminpar

    num_vertices = len(start) - 1
    if parts >= num_vertices or len(neighbour) == 0:
        return (np.arange(num_vertices) * min(parts, num_vertices) // max(num_vertices, 1)).astype(np.int32)
    with tempfile.TemporaryDirectory(prefix="hongtu-") as folder:
        path = Path(folder, "graph.parhip")
        _write_parhip(path, start, neighbour, weights)
        graph = kaminpar.load_graph(str(path), kaminpar.GraphFileFormat.PARHIP)
    kaminpar.reseed(seed % (2**31))
    found = kaminpar.KaMinPar(1, kaminpar.default_context()).compute_partition(graph, parts, IMBALANCE)
    return np.asarray(found, dtype=np.int32)


def _write_parhip(path: Path, start: np.ndarray, neighbour: np.ndarray, weights: np.ndarray | None) -> None:
    """Header (flags, V, A), byte offset of every neighbour list, the lists, the weights: all 64-bit."""
    flags = NO_EDGE_WEIGHTS + (NO_VERTEX_WEIGHTS if weights is None else 0)
    with path.open("wb") as stream:
        np.array([flags, len(start) - 1, len(neighbour)], dtype=np.uint64).tofile(stream)
        (8 * (3 + len(start) + start)).astype(np.uint64).tofile(stream)
        neighbour.astype(np.uint64).tofile(stream)
        if weights is not None:
            weights.astype(np.int64).tofile(stream)

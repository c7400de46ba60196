"""A graph cut into parts by METIS, or by KaMinPar: several times faster, and without METIS's limit on edges.

METIS comes with pymetis. KaMinPar (https://github.com/KaHIP/KaMinPar, pip install kaminpar) reads graphs from files
only, so the graph goes through a temporary one in the ParHIP format; with more than one thread its result changes from
run to run.
"""

from __future__ import annotations

import ctypes
import importlib.util
import tempfile
from pathlib import Path

import numpy as np

from hongtu.errors import InputError

IMBALANCE = 0.03  # as METIS by default
REFINEMENTS = 20  # of METIS at every level, 10 by default: up to half a percent fewer rows cross, in the same time
OPTIONS, METIS_OK = 40, 1  # of METIS's interface in C
NO_EDGE_WEIGHTS, NO_VERTEX_WEIGHTS = 1, 2  # flags of the ParHIP format


def kaminpar_installed() -> bool:
    """Whether the package is there."""
    return importlib.util.find_spec("kaminpar") is not None


def cut_graph(
    library: str,
    start: np.ndarray,
    neighbour: np.ndarray,
    parts: int,
    seed: int,
    weights: np.ndarray | None = None,
    *,
    recursive: bool = False,
) -> np.ndarray:
    """The part of every vertex, int32 [V]; the same seed gives the same parts.

    Args:
        library: "metis" or "kaminpar".
        start: int64 [V + 1], undirected neighbour lists.
        neighbour: int32 [A].
        weights: int64 [V], positive, what is balanced; None for one per vertex. METIS also takes [V, W] that are not
            negative, and balances each column.
        recursive: have METIS bisect again and again, so that parts that are near in number are near in the graph;
            KaMinPar's always are.

    Raises:
        InputError: when the library is not installed, or its integers are too small for the graph.

    >>> cut_graph("metis", np.zeros(5, np.int64), np.empty(0, np.int32), 2, 0).tolist()  # nothing to cut
    [0, 0, 1, 1]
    """
    if library == "kaminpar" and not kaminpar_installed():
        raise InputError("kaminpar is not installed; run `pip install 'hongtu[kaminpar]'`, or pass another name")
    num_vertices = len(start) - 1
    if parts < 2 or parts >= num_vertices or len(neighbour) == 0:  # any balanced split will do
        return (np.arange(num_vertices) * min(parts, num_vertices) // max(num_vertices, 1)).astype(np.int32)
    if library == "kaminpar":
        return _kaminpar(start, neighbour, parts, seed, weights)
    return _metis(start, neighbour, parts, seed, weights, recursive)


def _metis(start, neighbour, parts: int, seed: int, weights: np.ndarray | None, recursive: bool) -> np.ndarray:
    try:
        import pymetis
    except ImportError:
        raise InputError(
            "METIS needs pymetis; run `pip install pymetis`, or pass --partitioner range --order input"
        ) from None
    integer = pymetis.zero_copy_dtype()
    if len(neighbour) > np.iinfo(integer).max:
        raise InputError(
            f"METIS: {len(neighbour)} adjacency entries, but this pymetis counts in {integer}; "
            "pass --partitioner range --order clusters"
        )
    start, neighbour = start.astype(integer, copy=False), neighbour.astype(integer, copy=False)
    seed = seed % (2**31 - 1) + 1  # the C library takes the seeds 0 and 1 for the same
    if weights is not None and weights.ndim == 2:
        return _metis_by_columns(start, neighbour, parts, seed, np.ascontiguousarray(weights, dtype=integer))
    found = pymetis.part_graph(
        parts,
        pymetis.CSRAdjacency(start, neighbour),
        vweights=None if weights is None else weights.astype(integer),
        recursive=recursive,
        options=pymetis.Options(seed=seed, niter=REFINEMENTS),
    )
    return np.asarray(found.vertex_part, dtype=np.int32)


def _metis_by_columns(
    start: np.ndarray, neighbour: np.ndarray, parts: int, seed: int, weights: np.ndarray
) -> np.ndarray:
    """By the C function that pymetis brings, whose own call takes one weight of a vertex."""
    from pymetis import _internal

    library = ctypes.CDLL(_internal.__file__)
    if not hasattr(library, "METIS_PartGraphKway"):
        raise InputError(
            f"{_internal.__file__} hides METIS: pip install pymetis==2025.2.2, or pass --partitioner metis"
        )

    def at(array: np.ndarray) -> ctypes.c_void_p:
        return ctypes.c_void_p(array.ctypes.data)

    options = np.empty(OPTIONS, dtype=start.dtype)
    library.METIS_SetDefaultOptions(at(options))
    options[int(_internal.options_indices.SEED)] = seed  # type: ignore[attr-defined]
    vertices, columns, cut, count = np.array([*weights.shape, 0, parts], dtype=start.dtype)[:, None]
    part = np.empty(len(weights), dtype=start.dtype)
    code = library.METIS_PartGraphKway(
        at(vertices), at(columns), at(start), at(neighbour), at(weights), None, None, at(count), None, None,
        at(options), at(cut), at(part),
    )  # fmt: skip
    assert code == METIS_OK, f"METIS: {code}"
    return part.astype(np.int32)


def _kaminpar(start, neighbour, parts: int, seed: int, weights: np.ndarray | None) -> np.ndarray:
    import kaminpar

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

"""What the flags ask to change in edges and features; without flags nothing is changed.

Legend: V vertices, E edges.
"""

from __future__ import annotations

import numpy as np

from hongtu.compiled import compiled
from hongtu.files import Create, in_memory
from hongtu.parallel import parallel_for
from hongtu.preprocess.blocks import vertex_ranges

BLOCK = 1 << 22  # edges looked at in one step


def without_loop(source: np.ndarray, destination: np.ndarray, num_vertices: int) -> np.ndarray:
    """The vertices that have no self-loop, ascending, of the type of ``source``.

    >>> without_loop(np.int32([0, 1, 2]), np.int32([0, 2, 1]), 3).tolist()
    [1, 2]
    """
    lacking = np.ones(num_vertices, dtype=bool)
    for lo in range(0, len(source), BLOCK):
        part = source[lo : lo + BLOCK]
        lacking[part[part == destination[lo : lo + BLOCK]]] = False
    return np.flatnonzero(lacking).astype(source.dtype)


def coalesce(
    in_edge_start: np.ndarray, source: np.ndarray, origin: np.ndarray | None = None, create: Create = in_memory
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """In-edge lists with ascending sources, each once.

    Args:
        in_edge_start, source: the lists; the sources are sorted where they are.
        origin: integers [E] beside the sources, brought into their order; None: there are none.
        create: makes the new lists, "start" and "value".

    Returns:
        the new lists, int64 [V + 1] and int32 [A], and bool [E]: whether a sorted source differs from the one before.

    >>> origin = np.int32([0, 1, 2])
    >>> [array.tolist() for array in (*coalesce(np.array([0, 3]), np.int32([2, 0, 2]), origin), origin)]
    [[0, 2], [0, 2], [True, True, False], [1, 0, 2]]
    """
    first = np.empty(len(source), dtype=np.bool_)
    bounds, kept = vertex_ranges(in_edge_start), np.zeros(len(in_edge_start) - 1, dtype=np.int64)
    origin = np.empty(0, dtype=np.int32) if origin is None else origin
    _sort.each(len(bounds) - 1, bounds, in_edge_start, source, origin, first, kept)
    start = create("start", "int64", in_edge_start.shape)
    start[0] = 0
    np.cumsum(kept, out=start[1:])
    merged = create("value", "int32", (int(start[-1]),))

    def compact(part: int) -> None:
        old, new = (ends[bounds[part : part + 2]] for ends in (in_edge_start, start))
        merged[new[0] : new[1]] = source[old[0] : old[1]][first[old[0] : old[1]]]

    parallel_for(compact, len(bounds) - 1)
    return start, merged, first


def _plain_sort(bounds, in_edge_start, source, origin, first, kept):
    vertices = np.arange(len(in_edge_start) - 1)
    destination = np.repeat(vertices, np.diff(in_edge_start))
    order = np.lexsort((source, destination))
    source[:] = source[order]
    if len(origin):
        origin[:] = origin[order]
    first[:1] = True
    first[1:] = (source[1:] != source[:-1]) | (destination[1:] != destination[:-1])
    kept[:] = np.bincount(destination[first], minlength=len(vertices))


@compiled(plain=_plain_sort)
def _sort(part, bounds, in_edge_start, source, origin, first, kept):
    """Fills ``first``, and ``kept`` with how many of each list are."""
    for v in range(bounds[part], bounds[part + 1]):
        lo, hi = in_edge_start[v], in_edge_start[v + 1]
        if len(origin) > 0:
            order = np.argsort(source[lo:hi], kind="mergesort")  # stable: input order
            origin[lo:hi] = origin[lo:hi][order]
            source[lo:hi] = source[lo:hi][order]
        else:
            source[lo:hi] = np.sort(source[lo:hi])
        for e in range(lo, hi):
            first[e] = e == lo or source[e] != source[e - 1]
            kept[v] += first[e]


def normalize_rows(block: np.ndarray) -> np.ndarray:
    """Each row of float32 [R, F] divided by ``max(1, its sum)``.

    >>> normalize_rows(np.array([[1, 3], [0.25, 0.25]], dtype=np.float32)).tolist()
    [[0.25, 0.75], [0.25, 0.25]]
    """
    return block / block.sum(axis=1, keepdims=True).clip(min=1)

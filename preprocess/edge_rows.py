"""Which edge of the input every edge of the artifact is, and what lies beside edges (features, types) in that order.

Legend: V vertices, E edges of the input, T edges before equal ones are merged (2 E with ``--undirected``, else E),
A edges of the artifact, F columns.
"""

from __future__ import annotations

from collections.abc import Callable

import numba
import numpy as np

from hongtu.errors import InputError
from hongtu.preprocess.blocks import block_rows
from hongtu.preprocess.bucket_sort import Create, group_by_key, in_memory

ADDED = -1  # the origin of a self-loop that --self-loops adds


def sort_origins(
    source: np.ndarray, destination: np.ndarray, num_vertices: int, *, undirected: bool, create: Create = in_memory
) -> tuple[np.ndarray, np.ndarray]:
    """The number in the input of every edge that ``csc.build_csc`` sorts, in its order: start int64 [V + 1] and origin
    int32 [T], int64 where there are too many edges for that. A reverse edge has the origin of its edge.

    >>> start, origin = sort_origins(np.int32([3, 0, 4, 3, 0]), np.int32([1, 2, 1, 0, 4]), 5, undirected=False)
    >>> start.tolist(), origin.tolist()
    ([0, 1, 3, 4, 4, 5], [3, 0, 2, 1, 4])
    """
    dtype = "int32" if len(source) < 2**31 else "int64"
    numbers = np.arange(len(source), dtype=dtype)
    pairs = [(destination, numbers)] + ([(source, numbers)] if undirected else [])
    return group_by_key(pairs, None, num_vertices, create, dtype)[:2]


def group_equal(in_edge_start: np.ndarray, source: np.ndarray, origin: np.ndarray) -> np.ndarray:
    """Bring the origins of each in-edge list into the order in which ``clean.coalesce`` merges its edges.

    Returns:
        bool [T]: whether the edge has another source than the one before it.

    >>> origin = np.int32([0, 1, 2])
    >>> group_equal(np.array([0, 3]), np.int32([2, 0, 2]), origin).tolist(), origin.tolist()
    ([True, True, False], [1, 0, 2])
    """
    first = np.empty(len(source), dtype=np.bool_)
    _group_equal(in_edge_start, source, origin, first)
    return first


def renumber_origins(
    start: np.ndarray, origin: np.ndarray, first: np.ndarray | None, original_id: np.ndarray, in_edge_start: np.ndarray,
    create: Create = in_memory,
) -> tuple[np.ndarray, np.ndarray | None]:  # fmt: skip
    """The same lists in the artifact's order, with ``ADDED`` behind those that got a self-loop.

    Args:
        start, origin, first: of the edges before they are merged; ``first`` None where none are.
        original_id: int32 [V].
        in_edge_start: int64 [V + 1] of the artifact.
        create: makes "origin".

    Returns:
        origins, and int64 [A + 1] where those of each of the artifact's edges start, or None where it has one each.

    >>> renumber_origins(np.array([0, 2, 2]), np.int32([5, 6]), None, np.int32([1, 0]), np.array([0, 1, 3]))[0].tolist()
    [-1, 5, 6]
    """
    merged = np.diff(start) if first is None else _counts(start, first)
    added = np.diff(in_edge_start) - merged[original_id]
    new_start = np.concatenate([[0], np.cumsum(np.diff(start)[original_id] + added)]).astype(np.int64)
    found = create("origin", str(origin.dtype), (int(new_start[-1]),))
    new_first = np.ones(0 if first is None else len(found), dtype=np.bool_)
    none = np.empty(0, dtype=np.bool_)
    _renumber(start, origin, none if first is None else first, original_id, added > 0, new_start, found, new_first)
    group_start = None if first is None else np.append(np.flatnonzero(new_first), len(found))
    return found, group_start


def copy_edge_rows(
    values: np.ndarray,
    origin: np.ndarray,
    group_start: np.ndarray | None,
    into: np.ndarray,
    progress: Callable[[float], None] = lambda share: None,
) -> None:
    """Fill ``into`` with the rows of the input's edges, through a bounded buffer: those of merged edges are summed in
    float64, those of added self-loops are 1 (torch_geometric's ``to_undirected`` and ``add_remaining_self_loops``).

    Args:
        values: [E] or [E, F], perhaps a memory map.
        origin, group_start: of ``renumber_origins``.
        into: [A] or [A, F].

    Raises:
        InputError: when a sum overflows float32.
    """
    step = block_rows(into.nbytes, int(np.prod(into.shape[1:])))
    lo = 0
    while lo < len(into):
        if group_start is None:
            hi = min(lo + step, len(into))
            ids = np.asarray(origin[lo:hi])
        else:
            hi = max(lo + 1, int(np.searchsorted(group_start, group_start[lo] + step, side="right")) - 1)
            ids = np.asarray(origin[group_start[lo] : group_start[hi]])
        rows = np.ones((len(ids), *values.shape[1:]), dtype=into.dtype)
        ascending = np.argsort(ids, kind="stable")  # a file is read from front to back
        ascending = ascending[ids[ascending] != ADDED]
        rows[ascending] = values[ids[ascending]]
        into[lo:hi] = rows if group_start is None else _summed(rows, group_start[lo:hi] - group_start[lo])
        lo = hi
        progress(lo / len(into))


def _summed(rows: np.ndarray, starts: np.ndarray) -> np.ndarray:
    sums = np.add.reduceat(rows, starts, axis=0, dtype=np.float64)
    if np.abs(sums).max(initial=0) > np.finfo(np.float32).max:
        raise InputError("edge_features: the sum over duplicate edges overflows float32; scale the features down")
    return sums.astype(np.float32)


def _counts(start: np.ndarray, first: np.ndarray) -> np.ndarray:
    """int64 [V], how many True each list has."""
    before = np.concatenate([[0], np.cumsum(first)])
    return np.diff(before[start])


@numba.njit(cache=True, parallel=True)
def _group_equal(in_edge_start, source, origin, first):
    for v in numba.prange(len(in_edge_start) - 1):
        lo, hi = in_edge_start[v], in_edge_start[v + 1]
        if lo == hi:
            continue
        order = np.argsort(source[lo:hi], kind="mergesort")  # stable, as coalesce
        origin[lo:hi] = origin[lo:hi][order]
        sources = source[lo:hi][order]
        first[lo] = True
        for k in range(1, hi - lo):
            first[lo + k] = sources[k] != sources[k - 1]


@numba.njit(cache=True, parallel=True)
def _renumber(start, origin, first, original_id, added, new_start, new_origin, new_first):
    for v in numba.prange(len(original_id)):
        lo, at = start[original_id[v]], new_start[v]
        count = start[original_id[v] + 1] - lo
        for k in range(count):
            new_origin[at + k] = origin[lo + k]
            if len(first) > 0:
                new_first[at + k] = first[lo + k]
        if added[v]:
            new_origin[at + count] = -1

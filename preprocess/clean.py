"""What the flags ask to change in edges and features; without flags nothing is changed.

Legend: V vertices, E edges.
"""

from __future__ import annotations

import numba
import numpy as np

from hongtu.errors import InputError
from hongtu.preprocess.bucket_sort import Create, in_memory

Lists = tuple[np.ndarray, np.ndarray, np.ndarray | None]  # in_edge_start int64 [V + 1], source int32, weight float32
NO_WEIGHT = np.empty(0, dtype=np.float32)


def coalesce(
    in_edge_start: np.ndarray, source: np.ndarray, weight: np.ndarray | None, create: Create = in_memory
) -> Lists:
    """In-edge lists with ascending sources, each once; the weights of equal edges are summed in float64.

    The given arrays are used as room to work in.

    Raises:
        InputError: when a sum overflows float32.

    >>> coalesce(np.array([0, 3]), np.int32([2, 0, 2]), np.float32([1, 5, 3]))
    (array([0, 2]), array([0, 2], dtype=int32), array([5., 4.], dtype=float32))
    """
    has_weight = weight is not None
    kept, overflow = _coalesce(in_edge_start, source, weight if has_weight else NO_WEIGHT, has_weight)
    if overflow:
        raise InputError("edge_weight: the sum over duplicate edges overflows float32; scale the weights down")
    return _copied(in_edge_start, kept, source, weight, np.zeros(len(kept), dtype=np.bool_), create)


def add_self_loops(
    in_edge_start: np.ndarray, source: np.ndarray, weight: np.ndarray | None, create: Create = in_memory
) -> Lists:
    """A self-loop of weight 1 after the in-edges of each vertex that has none.

    >>> add_self_loops(np.array([0, 1, 2]), np.int32([0, 0]), None)[:2]
    (array([0, 1, 3]), array([0, 0, 1], dtype=int32))
    """
    lacking = _without_loop(in_edge_start, source)
    return _copied(in_edge_start, np.diff(in_edge_start), source, weight, lacking, create)


def _copied(in_edge_start, kept, source, weight, loop, create) -> Lists:
    """The first ``kept`` edges of every list, and where ``loop`` says so a self-loop after them."""
    start = create("start", "int64", in_edge_start.shape)
    start[0] = 0
    np.cumsum(kept + loop, out=start[1:])
    has_weight = weight is not None
    new_source = create("value", "int32", (int(start[-1]),))
    new_weight = create("weight", "float32", new_source.shape) if has_weight else None
    given, into = (weight, new_weight) if has_weight else (NO_WEIGHT, NO_WEIGHT)
    _copy(in_edge_start, kept, source, given, has_weight, loop, start, new_source, into)
    return start, new_source, new_weight


@numba.njit(cache=True, parallel=True)
def _coalesce(in_edge_start, source, weight, has_weight):
    """Each list sorted and merged at its own front; how many are left of each, and whether a sum overflows."""
    kept = np.zeros(len(in_edge_start) - 1, dtype=np.int64)
    overflow = np.zeros(len(in_edge_start) - 1, dtype=np.bool_)
    largest = np.float64(np.finfo(np.float32).max)
    for v in numba.prange(len(in_edge_start) - 1):
        first, end = in_edge_start[v], in_edge_start[v + 1]
        if first == end:
            continue
        if has_weight:
            order = np.argsort(source[first:end], kind="mergesort")  # stable: sums in input order
            sources, weights = source[first:end][order], weight[first:end][order]
        else:
            sources, weights = np.sort(source[first:end]), weight
        at = first - 1
        total = 0.0
        for k in range(end - first):
            if k == 0 or sources[k] != sources[k - 1]:
                at += 1
                source[at] = sources[k]
                total = 0.0
            if has_weight:
                total += np.float64(weights[k])
                weight[at] = total
                # a sum is complete where the next source is another
                if (k + 1 == end - first or sources[k + 1] != sources[k]) and abs(total) > largest:
                    overflow[v] = True
        kept[v] = at + 1 - first
    return kept, overflow.any()


@numba.njit(cache=True, parallel=True)
def _without_loop(in_edge_start, source):
    lacking = np.ones(len(in_edge_start) - 1, dtype=np.bool_)
    for v in numba.prange(len(in_edge_start) - 1):
        for e in range(in_edge_start[v], in_edge_start[v + 1]):
            if source[e] == v:
                lacking[v] = False
    return lacking


@numba.njit(cache=True, parallel=True)
def _copy(in_edge_start, kept, source, weight, has_weight, loop, start, new_source, new_weight):
    for v in numba.prange(len(kept)):
        for k in range(kept[v]):
            new_source[start[v] + k] = source[in_edge_start[v] + k]
            if has_weight:
                new_weight[start[v] + k] = weight[in_edge_start[v] + k]
        if loop[v]:
            new_source[start[v + 1] - 1] = v
            if has_weight:
                new_weight[start[v + 1] - 1] = 1.0


def normalize_rows(block: np.ndarray) -> np.ndarray:
    """Each row of float32 [R, F] divided by ``max(1, its sum)``.

    >>> normalize_rows(np.array([[1, 3], [0.25, 0.25]], dtype=np.float32)).tolist()
    [[0.25, 0.75], [0.25, 0.25]]
    """
    return block / block.sum(axis=1, keepdims=True).clip(min=1)

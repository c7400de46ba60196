"""Stage 2: what the flags ask to change in edges and features; without flags nothing is changed."""

from __future__ import annotations

import numpy as np

from hongtu.errors import InputError


def clean_edges(
    edges: np.ndarray, edge_weight: np.ndarray | None, num_vertices: int, *, undirected: bool, self_loops: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Source int32 [E'], destination int32 [E'] and weight float32 [E'] (or None).

    ``undirected`` orders the edges by (destination, source); otherwise the input order is kept and added self-loops
    come last.

    >>> s, d, w = clean_edges(np.array([[0, 1, 1], [1, 0, 2]]), None, 3, undirected=True, self_loops=False)
    >>> list(zip(s.tolist(), d.tolist()))
    [(1, 0), (0, 1), (2, 1), (1, 2)]
    """
    source, destination = (np.ascontiguousarray(row, dtype=np.int32) for row in edges)
    weight = None if edge_weight is None else np.ascontiguousarray(edge_weight, dtype=np.float32)
    if undirected:
        source, destination = np.concatenate([source, destination]), np.concatenate([destination, source])
        weight = None if weight is None else np.concatenate([weight, weight])
        source, destination, weight = coalesce(source, destination, weight, num_vertices)
    if self_loops:
        lacking = np.ones(num_vertices, dtype=bool)
        lacking[source[source == destination]] = False
        loops = np.flatnonzero(lacking).astype(np.int32)
        source, destination = np.concatenate([source, loops]), np.concatenate([destination, loops])
        weight = None if weight is None else np.concatenate([weight, np.ones(len(loops), dtype=np.float32)])
    return source, destination, weight


def coalesce(
    source: np.ndarray, destination: np.ndarray, weight: np.ndarray | None, num_vertices: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Edges sorted by (destination, source), each once; the weights of equal edges are summed in float64.

    Raises:
        InputError: when a sum overflows float32.

    >>> coalesce(np.array([2, 0, 2]), np.array([1, 1, 1]), np.array([1.0, 5.0, 3.0]), 3)[2].tolist()
    [5.0, 4.0]
    """
    key = destination.astype(np.int64) * num_vertices + source
    if weight is None:
        key.sort()
        first = _first_of_equal(key)
    else:
        order = np.argsort(key, kind="stable")
        key = key[order]
        first = _first_of_equal(key)
        starts = np.flatnonzero(first)
        sums = np.add.reduceat(weight[order], starts, dtype=np.float64) if len(starts) else np.empty(0)
        if len(sums) and np.abs(sums).max() > np.finfo(np.float32).max:
            raise InputError("edge_weight: the sum over duplicate edges overflows float32; scale the weights down")
        weight = sums.astype(np.float32)
    key = key[first]
    return (key % num_vertices).astype(np.int32), (key // num_vertices).astype(np.int32), weight


def _first_of_equal(key: np.ndarray) -> np.ndarray:
    first = np.ones(len(key), dtype=bool)
    np.not_equal(key[1:], key[:-1], out=first[1:])
    return first


def normalize_rows(block: np.ndarray) -> np.ndarray:
    """Each row of float32 [R, F] divided by ``max(1, its sum)``.

    >>> normalize_rows(np.array([[1, 3], [0.25, 0.25]], dtype=np.float32)).tolist()
    [[0.25, 0.75], [0.25, 0.25]]
    """
    return block / block.sum(axis=1, keepdims=True).clip(min=1)

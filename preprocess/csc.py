"""Stage 3: in-edges grouped by destination, in input order within each (that position is an edge's identity).

Legend: V vertices, E edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np


@dataclass(frozen=True)
class Csc:
    """In-edges of every vertex.

    Attributes:
        in_edge_start: int64 [V + 1].
        source: int32 [E].
        weight: float32 [E] or None.
    """

    in_edge_start: np.ndarray
    source: np.ndarray
    weight: np.ndarray | None


def build_csc(source: np.ndarray, destination: np.ndarray, weight: np.ndarray | None, num_vertices: int) -> Csc:
    """A stable counting sort of the edges by destination.

    >>> # five vertices; edges 3->1, 0->2, 4->1, 3->0, 0->4
    >>> csc = build_csc(np.int32([3, 0, 4, 3, 0]), np.int32([1, 2, 1, 0, 4]), None, 5)
    >>> csc.in_edge_start.tolist(), csc.source.tolist()
    ([0, 1, 3, 4, 4, 5], [3, 3, 4, 0, 0])
    """
    has_weight = weight is not None
    start, sorted_source, sorted_weight = _group(
        source, destination, weight if has_weight else np.empty(0, dtype=np.float32), has_weight, num_vertices
    )
    return Csc(start, sorted_source, sorted_weight if has_weight else None)


def renumber(csc: Csc, original_id: np.ndarray) -> Csc:
    """The same graph where vertex v is what was vertex ``original_id[v]``; each in-edge list keeps its order.

    >>> csc = Csc(np.array([0, 1, 1, 3]), np.int32([2, 0, 1]), None)  # 2->0, 0->2, 1->2
    >>> new = renumber(csc, np.int32([2, 0, 1]))  # the new vertex 0 was vertex 2
    >>> new.in_edge_start.tolist(), new.source.tolist()
    ([0, 2, 3, 3], [1, 2, 0])
    """
    has_weight = csc.weight is not None
    weight = csc.weight if has_weight else np.empty(0, dtype=np.float32)
    start, source, new_weight = _renumber(csc.in_edge_start, csc.source, weight, has_weight, original_id)
    return Csc(start, source, new_weight if has_weight else None)


def degrees(csc: Csc) -> tuple[np.ndarray, np.ndarray]:
    """In-degree and out-degree, int64 [V]."""
    return np.diff(csc.in_edge_start), np.bincount(csc.source, minlength=len(csc.in_edge_start) - 1)


def statistics(csc: Csc) -> dict[str, int]:
    """Counts for the manifest: repeated edges (beyond the first), self-loops, vertices without an edge to another."""
    duplicates, loops, isolated = _statistics(csc.in_edge_start, csc.source)
    return {
        "duplicate_edges": duplicates,
        "self_loops": loops,
        "isolated_vertices": isolated,
        "max_in_degree": int(np.diff(csc.in_edge_start).max()),
    }


@numba.njit(cache=True)
def _group(source, destination, weight, has_weight, num_vertices):
    start = np.zeros(num_vertices + 1, dtype=np.int64)
    for e in range(len(destination)):
        start[destination[e] + 1] += 1
    for v in range(num_vertices):
        start[v + 1] += start[v]
    at = start[:-1].copy()
    sorted_source = np.empty(len(source), dtype=np.int32)
    sorted_weight = np.empty(len(weight), dtype=np.float32)
    for e in range(len(destination)):
        k = at[destination[e]]
        at[destination[e]] += 1
        sorted_source[k] = source[e]
        if has_weight:
            sorted_weight[k] = weight[e]
    return start, sorted_source, sorted_weight


@numba.njit(cache=True)
def _renumber(in_edge_start, source, weight, has_weight, original_id):
    num_vertices = len(original_id)
    new_id = np.empty(num_vertices, dtype=np.int32)
    start = np.zeros(num_vertices + 1, dtype=np.int64)
    for v in range(num_vertices):
        old = original_id[v]
        new_id[old] = v
        start[v + 1] = start[v] + in_edge_start[old + 1] - in_edge_start[old]
    new_source = np.empty(len(source), dtype=np.int32)
    new_weight = np.empty(len(weight), dtype=np.float32)
    for v in range(num_vertices):
        k = start[v]
        for e in range(in_edge_start[original_id[v]], in_edge_start[original_id[v] + 1]):
            new_source[k] = new_id[source[e]]
            if has_weight:
                new_weight[k] = weight[e]
            k += 1
    return start, new_source, new_weight


@numba.njit(cache=True)
def _statistics(in_edge_start, source):
    num_vertices = len(in_edge_start) - 1
    seen_by = np.full(num_vertices, -1, dtype=np.int32)
    linked = np.zeros(num_vertices, dtype=np.bool_)
    duplicates = 0
    loops = 0
    for v in range(num_vertices):
        for e in range(in_edge_start[v], in_edge_start[v + 1]):
            u = source[e]
            if seen_by[u] == v:
                duplicates += 1
            seen_by[u] = v
            if u == v:
                loops += 1
            else:
                linked[u] = True
                linked[v] = True
    return duplicates, loops, num_vertices - linked.sum()

"""The transpose of a weighted sum over the edges of a block, for numpy arrays: see ``hongtu.kernels`` for the legend.

Adding each edge's row to its source's as edges come writes rows at random, one edge at a time. Wide rows are better
added by source: edges are put in the order of their sources first, so that a source's row is written once for four
edges, and what is read at random are only the rows of the block's destinations.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import prange

from hongtu.kernels import balanced_bounds, parallel, parts_for, row_of, source_bounds

WIDE = 32  # columns from which putting edges in order is worth it


def csc_aggregate_transpose(
    indptr: np.ndarray,
    local_source: np.ndarray,
    slot_of_source: np.ndarray,
    weight: np.ndarray,
    mean: bool,
    grad_DF: np.ndarray,
    out_CF: np.ndarray,
    empty: Callable[..., np.ndarray] = np.empty,
) -> None:
    """Adds the gradient of ``csc_aggregate`` to the rows of ``out_CF``, in place; the slots must be unique.

    Args:
        empty: makes the arrays that are needed on the way: 8 bytes per source, 4 per edge, and per edge with a weight
            or a mean another float.
    """
    if not len(local_source):  # nor any source, so that no slots do not mean the identity
        return
    if grad_DF.shape[1] < WIDE:
        add_by_edge(indptr, local_source, slot_of_source, weight, mean, grad_DF, out_CF)
        return
    num_edges, num_src = len(local_source), len(slot_of_source) or len(out_CF)
    start, destination = empty(num_src + 1, np.int64), empty(num_edges, np.int32)
    scale = empty(num_edges if mean or len(weight) else 0, grad_DF.dtype)
    order_by_source(indptr, local_source, weight, mean, start, destination, scale)
    add_by_source(start, destination, slot_of_source, scale, grad_DF, out_CF)


csc_aggregate_transpose.takes_empty = True  # type: ignore[attr-defined]


@parallel
def add_by_edge(indptr, local_source, slot_of_source, weight, mean, grad_DF, out_CF, threads):
    """The transpose, edge by edge: a thread owns sources, and passes over the edges of others."""
    num_dst, width = grad_DF.shape
    bounds = source_bounds(local_source, width, threads)
    mapped, weighted = len(slot_of_source) > 0, len(weight) > 0
    for part in prange(len(bounds) - 1):
        lo, hi = bounds[part], bounds[part + 1]
        for d in range(num_dst):
            begin, end = indptr[d], indptr[d + 1]
            scale = grad_DF.dtype.type(1)
            if mean and end > begin:
                scale = scale / grad_DF.dtype.type(end - begin)
            for e in range(begin, end):
                if lo <= local_source[e] < hi:
                    row = row_of(local_source, slot_of_source, mapped, e)
                    w = scale * weight[e] if weighted else scale
                    for f in range(width):
                        out_CF[row, f] += w * grad_DF[d, f]


@parallel
def order_by_source(indptr, local_source, weight, mean, start, destination, scale, threads):
    """The edges in the order of their sources, those of one source as they come.

    Overwrites ``start`` int64 [S + 1], where each source's edges begin, ``destination`` int32 [E], and unless it is
    of length 0 ``scale`` [E], what an edge's row is multiplied with.
    """
    num_src, one = len(start) - 1, scale.dtype.type(1)
    bounds = np.minimum(source_bounds(local_source, WIDE, threads), num_src)
    weighted, scaled = len(weight) > 0, len(scale) > 0
    start[0] = 0
    for part in prange(len(bounds) - 1):
        lo = bounds[part]
        count = np.uint32(bounds[part + 1] - lo)  # a source below the range wraps around, beyond it
        first = np.int64(0)
        start[lo + 1 : bounds[part + 1] + 1] = 0
        for e in range(len(local_source)):
            k = np.uint32(local_source[e] - lo)
            if k < count:
                start[lo + 1 + k] += 1
            first += local_source[e] < lo
        for source in range(lo, bounds[part + 1]):
            degree = start[source + 1]
            start[source + 1] = first  # moves on with every edge, and so ends where the next source begins
            first += degree
        for d in range(len(indptr) - 1):
            of_mean = one
            if mean and indptr[d + 1] > indptr[d]:
                of_mean = one / scale.dtype.type(indptr[d + 1] - indptr[d])
            for e in range(indptr[d], indptr[d + 1]):
                k = np.uint32(local_source[e] - lo)
                if k < count:
                    at = start[lo + 1 + k]
                    start[lo + 1 + k] += 1
                    destination[at] = d
                    if scaled:
                        scale[at] = of_mean * weight[e] if weighted else of_mean


@parallel
def add_by_source(start, destination, slot_of_source, scale, grad_DF, out_CF, threads):
    """The transpose, source by source, for edges in that order."""
    num_src, width = len(start) - 1, grad_DF.shape[1]
    parts = parts_for((len(destination) + num_src) * width, threads)
    bounds = balanced_bounds(start, parts)
    mapped, scaled = len(slot_of_source) > 0, len(scale) > 0
    for part in prange(parts):
        for source in range(bounds[part], bounds[part + 1]):
            row = np.uint64(slot_of_source[source]) if mapped else np.uint64(source)
            e, end = start[source], start[source + 1]
            while e + 4 <= end:  # four edges at once: a quarter of the traffic to the output row
                d0, d1 = np.uint64(destination[e]), np.uint64(destination[e + 1])
                d2, d3 = np.uint64(destination[e + 2]), np.uint64(destination[e + 3])
                if scaled:
                    w0, w1, w2, w3 = scale[e], scale[e + 1], scale[e + 2], scale[e + 3]
                    for f in range(width):
                        out_CF[row, f] += (w0 * grad_DF[d0, f] + w1 * grad_DF[d1, f]) + (
                            w2 * grad_DF[d2, f] + w3 * grad_DF[d3, f]
                        )
                else:
                    for f in range(width):
                        out_CF[row, f] += (grad_DF[d0, f] + grad_DF[d1, f]) + (grad_DF[d2, f] + grad_DF[d3, f])
                e += 4
            while e < end:
                d = np.uint64(destination[e])
                w = scale[e] if scaled else grad_DF.dtype.type(1)
                for f in range(width):
                    out_CF[row, f] += w * grad_DF[d, f]
                e += 1

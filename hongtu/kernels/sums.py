"""Numba kernels of one bipartite CSC block, for numpy arrays.

Legend: D destinations, S sources, C rows of a cache (S or more), E edges, F features.
``indptr`` is int64 [D + 1]; ``local_source`` int32 [E] is the position of an edge's source among the S sources, and
``slot_of_source`` (int32 or int64 [S]) the row of that source in the cache; an array of length 0 means "none":
the identity for slots, ones for weights. Floats are float32 or float64, all of one dtype, and
every array is C-contiguous. Every kernel is deterministic, whatever the thread count: a thread owns destinations or
sources, so the edges of one sum are always added in one order. Each has a plain twin of the same name in
``reference``. Unsigned column indices spare numba's wrap-around check, which keeps LLVM from vectorising.

The transpose of a weighted sum: adding each edge's row to its source's as edges come writes rows at random, one edge at
a time. Wide rows are better added by source: edges are put in the order of their sources first, so that a source's row
is written once for four edges, and what is read at random are only the rows of the block's destinations.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hongtu.compiled import compiled
from hongtu.kernels.parts import balanced_bounds, by_destination, by_row, by_source, parts_for

WIDE = 16  # columns from which putting edges in order is worth it
RANGES = 2  # of destinations whose edges are put in order at once; each more takes 4 bytes a source
PICKED = 64  # edges that are looked at together


@compiled(inline="always")
def row_of(local_source, slot_of_source, mapped, e):
    """The row of an edge's source."""
    source = np.uint64(local_source[e])
    return np.uint64(slot_of_source[source]) if mapped else source


@by_destination
def csc_aggregate(part, bounds, indptr, local_source, slot_of_source, weight, mean, rows_CF, out_DF):
    """out[d] = sum over in-edges e of d of weight[e] * rows[slot_of_source[local_source[e]]]; overwrites ``out``.

    ``mean`` divides by the number of in-edges (not of weights); a destination without any gets 0.
    """
    width = out_DF.shape[1]
    mapped, weighted = len(slot_of_source) > 0, len(weight) > 0
    for d in range(bounds[part], bounds[part + 1]):
        e, end = indptr[d], indptr[d + 1]
        count = rows_CF.dtype.type(max(1, end - e))
        for f in range(width):
            out_DF[d, f] = 0
        while e + 4 <= end:  # four edges at once: a quarter of the traffic to the output row
            r0 = row_of(local_source, slot_of_source, mapped, e)
            r1 = row_of(local_source, slot_of_source, mapped, e + 1)
            r2 = row_of(local_source, slot_of_source, mapped, e + 2)
            r3 = row_of(local_source, slot_of_source, mapped, e + 3)
            if weighted:
                w0, w1, w2, w3 = weight[e], weight[e + 1], weight[e + 2], weight[e + 3]
                for f in range(width):
                    out_DF[d, f] += (w0 * rows_CF[r0, f] + w1 * rows_CF[r1, f]) + (
                        w2 * rows_CF[r2, f] + w3 * rows_CF[r3, f]
                    )
            else:
                for f in range(width):
                    out_DF[d, f] += (rows_CF[r0, f] + rows_CF[r1, f]) + (rows_CF[r2, f] + rows_CF[r3, f])
            e += 4
        while e < end:
            row = row_of(local_source, slot_of_source, mapped, e)
            w = weight[e] if weighted else rows_CF.dtype.type(1)
            for f in range(width):
                out_DF[d, f] += w * rows_CF[row, f]
            e += 1
        if mean:
            for f in range(width):
                out_DF[d, f] /= count


@by_destination
def segment_sum(part, bounds, indptr, x_EF, out_DF):
    """out[d] = sum of the rows of d's in-edges; overwrites ``out``."""
    width = out_DF.shape[1]
    for d in range(bounds[part], bounds[part + 1]):
        for f in range(width):
            out_DF[d, f] = 0
        for e in range(indptr[d], indptr[d + 1]):
            for f in range(width):
                out_DF[d, f] += x_EF[e, f]


@by_destination
def expand_rows(part, bounds, indptr, x_DF, out_EF):
    """out[e] = x[destination of e]: the transpose of ``segment_sum``."""
    width = out_EF.shape[1]
    for d in range(bounds[part], bounds[part + 1]):
        for e in range(indptr[d], indptr[d + 1]):
            for f in range(width):
                out_EF[e, f] = x_DF[d, f]


@by_row
def gather_rows(part, bounds, src, index, out):
    """out[k] = src[index[k]]; ``index`` int32 or int64."""
    width = out.shape[1]
    for k in range(bounds[part], bounds[part + 1]):
        row = np.int64(index[k])
        for f in range(width):
            out[k, f] = src[row, f]


@by_row
def scatter_add_rows(part, bounds, dst, index_unique, src):
    """dst[index[k]] += src[k]; the indices must be unique."""
    width = src.shape[1]
    for k in range(bounds[part], bounds[part + 1]):
        row = np.int64(index_unique[k])
        for f in range(width):
            dst[row, f] += src[k, f]


@by_source
def scatter_add_edges(part, bounds, local_source, src_EF, out_SF):
    """out[local_source[e]] += src[e]; the indices may repeat."""
    width = src_EF.shape[1]
    lo, hi = bounds[part], bounds[part + 1]
    for e in range(len(local_source)):
        if lo <= local_source[e] < hi:
            row = np.uint64(local_source[e])
            for f in range(width):
                out_SF[row, f] += src_EF[e, f]


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
    counter = np.int32 if num_edges <= np.iinfo(np.int32).max else np.int64
    next_RS = empty(RANGES * (num_src + 1), counter).reshape(RANGES, num_src + 1)
    destination = empty(num_edges, np.int32)
    scale = empty(num_edges if mean or len(weight) else 0, grad_DF.dtype)
    order_by_source(indptr, local_source, weight, mean, next_RS, destination, scale)
    add_by_source(next_RS[-1], destination, slot_of_source, scale, grad_DF, out_CF)


csc_aggregate_transpose.takes_empty = True  # type: ignore[attr-defined]


@compiled
def pick_edges(local_source, e, end, lo, hi, edge_B):
    """Sets ``edge_B`` int64 [B] to those of up to B edges from ``e`` on whose sources are in [lo, hi); returns how many
    they are, and the edge behind the last one looked at."""
    count, end = np.uint64(0), min(end, e + len(edge_B))
    while e < end:
        edge_B[count] = e  # stays if it counts
        source = local_source[e]
        count += np.uint64((source >= lo) & (source < hi))
        e += 1
    return count, e


@by_source
def add_by_edge(part, bounds, indptr, local_source, slot_of_source, weight, mean, grad_DF, out_CF):
    """The transpose, edge by edge: a thread owns sources, and passes over the edges of others."""
    num_dst, width = grad_DF.shape
    mapped, weighted = len(slot_of_source) > 0, len(weight) > 0
    alone = len(bounds) == 2
    lo, hi = bounds[part], bounds[part + 1]
    edge_B = np.empty(PICKED, np.int64)
    for d in range(num_dst):
        e, end = indptr[d], indptr[d + 1]
        scale = grad_DF.dtype.type(1)
        if mean and end > e:
            scale = scale / grad_DF.dtype.type(end - e)
        while e < end:
            if alone:
                count, edge_B[0], e = np.uint64(1), e, e + 1
            else:
                count, e = pick_edges(local_source, e, end, lo, hi, edge_B)
            for k in range(count):
                edge = edge_B[k]
                row = row_of(local_source, slot_of_source, mapped, edge)
                w = scale * weight[edge] if weighted else scale
                for f in range(width):
                    out_CF[row, f] += w * grad_DF[d, f]


def order_by_source(
    indptr: np.ndarray,
    local_source: np.ndarray,
    weight: np.ndarray,
    mean: bool,
    next_RS: np.ndarray,
    destination: np.ndarray,
    scale: np.ndarray,
) -> None:
    """The edges in the order of their sources, those of one source as they come: a counting sort in up to R ranges of
    destinations at once, so that no thread looks at another's edges.

    Overwrites ``next_RS`` [R, S + 1], the last row of which ends as where each source's edges begin, ``destination``
    int32 [E], and unless it is of length 0 ``scale`` [E], what an edge's row is multiplied with.
    """
    ranges = min(len(next_RS), parts_for(len(local_source) * WIDE))
    bounds, at_RS = balanced_bounds(indptr, ranges), next_RS[len(next_RS) - ranges :]
    count_sources.each(ranges, bounds, indptr, local_source, at_RS)
    place_ranges(at_RS)
    place_edges.each(ranges, bounds, indptr, local_source, weight, mean, at_RS, destination, scale)


@compiled
def count_sources(part, bounds, indptr, local_source, at_RS):
    """The edges of each source, one behind its place, from a range of destinations."""
    for source in range(at_RS.shape[1]):
        at_RS[part, source] = 0
    for e in range(indptr[bounds[part]], indptr[bounds[part + 1]]):
        at_RS[part, np.uint64(local_source[e]) + np.uint64(1)] += 1


@compiled
def place_ranges(at_RS):
    """Of the edges of each range and source, where the first goes."""
    ranges, first = at_RS.shape[0], 0
    for source in range(1, at_RS.shape[1]):
        for part in range(ranges):
            count = at_RS[part, source]
            at_RS[part, source] = first
            first += count


@compiled
def place_edges(part, bounds, indptr, local_source, weight, mean, at_RS, destination, scale):
    """The edges of a range of destinations; each source's place ends as where the next range's or source's begin."""
    one, weighted, scaled = scale.dtype.type(1), len(weight) > 0, len(scale) > 0
    for d in range(bounds[part], bounds[part + 1]):
        begin, end = indptr[d], indptr[d + 1]
        of_mean = one / scale.dtype.type(end - begin) if mean and end > begin else one
        for e in range(begin, end):
            source = np.uint64(local_source[e]) + np.uint64(1)
            at = np.uint64(at_RS[part, source])
            at_RS[part, source] += 1
            destination[at] = d
            if scaled:
                scale[at] = of_mean * weight[e] if weighted else of_mean


@by_destination
def add_by_source(part, bounds, start, destination, slot_of_source, scale, grad_DF, out_CF):
    """The transpose, source by source, for edges in that order."""
    width = grad_DF.shape[1]
    mapped, scaled = len(slot_of_source) > 0, len(scale) > 0
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

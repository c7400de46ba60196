"""Numba kernels of one bipartite CSC block, for numpy arrays.

Legend: D destinations, S sources, C rows of a cache (S or more), E edges, F features.
``indptr`` is int64 [D + 1]; ``local_source`` int32 [E] is the position of an edge's source among the S sources, and
``slot_of_source`` (int32 or int64 [S]) the row of that source in the cache; an array of length 0 means "none":
the identity for slots, ones for weights. Floats are float32 or float64, all of one dtype, and
every array is C-contiguous. Every kernel is deterministic, whatever the thread count: a thread owns destinations or
sources, so the edges of one sum are always added in one order. Each has a plain twin of the same name in
``reference``. Unsigned column indices spare numba's wrap-around check, which keeps LLVM from vectorising.
"""

from __future__ import annotations

import numpy as np

from hongtu.compiled import compiled
from hongtu.kernels.parts import by_destination, by_row, by_source


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

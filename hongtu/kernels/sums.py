"""Numba kernels of one bipartite CSC block, for numpy arrays.

Legend: D destinations, S sources, C rows of a cache (S or more), E edges, F features.
``indptr`` is int64 [D + 1]; ``local_source`` int32 [E] is the position of an edge's source among the S sources, and
``slot_of_source`` (int32 or int64 [S]) the row of that source in the cache; an array of length 0 means "none":
the identity for slots, ones for weights. Floats are float32 or float64, all of one dtype, and
every array is C-contiguous. Every kernel is deterministic, whatever the thread count: a thread owns destinations or
sources, so the edges of one sum are always added in one order. Each has a plain twin of the same name in
``reference``. Unsigned column indices spare numba's wrap-around check, which keeps LLVM from vectorising.

The kernels are parallel: call them from one Python thread at a time (numba's default threading layer aborts else).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import numpy as np

from hongtu.compiled import compiled, num_threads, prange

_REASSOCIATE = {"reassoc", "nsz"}  # lets sums vectorise; infinities and NaN keep their meaning
SAMPLE_PER_PART = 256  # edges looked at to balance the sources that threads own


def parallel(function: Callable[..., None]) -> Callable[..., None]:
    """Compile a kernel; its last argument, the thread count, is supplied here (numba could not cache it inside).

    The compiled function itself, with that argument, is ``.kernel``.
    """
    kernel = compiled(function, parallel=True, fastmath=_REASSOCIATE)

    @wraps(function)
    def call(*arrays) -> None:
        kernel(*arrays, num_threads())

    call.kernel = kernel  # type: ignore[attr-defined]
    return call


@compiled
def balanced_bounds(indptr, parts):
    """int64 [parts + 1]: ranges of destinations of about equal work (edges + 1 per destination)."""
    num_dst = len(indptr) - 1
    bounds = np.zeros(parts + 1, dtype=np.int64)
    total = indptr[num_dst] - indptr[0] + num_dst
    for k in range(1, parts):
        goal = total * k // parts
        lo, hi = bounds[k - 1], num_dst
        while lo < hi:
            middle = (lo + hi) // 2
            if indptr[middle] - indptr[0] + middle < goal:
                lo = middle + 1
            else:
                hi = middle
        bounds[k] = lo
    bounds[parts] = num_dst
    return bounds


@compiled
def parts_for(work, threads):
    """Number of ranges for about ``work`` float operations: 4 per thread, fewer when there is little to do."""
    return max(1, min(4 * threads, work // 8192))


@compiled
def source_bounds(local_source, width, threads):
    """int64 [parts + 1]: ranges of sources of about equal edges, judged by an even sample of the edges.

    Every part reads all of ``local_source``, so narrow rows get few.
    """
    num_edges = len(local_source)
    parts = max(1, min(threads, (width + 3) // 4, num_edges * width // 8192))
    bounds = np.zeros(parts + 1, dtype=np.int64)
    bounds[parts] = np.iinfo(np.int64).max
    if parts > 1:
        count = min(num_edges, parts * SAMPLE_PER_PART)
        sample = np.empty(count, dtype=np.int32)
        for k in range(count):
            sample[k] = local_source[num_edges * k // count]
        sample.sort()
        for part in range(1, parts):
            bounds[part] = sample[count * part // parts]
    return bounds


@compiled
def row_of(local_source, slot_of_source, mapped, e):
    """The row of an edge's source."""
    source = np.uint64(local_source[e])
    return np.uint64(slot_of_source[source]) if mapped else source


@parallel
def csc_aggregate(indptr, local_source, slot_of_source, weight, mean, rows_CF, out_DF, threads):
    """out[d] = sum over in-edges e of d of weight[e] * rows[slot_of_source[local_source[e]]]; overwrites ``out``.

    ``mean`` divides by the number of in-edges (not of weights); a destination without any gets 0.
    """
    width = out_DF.shape[1]
    parts = parts_for((len(local_source) + out_DF.shape[0]) * width, threads)
    bounds = balanced_bounds(indptr, parts)
    mapped, weighted = len(slot_of_source) > 0, len(weight) > 0
    for part in prange(parts):
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


@parallel
def segment_sum(indptr, x_EF, out_DF, threads):
    """out[d] = sum of the rows of d's in-edges; overwrites ``out``."""
    width = out_DF.shape[1]
    parts = parts_for((x_EF.shape[0] + out_DF.shape[0]) * width, threads)
    bounds = balanced_bounds(indptr, parts)
    for part in prange(parts):
        for d in range(bounds[part], bounds[part + 1]):
            for f in range(width):
                out_DF[d, f] = 0
            for e in range(indptr[d], indptr[d + 1]):
                for f in range(width):
                    out_DF[d, f] += x_EF[e, f]


@parallel
def expand_rows(indptr, x_DF, out_EF, threads):
    """out[e] = x[destination of e]: the transpose of ``segment_sum``."""
    width = out_EF.shape[1]
    parts = parts_for((out_EF.shape[0] + x_DF.shape[0]) * width, threads)
    bounds = balanced_bounds(indptr, parts)
    for part in prange(parts):
        for d in range(bounds[part], bounds[part + 1]):
            for e in range(indptr[d], indptr[d + 1]):
                for f in range(width):
                    out_EF[e, f] = x_DF[d, f]


@parallel
def gather_rows(src, index, out, threads):
    """out[k] = src[index[k]]; ``index`` int32 or int64."""
    count, width = out.shape
    parts = parts_for(count * width, threads)
    for part in prange(parts):
        for k in range(count * part // parts, count * (part + 1) // parts):
            row = np.int64(index[k])
            for f in range(width):
                out[k, f] = src[row, f]


@parallel
def scatter_add_rows(dst, index_unique, src, threads):
    """dst[index[k]] += src[k]; the indices must be unique."""
    count, width = src.shape
    parts = parts_for(count * width, threads)
    for part in prange(parts):
        for k in range(count * part // parts, count * (part + 1) // parts):
            row = np.int64(index_unique[k])
            for f in range(width):
                dst[row, f] += src[k, f]


@parallel
def scatter_add_edges(local_source, src_EF, out_SF, threads):
    """out[local_source[e]] += src[e]; the indices may repeat."""
    width = src_EF.shape[1]
    bounds = source_bounds(local_source, width, threads)
    for part in prange(len(bounds) - 1):
        lo, hi = bounds[part], bounds[part + 1]
        for e in range(len(local_source)):
            if lo <= local_source[e] < hi:
                row = np.uint64(local_source[e])
                for f in range(width):
                    out_SF[row, f] += src_EF[e, f]

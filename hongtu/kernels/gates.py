"""Numba kernels of gates over one bipartite CSC block; the conventions are those of ``hongtu.kernels.sums``.

Legend: D destinations, C cache rows, F features. An edge takes an exponential per feature; they are taken
for several edges at once, so that few are left over where vector instructions end.
"""

from __future__ import annotations

import numpy as np

from hongtu.compiled import compiled
from hongtu.kernels.exponential import sigmoid_in_place
from hongtu.kernels.parts import by_destination, by_source

EDGES = 16  # whose gates are taken at once
EVERY = np.iinfo(np.int32).max  # more than any source


@compiled
def next_gates(local_source, e, end, lo, hi, key_F, rows_C2F, row_of_B, gate_BF):
    """sigmoid(key + query) of the next edges from ``e`` on whose sources are in [lo, hi): sets their rows and their
    gates, as many as there is room for; returns how many, and the edge behind them."""
    count, width = 0, np.uint64(len(key_F))
    while e < end and count < len(row_of_B):
        if lo <= local_source[e] < hi:
            row, first = np.uint64(local_source[e]), np.uint64(count) * width
            row_of_B[count] = row
            for f in range(width):
                gate_BF[first + f] = key_F[f] + rows_C2F[row, f]
            count += 1
        e += 1
    sigmoid_in_place(gate_BF[: count * len(key_F)])
    return count, e


def gated_sum(indptr, local_source, key_DF, rows_C2F, out_DF):
    """out[d] = sum over in-edges of sigmoid(key[d] + query) * value; a source row is [query | value]."""
    sum_gates(indptr, local_source, key_DF, rows_C2F, key_DF[:0], out_DF)


def gated_sum_key_gradient(indptr, local_source, key_DF, rows_C2F, grad_DF, out_DF):
    """Gradient of ``gated_sum`` with respect to the keys; overwrites ``out``."""
    sum_gates(indptr, local_source, key_DF, rows_C2F, grad_DF, out_DF)


@by_destination(cost=8)
def sum_gates(part, bounds, indptr, local_source, key_DF, rows_C2F, grad_DF, out_DF):
    """Either: with a gradient, the derivatives of the gates in their place, and their sum times it."""
    width, one, slopes = np.uint64(out_DF.shape[1]), out_DF.dtype.type(1), len(grad_DF) > 0
    row_of_B, gate_BF = np.empty(EDGES, np.uint64), np.empty(EDGES * out_DF.shape[1], out_DF.dtype)
    for d in range(bounds[part], bounds[part + 1]):
        for f in range(width):
            out_DF[d, f] = 0
        e, end = indptr[d], indptr[d + 1]
        while e < end:
            count, e = next_gates(local_source, e, end, 0, EVERY, key_DF[d], rows_C2F, row_of_B, gate_BF)
            for k in range(count):
                row, first = row_of_B[k], np.uint64(k) * width
                for f in range(width):
                    gate = gate_BF[first + f]
                    out_DF[d, f] += (gate * (one - gate) if slopes else gate) * rows_C2F[row, width + f]
        if slopes:
            for f in range(width):
                out_DF[d, f] *= grad_DF[d, f]


@by_source(cost=8)
def gated_sum_transpose(part, bounds, indptr, local_source, key_DF, rows_C2F, grad_DF, out_C2F):
    """Adds the gradient of ``gated_sum`` with respect to the source rows to ``out_C2F``, in place."""
    width, one = np.uint64(grad_DF.shape[1]), grad_DF.dtype.type(1)
    lo, hi = bounds[part], bounds[part + 1]
    row_of_B, gate_BF = np.empty(EDGES, np.uint64), np.empty(EDGES * grad_DF.shape[1], grad_DF.dtype)
    for d in range(grad_DF.shape[0]):
        e, end = indptr[d], indptr[d + 1]
        while e < end:
            count, e = next_gates(local_source, e, end, lo, hi, key_DF[d], rows_C2F, row_of_B, gate_BF)
            for k in range(count):
                row, first = row_of_B[k], np.uint64(k) * width
                for f in range(width):
                    gate = gate_BF[first + f]
                    change = grad_DF[d, f] * gate
                    out_C2F[row, f] += change * (one - gate) * rows_C2F[row, width + f]
                    out_C2F[row, width + f] += change

"""Numba kernels of gates and of reductions that are not linear; the conventions are those of ``hongtu.kernels.sums``.

Legend: D destinations, S sources, C cache rows, E edges, F features. ``weight`` of length 0 means ones; ``largest``
asks for the maximum, else the minimum. What an edge brings is weight[e] * rows[source of e]. A gate takes an
exponential per edge and feature; they are taken for several edges at once, so that few are left over where vector
instructions end.
"""

from __future__ import annotations

import numpy as np

from hongtu.compiled import compiled
from hongtu.kernels.exponential import sigmoid_in_place
from hongtu.kernels.parts import by_destination, by_source

EDGES = 16  # whose gates are taken at once
EVERY = np.iinfo(np.int32).max  # more than any source


@by_destination
def csc_extremum(part, bounds, indptr, local_source, weight, largest, rows_SF, out_DF):
    """out[d] = the largest (or smallest) of what d's in-edges bring, column by column; overwrites ``out``.

    0 for a destination without in-edges, NaN where any of them brings NaN.
    """
    width, one = out_DF.shape[1], rows_SF.dtype.type(1)
    weighted = len(weight) > 0
    for d in range(bounds[part], bounds[part + 1]):
        begin, end = indptr[d], indptr[d + 1]
        if begin == end:
            for f in range(width):
                out_DF[d, f] = 0
            continue
        row, w = np.uint64(local_source[begin]), weight[begin] if weighted else one
        for f in range(width):
            out_DF[d, f] = w * rows_SF[row, f]
        for e in range(begin + 1, end):
            row, w = np.uint64(local_source[e]), weight[e] if weighted else one
            for f in range(width):
                value, best = w * rows_SF[row, f], out_DF[d, f]
                better = value > best if largest else value < best
                out_DF[d, f] = value if better or value != value else best


@by_destination
def csc_extremum_shares(part, bounds, indptr, local_source, weight, rows_SF, out_DF, grad_DF, shares_DF):
    """shares[d] = grad[d] over the number of edges that bring ``out``; overwrites ``shares``.

    As in torch's ``scatter_reduce``, by which torch_geometric computes it on the CPU, an extremum of 0 counts one more.
    """
    width, one = out_DF.shape[1], rows_SF.dtype.type(1)
    weighted = len(weight) > 0
    for d in range(bounds[part], bounds[part + 1]):
        for f in range(width):
            shares_DF[d, f] = 1 if out_DF[d, f] == 0 else 0
        for e in range(indptr[d], indptr[d + 1]):
            row, w = np.uint64(local_source[e]), weight[e] if weighted else one
            for f in range(width):
                shares_DF[d, f] += one if w * rows_SF[row, f] == out_DF[d, f] else 0
        for f in range(width):
            shares_DF[d, f] = grad_DF[d, f] / max(shares_DF[d, f], one)  # none: the extremum is NaN


@by_source
def csc_extremum_transpose(part, bounds, indptr, local_source, weight, rows_SF, out_DF, shares_DF, grad_SF):
    """Adds the shares of each destination to the gradients of the rows that brought its extremum, in place."""
    width, one = out_DF.shape[1], rows_SF.dtype.type(1)
    weighted = len(weight) > 0
    lo, hi = bounds[part], bounds[part + 1]
    for d in range(out_DF.shape[0]):
        for e in range(indptr[d], indptr[d + 1]):
            if lo <= local_source[e] < hi:
                row, w = np.uint64(local_source[e]), weight[e] if weighted else one
                for f in range(width):
                    if w * rows_SF[row, f] == out_DF[d, f]:
                        grad_SF[row, f] += w * shares_DF[d, f]


@by_destination(cost=8)
def csc_softmax_sum(part, bounds, indptr, local_source, t_F, rows_SF, out_DF, highest_DF, total_DF):
    """out[d] = sum over in-edges of softmax(t * row) * row, column by column; overwrites ``out``, 0 without in-edges.

    ``highest`` (of t * row) and ``total`` (of exp(t * row - highest)) are what backward needs; overwritten, too.
    """
    width = out_DF.shape[1]
    for d in range(bounds[part], bounds[part + 1]):
        begin, end = indptr[d], indptr[d + 1]
        for f in range(width):
            out_DF[d, f], total_DF[d, f] = 0, 0
            highest_DF[d, f] = -np.inf if begin < end else 0
        for e in range(begin, end):
            row = np.uint64(local_source[e])
            for f in range(width):
                highest_DF[d, f] = max(highest_DF[d, f], t_F[f] * rows_SF[row, f])
        for e in range(begin, end):
            row = np.uint64(local_source[e])
            for f in range(width):
                share = np.exp(t_F[f] * rows_SF[row, f] - highest_DF[d, f])
                total_DF[d, f] += share
                out_DF[d, f] += share * rows_SF[row, f]
        if begin < end:
            for f in range(width):
                out_DF[d, f] /= total_DF[d, f]


@by_destination(cost=8)
def csc_softmax_sum_t_gradient(
    part, bounds, indptr, local_source, t_F, rows_SF, out_DF, highest_DF, total_DF, grad_DF, grad_t_DF
):
    """What each destination adds to the gradient of ``t``; overwrites ``grad_t``."""
    width = out_DF.shape[1]
    for d in range(bounds[part], bounds[part + 1]):
        for f in range(width):
            grad_t_DF[d, f] = 0
        for e in range(indptr[d], indptr[d + 1]):
            row = np.uint64(local_source[e])
            for f in range(width):
                x = rows_SF[row, f]
                share = np.exp(t_F[f] * x - highest_DF[d, f]) / total_DF[d, f]
                grad_t_DF[d, f] += grad_DF[d, f] * share * x * (x - out_DF[d, f])


@by_source(cost=8)
def csc_softmax_sum_transpose(
    part, bounds, indptr, local_source, t_F, rows_SF, out_DF, highest_DF, total_DF, grad_DF, semi_grad, grad_SF
):
    """Adds the gradient of ``csc_softmax_sum`` with respect to the rows to ``grad_SF``, in place; with ``semi_grad``
    as if the shares were constants."""
    width, one = out_DF.shape[1], out_DF.dtype.type(1)
    lo, hi = bounds[part], bounds[part + 1]
    for d in range(out_DF.shape[0]):
        for e in range(indptr[d], indptr[d + 1]):
            if lo <= local_source[e] < hi:
                row = np.uint64(local_source[e])
                for f in range(width):
                    x = rows_SF[row, f]
                    share = np.exp(t_F[f] * x - highest_DF[d, f]) / total_DF[d, f]
                    slope = one if semi_grad else one + t_F[f] * (x - out_DF[d, f])
                    grad_SF[row, f] += grad_DF[d, f] * share * slope


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

"""Numba kernels of graph attention (Velickovic et al.) in few sweeps over the edges; conventions as in
``hongtu.kernels.sums``. The logit of an edge is leaky_relu(source's + destination's): all that a sweep needs of it lies
in the rows that it reads anyway, so nothing but shares [E, H] is made, and they do not stay.

Legend: D destinations, S sources, E edges, H heads, F = H * K features, X = F + H columns: features, then logits. With
``own`` every destination has a self-loop; of length 0: none has. Edges that take no part have the share 0.
"""

from __future__ import annotations

import numpy as np

from hongtu.kernels.parts import by_destination, by_row, by_source


@by_destination(cost=4)
def gat_logits(part, bounds, indptr, local_source, query_DH, key_SH, own_DX, slope, own_logits_DH, logits_EH):
    """The logits of every edge and, in ``own_logits``, of every loop, for ``segment_softmax``. The sources' lie side by
    side in ``key``: in the rows, each would be a walk to memory."""
    heads = query_DH.shape[1]
    width, own = own_DX.shape[1] - heads, len(own_DX) > 0
    for d in range(bounds[part], bounds[part + 1]):
        for h in range(heads if own else 0):
            x = own_DX[d, width + h] + query_DH[d, h]
            own_logits_DH[d, h] = x if x > 0 else slope * x
        for e in range(indptr[d], indptr[d + 1]):
            row = np.uint64(local_source[e])
            for h in range(heads):
                x = key_SH[row, h] + query_DH[d, h]
                logits_EH[e, h] = x if x > 0 else slope * x


@by_row(rows="own_alpha_DH")
def gat_add_own(part, bounds, own_alpha_DH, own_DX, out_DF):
    """Adds every destination's own row times its share to ``out``, in place."""
    heads, width = own_alpha_DH.shape[1], out_DF.shape[1]
    channels = width // heads
    for d in range(bounds[part], bounds[part + 1]):
        for h in range(heads):
            a, first = own_alpha_DH[d, h], np.uint64(h * channels)
            for k in range(channels):
                f = first + np.uint64(k)
                out_DF[d, f] += a * own_DX[d, f]


@by_row(cost=3, rows="inner_DH")
def gat_own_gradients(
    part, bounds, own_alpha_DH, query_DH, own_DX, slope, out_DF, grad_DF, inner_DH, grad_query_DH, grad_own_DX
):
    """inner[d, h] = <out[d, h], grad[d, h]>, which is the sum of every share times its gradient; and of every loop, if
    there are any, the gradients of its row and of the destination's logit. Overwrites all three."""
    heads, width = query_DH.shape[1], out_DF.shape[1]
    channels, own = width // heads, len(own_DX) > 0
    for d in range(bounds[part], bounds[part + 1]):
        for h in range(heads):
            first, inner = np.uint64(h * channels), out_DF.dtype.type(0)
            for k in range(channels):
                f = first + np.uint64(k)
                inner += out_DF[d, f] * grad_DF[d, f]
            inner_DH[d, h], grad_query_DH[d, h] = inner, 0
            if own:
                a, dot = own_alpha_DH[d, h], out_DF.dtype.type(0)
                for k in range(channels):
                    f = first + np.uint64(k)
                    dot += own_DX[d, f] * grad_DF[d, f]
                    grad_own_DX[d, f] = a * grad_DF[d, f]
                grad = a * (dot - inner)
                grad = grad if own_DX[d, width + h] + query_DH[d, h] > 0 else slope * grad
                grad_own_DX[d, width + h] = grad_query_DH[d, h] = grad


@by_source
def gat_transpose(part, bounds, indptr, local_source, inner_DH, query_DH, grad_DF, slope, rows_SX, alpha_EH, grad_SX):
    """Adds the gradient of the sources' rows to ``grad_SX``, in place; that of every edge's logit takes the place of
    its share in ``alpha``."""
    (num_dst, heads), width = query_DH.shape, grad_DF.shape[1]
    channels = width // heads
    lo, hi = bounds[part], bounds[part + 1]
    for d in range(num_dst):
        for e in range(indptr[d], indptr[d + 1]):
            if lo <= local_source[e] < hi:
                row = np.uint64(local_source[e])
                for h in range(heads):
                    a, first, dot = alpha_EH[e, h], np.uint64(h * channels), grad_DF.dtype.type(0)
                    for k in range(channels):
                        f = first + np.uint64(k)
                        dot += rows_SX[row, f] * grad_DF[d, f]
                        grad_SX[row, f] += a * grad_DF[d, f]
                    column, grad = np.uint64(width + h), a * (dot - inner_DH[d, h])
                    grad = grad if rows_SX[row, column] + query_DH[d, h] > 0 else slope * grad
                    grad_SX[row, column] += grad
                    alpha_EH[e, h] = grad

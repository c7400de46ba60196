"""Numba kernels of attention over one bipartite CSC block; the conventions are those of ``hongtu.kernels.sums``.

Graph attention (Velickovic et al.) takes few sweeps over the edges: the logit of an edge is leaky_relu(source's +
destination's), and all that a sweep needs of it lies in the rows that it reads anyway. So nothing but shares [E, H] is
made, and they do not stay.

Legend: D destinations, S sources, E edges, F = H * K features, H heads, K channels per head, X = F + H columns:
features, then logits. An array of length 0 means "none". With ``own`` every destination has a self-loop; of length 0:
none has. Edges that take no part have the share 0.
"""

from __future__ import annotations

import numpy as np

from hongtu.kernels.exponential import exp_in_place
from hongtu.kernels.parts import by_destination, by_row, by_source


@by_destination(cost=8)
def segment_softmax(part, bounds, indptr, logits_EH, mask_E, extra_DH, out_EH, out_extra_DH):
    """Softmax over the in-edges of each destination, per head.

    ``mask_E`` (bool, True = the edge is excluded and gets 0) and ``extra_DH`` (one more logit per destination, its
    share goes to ``out_extra_DH``) may have length 0.
    """
    heads = logits_EH.shape[1]
    masked, extra = len(mask_E) > 0, len(extra_DH) > 0
    highest, total = np.empty(heads, logits_EH.dtype), np.empty(heads, logits_EH.dtype)
    lo, hi = bounds[part], bounds[part + 1]
    for d in range(lo, hi):
        begin, end = indptr[d], indptr[d + 1]
        for h in range(heads):
            highest[h] = extra_DH[d, h] if extra else -np.inf
        for e in range(begin, end):
            if not (masked and mask_E[e]):
                for h in range(heads):
                    highest[h] = max(highest[h], logits_EH[e, h])
        for e in range(begin, end):
            excluded = masked and mask_E[e]
            for h in range(heads):
                out_EH[e, h] = -np.inf if excluded else logits_EH[e, h] - highest[h]
        if extra:
            for h in range(heads):
                out_extra_DH[d, h] = extra_DH[d, h] - highest[h]
    exp_in_place(out_EH[indptr[lo] : indptr[hi]])  # of many edges at once, it vectorises
    if extra:
        exp_in_place(out_extra_DH[lo:hi])
    for d in range(lo, hi):
        begin, end = indptr[d], indptr[d + 1]
        for h in range(heads):
            total[h] = out_extra_DH[d, h] if extra else 0
        for e in range(begin, end):
            for h in range(heads):
                total[h] += out_EH[e, h]
        for e in range(begin, end):
            if not (masked and mask_E[e]):
                for h in range(heads):
                    out_EH[e, h] /= total[h]
        if extra:
            for h in range(heads):
                out_extra_DH[d, h] /= total[h]


@by_destination(cost=4)
def loop_mask(part, bounds, indptr, local_source, sources, destinations, out_E):
    """out[e] (bool) = whether the source of e, int32 ``sources[local_source[e]]``, is its destination."""
    for d in range(bounds[part], bounds[part + 1]):
        own = destinations[d]
        for e in range(indptr[d], indptr[d + 1]):
            out_E[e] = sources[np.uint64(local_source[e])] == own


@by_destination(cost=4)
def segment_softmax_backward(
    part, bounds, indptr, alpha_EH, alpha_extra_DH, grad_EH, grad_extra_DH, grad_logits_EH, grad_logits_extra_DH
):
    """Gradients of the logits from the shares ``alpha`` (0 where excluded) and the gradients of the shares."""
    heads = alpha_EH.shape[1]
    extra = len(alpha_extra_DH) > 0
    inner = np.empty(heads, alpha_EH.dtype)
    for d in range(bounds[part], bounds[part + 1]):
        begin, end = indptr[d], indptr[d + 1]
        for h in range(heads):
            inner[h] = alpha_extra_DH[d, h] * grad_extra_DH[d, h] if extra else 0
        for e in range(begin, end):
            for h in range(heads):
                inner[h] += alpha_EH[e, h] * grad_EH[e, h]
        for e in range(begin, end):
            for h in range(heads):
                grad_logits_EH[e, h] = alpha_EH[e, h] * (grad_EH[e, h] - inner[h])
        if extra:
            for h in range(heads):
                grad_logits_extra_DH[d, h] = alpha_extra_DH[d, h] * (grad_extra_DH[d, h] - inner[h])


@by_destination
def attend(part, bounds, indptr, local_source, alpha_EH, rows_CF, out_DF):
    """out[d, h, :] = sum over in-edges e of alpha[e, h] * rows[source of e, h, :]; overwrites ``out``.

    Rows and outputs are H heads of K channels; ``rows_CF`` may have further columns, which are not read.
    """
    heads, width = alpha_EH.shape[1], out_DF.shape[1]
    channels = width // heads
    for d in range(bounds[part], bounds[part + 1]):
        for f in range(width):
            out_DF[d, f] = 0
        for e in range(indptr[d], indptr[d + 1]):
            row = np.uint64(local_source[e])
            for h in range(heads):
                a, first = alpha_EH[e, h], np.uint64(h * channels)
                for k in range(channels):
                    f = first + np.uint64(k)
                    out_DF[d, f] += a * rows_CF[row, f]


@by_source
def attend_transpose(part, bounds, indptr, local_source, alpha_EH, grad_DF, out_CF):
    """Adds the gradient of ``attend`` with respect to the rows to ``out_CF``, in place."""
    heads = alpha_EH.shape[1]
    num_dst, width = grad_DF.shape
    channels = width // heads
    lo, hi = bounds[part], bounds[part + 1]
    for d in range(num_dst):
        for e in range(indptr[d], indptr[d + 1]):
            if lo <= local_source[e] < hi:
                row = np.uint64(local_source[e])
                for h in range(heads):
                    a, first = alpha_EH[e, h], np.uint64(h * channels)
                    for k in range(channels):
                        f = first + np.uint64(k)
                        out_CF[row, f] += a * grad_DF[d, f]


@by_destination
def attend_alpha_gradient(part, bounds, indptr, local_source, rows_CF, grad_DF, out_EH):
    """out[e, h] = <rows[source of e, h, :], grad[destination of e, h, :]>: the gradient of ``attend`` in alpha."""
    heads, width = out_EH.shape[1], grad_DF.shape[1]
    channels = width // heads
    for d in range(bounds[part], bounds[part + 1]):
        for e in range(indptr[d], indptr[d + 1]):
            row = np.uint64(local_source[e])
            for h in range(heads):
                first, total = np.uint64(h * channels), grad_DF.dtype.type(0)
                for k in range(channels):
                    f = first + np.uint64(k)
                    total += rows_CF[row, f] * grad_DF[d, f]
                out_EH[e, h] = total


@by_destination(cost=2)
def additive_logits(part, bounds, indptr, local_source, rows_SF, query_DF, att_F, slope, out_EH):
    """out[e, h] = <att[h], leaky_relu(rows[source of e, h] + query[destination of e, h])>; overwrites ``out``."""
    heads, width = out_EH.shape[1], query_DF.shape[1]
    channels = width // heads
    for d in range(bounds[part], bounds[part + 1]):
        for e in range(indptr[d], indptr[d + 1]):
            row = np.uint64(local_source[e])
            for h in range(heads):
                first, total = np.uint64(h * channels), query_DF.dtype.type(0)
                for k in range(channels):
                    f = first + np.uint64(k)
                    x = rows_SF[row, f] + query_DF[d, f]
                    total += att_F[f] * (x if x > 0 else slope * x)
                out_EH[e, h] = total


@by_destination(cost=2)
def additive_logits_gradients(
    part, bounds, indptr, local_source, rows_SF, query_DF, att_F, slope, grad_EH, grad_query_DF, grad_att_DF
):
    """Of every destination: the gradient of its query, and what it adds to that of ``att``; overwrites both."""
    heads, width = grad_EH.shape[1], query_DF.shape[1]
    channels, one = width // heads, query_DF.dtype.type(1)
    for d in range(bounds[part], bounds[part + 1]):
        for f in range(width):
            grad_query_DF[d, f], grad_att_DF[d, f] = 0, 0
        for e in range(indptr[d], indptr[d + 1]):
            row = np.uint64(local_source[e])
            for h in range(heads):
                grad, first = grad_EH[e, h], np.uint64(h * channels)
                for k in range(channels):
                    f = first + np.uint64(k)
                    x = rows_SF[row, f] + query_DF[d, f]
                    steep = one if x > 0 else slope
                    grad_query_DF[d, f] += grad * steep
                    grad_att_DF[d, f] += grad * steep * x
        for f in range(width):
            grad_query_DF[d, f] *= att_F[f]


@by_source(cost=2)
def additive_logits_transpose(part, bounds, indptr, local_source, rows_SF, query_DF, att_F, slope, grad_EH, grad_SF):
    """Adds the gradient of ``additive_logits`` with respect to the rows to ``grad_SF``, in place."""
    heads, width = grad_EH.shape[1], query_DF.shape[1]
    channels, one = width // heads, query_DF.dtype.type(1)
    lo, hi = bounds[part], bounds[part + 1]
    for d in range(query_DF.shape[0]):
        for e in range(indptr[d], indptr[d + 1]):
            if lo <= local_source[e] < hi:
                row = np.uint64(local_source[e])
                for h in range(heads):
                    grad, first = grad_EH[e, h], np.uint64(h * channels)
                    for k in range(channels):
                        f = first + np.uint64(k)
                        steep = one if rows_SF[row, f] + query_DF[d, f] > 0 else slope
                        grad_SF[row, f] += grad * steep * att_F[f]


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

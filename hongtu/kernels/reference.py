"""Plain twins of the kernels by numpy and scipy: the same names and arguments, one obvious line per idea. They are what
runs on small graphs, too: sums over edges are sparse products, which add edge by edge, in their order.

Legend: D destinations, S sources, C rows of a cache, E edges, F = H * K features, H heads, K channels per head.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

WIDE = 16  # channels of a head from which heads are summed up one by one
FEW = 30 << 10  # numbers that torch casts on one thread
STEP = 1 << 18  # features of edges at hand at a time: fresh memory for all of them takes longer than their sums


def _destinations(indptr):
    """[E], the destination of every edge: by scipy's loop, in half of numpy.repeat's time."""
    found = np.empty(indptr[-1], indptr.dtype)
    _loop("expandptr")(len(indptr) - 1, indptr, found)
    return found


def _slots(local_source, slot_of_source):
    return slot_of_source.take(local_source) if len(slot_of_source) else local_source


def _coefficients(num_edges, weight, dtype):
    """[E], what each edge multiplies the row of its source with."""
    return weight if len(weight) else np.ones(num_edges, dtype)


def _degrees(indptr, dtype):
    """[D, 1], what a mean is divided by."""
    return np.maximum(np.diff(indptr), 1).astype(dtype)[:, None]


def _sums(form, rows, coefficient, index, start, x):
    """[rows, F]: the product of the sparse matrix that has these entries with x."""
    out = np.zeros((rows, x.shape[1]), np.result_type(coefficient, x))
    _add(form, out, coefficient, index, start, x)
    return out


def _add(form, out, coefficient, index, start, x):
    """Adds the same to ``out``, entry by entry. By the loop under scipy's products, for what scipy does around it takes
    longer than the sums of a small graph."""
    x, values = np.ascontiguousarray(x, out.dtype), np.ascontiguousarray(coefficient, out.dtype)
    _loop(f"{form}_matvecs")(len(out), *x.shape, start.astype(index.dtype), index, values, x.ravel(), out.reshape(-1))


@cache
def _loop(name):
    from scipy.sparse import _sparsetools  # takes a third of a second to import, which large graphs do without

    return getattr(_sparsetools, name)


def _weighted(alpha_EH, x_EF):
    """[E, F]: every channel times its head's coefficient."""
    return np.repeat(alpha_EH, x_EF.shape[1] // alpha_EH.shape[1], 1) * x_EF


def _sums_by_head(form, rows, alpha_EH, index, start, x_RF):
    """[rows, F]: ``_sums`` of the channels of each head, with its coefficients."""
    by_head = zip(alpha_EH.T, np.split(x_RF, alpha_EH.shape[1], 1), strict=True)
    return np.concatenate([_sums(form, rows, alpha_E, index, start, x_RK) for alpha_E, x_RK in by_head], 1)


def csc_aggregate(indptr, local_source, slot_of_source, weight, mean, rows_CF, out_DF):
    """out[d] = sum over in-edges e of coefficient[e] * rows[slot of the source of e].

    >>> # destinations 0 and 1 with in-edges from sources (0, 2) and (2)
    >>> rows, out = np.array([[1.0], [10.0], [100.0]]), np.empty((2, 1))
    >>> none = np.empty(0, np.int64)
    >>> csc_aggregate(np.array([0, 2, 3]), np.array([0, 2, 2]), none, np.empty(0), False, rows, out)
    >>> out[:, 0].tolist()
    [101.0, 100.0]
    """
    out_DF[:] = 0
    coefficient = _coefficients(len(local_source), weight, rows_CF.dtype)
    _add("csr", out_DF, coefficient, _slots(local_source, slot_of_source), indptr, rows_CF)
    if mean:
        out_DF /= _degrees(indptr, out_DF.dtype)


def csc_aggregate_transpose(indptr, local_source, slot_of_source, weight, mean, grad_DF, out_CF):
    """Adds coefficient * grad[destination] to the row of each edge's source."""
    grad_DF = grad_DF * (1 / _degrees(indptr, grad_DF.dtype)) if mean else grad_DF
    coefficient = _coefficients(len(local_source), weight, grad_DF.dtype)
    _add("csc", out_CF, coefficient, _slots(local_source, slot_of_source), indptr, grad_DF)


def csc_extremum(indptr, local_source, weight, largest, rows_SF, out_DF):
    """out[d] = the largest (or smallest) of what d's in-edges bring, 0 without any."""
    brought_EF = _coefficients(len(local_source), weight, rows_SF.dtype)[:, None] * rows_SF[local_source]
    _extrema(indptr, np.maximum if largest else np.minimum, brought_EF, out_DF, 0)


def csc_extremum_shares(indptr, local_source, weight, rows_SF, out_DF, grad_DF, shares_DF):
    """shares[d] = grad[d] over the number of edges that bring ``out``, and one more where that is 0."""
    brought_EF = _coefficients(len(local_source), weight, rows_SF.dtype)[:, None] * rows_SF[local_source]
    count_DF = np.empty_like(out_DF)
    segment_sum(indptr, brought_EF == out_DF[_destinations(indptr)], count_DF)
    shares_DF[:] = grad_DF / np.maximum(count_DF + (out_DF == 0), 1)


def csc_extremum_transpose(indptr, local_source, weight, rows_SF, out_DF, shares_DF, grad_SF):
    """Adds weight[e] * shares[destination of e] to the row of each edge's source where it brought ``out``."""
    coefficient = _coefficients(len(local_source), weight, rows_SF.dtype)[:, None]
    destination = _destinations(indptr)
    chosen_EF = coefficient * rows_SF[local_source] == out_DF[destination]
    scatter_add_edges(local_source, chosen_EF * coefficient * shares_DF[destination], grad_SF)


def _softmax_shares(indptr, local_source, t_F, rows_SF, highest_DF, total_DF):
    destination = _destinations(indptr)
    return np.exp(t_F * rows_SF[local_source] - highest_DF[destination]) / total_DF[destination]


def csc_softmax_sum(indptr, local_source, t_F, rows_SF, out_DF, highest_DF, total_DF):
    """out[d] = sum over in-edges of softmax(t * row) * row; ``highest`` and ``total`` of the logits."""
    x_EF, destination = rows_SF[local_source], _destinations(indptr)
    _extrema(indptr, np.maximum, t_F * x_EF, highest_DF, 0)
    share_EF = np.exp(t_F * x_EF - highest_DF[destination])
    segment_sum(indptr, share_EF, total_DF)
    segment_sum(indptr, share_EF / total_DF[destination] * x_EF, out_DF)


def csc_softmax_sum_t_gradient(indptr, local_source, t_F, rows_SF, out_DF, highest_DF, total_DF, grad_DF, grad_t_DF):
    """Per destination grad * sum over in-edges of share * row * (row - out)."""
    shares_EF = _softmax_shares(indptr, local_source, t_F, rows_SF, highest_DF, total_DF)
    x_EF = rows_SF[local_source]
    segment_sum(indptr, shares_EF * x_EF * (x_EF - out_DF[_destinations(indptr)]), grad_t_DF)
    grad_t_DF *= grad_DF


def csc_softmax_sum_transpose(
    indptr, local_source, t_F, rows_SF, out_DF, highest_DF, total_DF, grad_DF, semi_grad, grad_SF
):
    """Adds grad * share * (1 + t * (row - out)) to the row of each edge's source; the bracket is 1 with semi_grad."""
    shares_EF = _softmax_shares(indptr, local_source, t_F, rows_SF, highest_DF, total_DF)
    destination = _destinations(indptr)
    slope_EF = 1 if semi_grad else 1 + t_F * (rows_SF[local_source] - out_DF[destination])
    scatter_add_edges(local_source, grad_DF[destination] * shares_EF * slope_EF, grad_SF)


def _extrema(indptr, reduce, x_EF, out_DF, none):
    """out[d] = the largest or smallest of the rows of d's in-edges, ``none`` without any."""
    degree, columns = np.diff(indptr), out_DF.shape[1]
    out_DF[:] = -np.inf if reduce is np.maximum else np.inf
    place_DF = np.arange(out_DF.size).reshape(-1, columns)
    reduce.at(out_DF.reshape(-1), np.repeat(place_DF, degree, 0).ravel(), x_EF.ravel())
    out_DF[degree == 0] = none


def segment_sum(indptr, x_EF, out_DF):
    """out[d] = sum of the rows of d's in-edges."""
    ones, every = np.ones(len(x_EF), out_DF.dtype), np.arange(len(x_EF), dtype=np.int32)
    out_DF[:] = 0
    _add("csr", out_DF, ones, every, indptr, x_EF)


def expand_rows(indptr, x_DF, out_EF):
    """out[e] = x[destination of e]."""
    out_EF[:] = x_DF[_destinations(indptr)]


def loop_mask(indptr, local_source, sources, destinations, out_E):
    """out[e] = whether the source of e is its destination."""
    out_E[:] = sources[local_source] == destinations[_destinations(indptr)]


def segment_softmax(indptr, logits_EH, mask_E, extra_DH, out_EH, out_extra_DH):
    """Softmax over the in-edges of each destination that are not masked, and over its extra logit."""
    destination = _destinations(indptr)
    highest_DH, total_DH = np.empty((2, len(indptr) - 1, logits_EH.shape[1]), logits_EH.dtype)
    if len(mask_E):
        logits_EH = np.where(mask_E[:, None], -np.inf, logits_EH)
    _extrema(indptr, np.maximum, logits_EH, highest_DH, -np.inf)
    if len(extra_DH):
        highest_DH = np.maximum(highest_DH, extra_DH)
        out_extra_DH[:] = np.exp(extra_DH - highest_DH)
    np.exp(logits_EH - highest_DH.take(destination, 0), out=out_EH)
    out_EH[mask_E.nonzero()] = 0
    segment_sum(indptr, out_EH, total_DH)
    if len(extra_DH):
        total_DH += out_extra_DH
        out_extra_DH /= total_DH
    out_EH /= total_DH.take(destination, 0)
    out_EH[mask_E.nonzero()] = 0


def segment_softmax_backward(
    indptr, alpha_EH, alpha_extra_DH, grad_EH, grad_extra_DH, grad_logits_EH, grad_logits_extra_DH
):
    """Gradients of the logits: alpha * (grad - sum over the destination of alpha * grad)."""
    inner_DH = np.empty((len(indptr) - 1, alpha_EH.shape[1]), alpha_EH.dtype)
    segment_sum(indptr, alpha_EH * grad_EH, inner_DH)
    if len(alpha_extra_DH):
        inner_DH += alpha_extra_DH * grad_extra_DH
        grad_logits_extra_DH[:] = alpha_extra_DH * (grad_extra_DH - inner_DH)
    grad_logits_EH[:] = alpha_EH * (grad_EH - inner_DH[_destinations(indptr)])


def attend(indptr, local_source, alpha_EH, rows_CF, out_DF):
    """out[d, h] = sum over in-edges e of alpha[e, h] * rows[source of e, h]."""
    heads, width = alpha_EH.shape[1], out_DF.shape[1]
    if heads > 1 and width < heads * WIDE:
        segment_sum(indptr, _weighted(alpha_EH, rows_CF.take(local_source, 0)[:, :width]), out_DF)
    else:
        out_DF[:] = _sums_by_head("csr", len(out_DF), alpha_EH, local_source, indptr, rows_CF[:, :width])


def attend_transpose(indptr, local_source, alpha_EH, grad_DF, out_CF):
    """Adds alpha[e, h] * grad[destination of e, h] to the row of each edge's source."""
    heads, width = alpha_EH.shape[1], grad_DF.shape[1]
    if heads > 1 and width < heads * WIDE:
        brought_EF = _weighted(alpha_EH, grad_DF.take(_destinations(indptr), 0))
        scatter_add_edges(local_source, brought_EF, out_CF[:, :width])
    else:
        out_CF[:, :width] += _sums_by_head("csc", len(out_CF), alpha_EH, local_source, indptr, grad_DF)


def _dots(x_RF, y_RF, out_RH):
    """out[r, h] = <x[r, h], y[r, h]>; x may have further columns."""
    heads, width = out_RH.shape[1], y_RF.shape[1]
    if heads > 1 and width <= heads * 8:  # a loop over channels is worth more than their own
        product_RF, channels = x_RF[:, :width] * y_RF, width // heads
        out_RH[:] = product_RF[:, ::channels]
        for k in range(1, channels):
            out_RH += product_RF[:, k::channels]
        return
    x_RHK, y_RHK = (rows[:, :width].reshape(-1, heads, width // heads) for rows in (x_RF, y_RF))
    np.einsum("rhk,rhk->rh", x_RHK, y_RHK, out=out_RH)


def attend_alpha_gradient(indptr, local_source, rows_CF, grad_DF, out_EH):
    """out[e, h] = <rows[source of e, h], grad[destination of e, h]>."""
    destination, step = _destinations(indptr), max(1, STEP // max(1, grad_DF.shape[1]))
    for part in (slice(first, first + step) for first in range(0, len(out_EH), step)):
        _dots(rows_CF.take(local_source[part], 0), grad_DF.take(destination[part], 0), out_EH[part])


def _slopes(x, slope):
    """What a leaky ReLU multiplies each number with: no choice, which takes longer where signs are mixed."""
    if 0 <= slope <= 1:
        return np.maximum((x > 0).astype(x.dtype), x.dtype.type(slope))
    return np.array([slope, 1], x.dtype).take((x > 0).view(np.int8))


def gat_logits(indptr, local_source, query_DH, key_SH, own_DX, slope, own_logits_DH, logits_EH):
    """leaky_relu(source's + destination's logit) of every edge, and of every loop."""
    both_EH = key_SH.take(local_source, 0) + query_DH.take(_destinations(indptr), 0)
    both_DH = own_DX[:, own_DX.shape[1] - query_DH.shape[1] :] + query_DH[: len(own_DX)]
    logits_EH[:], own_logits_DH[:] = (x * _slopes(x, slope) for x in (both_EH, both_DH))


def gat_add_own(own_alpha_DH, own_DX, out_DF):
    """Adds every destination's own row, if there is one, times its share."""
    out_DF[: len(own_DX)] += _weighted(own_alpha_DH, own_DX[:, : out_DF.shape[1]])


def gat_own_gradients(own_alpha_DH, query_DH, own_DX, slope, out_DF, grad_DF, inner_DH, grad_query_DH, grad_own_DX):
    """<out, grad> per head; of every loop the gradients of its row and of its destination's logit."""
    width = grad_DF.shape[1]
    _dots(out_DF, grad_DF, inner_DH)
    grad_query_DH[:] = 0
    if len(own_DX):
        dot_DH = np.empty_like(inner_DH)
        _dots(own_DX, grad_DF, dot_DH)
        slopes = _slopes(own_DX[:, width:] + query_DH, slope)
        grad_query_DH[:] = own_alpha_DH * (dot_DH - inner_DH) * slopes
        grad_own_DX[:, :width] = _weighted(own_alpha_DH, grad_DF)
        grad_own_DX[:, width:] = grad_query_DH


def gat_transpose(indptr, local_source, inner_DH, query_DH, grad_DF, slope, rows_SX, alpha_EH, grad_SX):
    """Adds the gradient of the sources' rows; that of every edge's logit takes the place of its share."""
    destination, width = _destinations(indptr), grad_DF.shape[1]
    attend_transpose(indptr, local_source, alpha_EH, grad_DF, grad_SX)
    grad_EH = np.empty_like(alpha_EH)
    attend_alpha_gradient(indptr, local_source, rows_SX, grad_DF, grad_EH)
    logits_EH = rows_SX[:, width:].take(local_source, 0) + query_DH.take(destination, 0)
    alpha_EH *= (grad_EH - inner_DH.take(destination, 0)) * _slopes(logits_EH, slope)
    scatter_add_edges(local_source, alpha_EH, grad_SX[:, width:])


def _sums_and_slopes(indptr, local_source, rows_SF, query_DF, slope):
    """Of every edge: its source's row plus its destination's query [E, F], and the leaky ReLU's slope there."""
    x_EF = rows_SF[local_source] + query_DF[_destinations(indptr)]
    return x_EF, _slopes(x_EF, slope)


def additive_logits(indptr, local_source, rows_SF, query_DF, att_F, slope, out_EH):
    """out[e, h] = <att[h], leaky_relu(rows[source of e, h] + query[destination of e, h])>."""
    x_EF, slope_EF = _sums_and_slopes(indptr, local_source, rows_SF, query_DF, slope)
    num_edges, heads = out_EH.shape
    out_EH[:] = (att_F * slope_EF * x_EF).reshape(num_edges, heads, len(att_F) // heads).sum(2)


def additive_logits_gradients(
    indptr, local_source, rows_SF, query_DF, att_F, slope, grad_EH, grad_query_DF, grad_att_DF
):
    """Of every destination: the gradient of its query, and what it adds to that of ``att``."""
    x_EF, slope_EF = _sums_and_slopes(indptr, local_source, rows_SF, query_DF, slope)
    grad_EF = np.repeat(grad_EH, len(att_F) // grad_EH.shape[1], 1)
    segment_sum(indptr, grad_EF * slope_EF * att_F, grad_query_DF)
    segment_sum(indptr, grad_EF * slope_EF * x_EF, grad_att_DF)


def additive_logits_transpose(indptr, local_source, rows_SF, query_DF, att_F, slope, grad_EH, grad_SF):
    """Adds grad * slope * att to the row of each edge's source."""
    _, slope_EF = _sums_and_slopes(indptr, local_source, rows_SF, query_DF, slope)
    grad_EF = np.repeat(grad_EH, len(att_F) // grad_EH.shape[1], 1)
    scatter_add_edges(local_source, grad_EF * slope_EF * att_F, grad_SF)


def copy_rows(src, src_index, dst, dst_index):
    """dst[dst_index] = src[src_index]."""
    dst[dst_index] = src[src_index]


def add_rows(src, src_index, dst, dst_index):
    """dst[dst_index] += src[src_index], ``dst_index`` unique."""
    dst[dst_index] += src[src_index]


def zero_rows(dst, dst_index):
    """dst[dst_index] = 0."""
    dst[dst_index] = 0


def put_rows(src, src_index, dst, dst_index, stores):
    """Store src[src_index] in dst[dst_index] where ``stores``, else add, ``dst_index`` unique."""
    copy_rows(src, src_index[stores], dst, dst_index[stores])
    add_rows(src, src_index[~stores], dst, dst_index[~stores])


def put_rows_alone(src, dst, dst_index, stores):
    """``put_rows`` of all rows of ``src``, in their order: ``dst_index`` may repeat where the first one stores."""
    adds, count = ~stores, len(dst_index)
    dst[dst_index[stores]] = src[:count][stores]
    np.add.at(dst, dst_index[adds], src[:count][adds])


def put_halves_alone(src, dst, dst_index, stores):
    """``put_rows_alone`` of rows in bfloat16, by their bits int16, ``dst_index`` unique."""
    total = _halves(dst[dst_index]).float()
    rows = _halves(src[: len(dst_index)])
    dst[dst_index] = torch.where(torch.from_numpy(stores)[:, None], rows, (rows + total).bfloat16()).view(torch.int16)


def widen_rows(src, src_index, dst, dst_index):
    """``copy_rows`` of rows in bfloat16, by their bits int16, to rows in float32."""
    dst[dst_index] = _halves(src[src_index]).float()


def put_rounded_rows(src, src_index, dst, dst_index, stores):
    """``put_rows`` of rows in float32 to rows in bfloat16, by their bits int16, rounded to even."""
    rows, adds = torch.from_numpy(src[src_index]), torch.from_numpy(~stores)
    rows[adds] += _halves(dst[dst_index])[adds]
    dst[dst_index] = rows.bfloat16().view(torch.int16)


def widen(src, dst):
    """Numbers in bfloat16, by their bits int16, in float32: no threads of torch's."""
    np.left_shift(src.view(np.uint16), 16, out=dst.view(np.uint32), dtype=np.uint32)


def round_to_halves(src, dst):
    """Numbers in float32 in bfloat16, by their bits int16, rounded to even: torch takes no threads for so few."""
    for first in range(0, len(src), FEW):
        part = torch.from_numpy(src[first : first + FEW])
        dst[first : first + FEW] = part.bfloat16().view(torch.int16)


def _halves(bits):
    """Rows in bfloat16, by their bits."""
    return torch.from_numpy(bits).view(torch.bfloat16)


def gather_rows(src, index, out):
    """out[k] = src[index[k]]."""
    out[:] = src[index]


def scatter_add_rows(dst, index_unique, src):
    """dst[index[k]] += src[k], indices unique."""
    _add("csc", dst, np.ones(len(src), dst.dtype), index_unique, np.arange(len(src) + 1), src)


def scatter_add_edges(local_source, src_EF, out_SF):
    """out[local_source[e]] += src[e], indices may repeat."""
    ones, every = np.ones(len(src_EF), out_SF.dtype), np.arange(len(src_EF) + 1)
    out_SF += _sums("csc", len(out_SF), ones, local_source, every, src_EF)


def _gates(indptr, local_source, key_DF, rows_C2F):
    """Of every edge: destination, gate [E, F] and value [E, F]."""
    destination, width = _destinations(indptr), key_DF.shape[1]
    gate_EF = 1 / (1 + np.exp(-(key_DF[destination] + rows_C2F[local_source, :width])))
    return destination, gate_EF, rows_C2F[local_source, width:]


def gated_sum(indptr, local_source, key_DF, rows_C2F, out_DF):
    """out[d] = sum over in-edges of sigmoid(key[d] + query) * value; a source row is [query | value]."""
    _, gate_EF, value_EF = _gates(indptr, local_source, key_DF, rows_C2F)
    segment_sum(indptr, gate_EF * value_EF, out_DF)


def gated_sum_key_gradient(indptr, local_source, key_DF, rows_C2F, grad_DF, out_DF):
    """Gradient of ``gated_sum`` with respect to the keys."""
    _, gate_EF, value_EF = _gates(indptr, local_source, key_DF, rows_C2F)
    segment_sum(indptr, gate_EF * (1 - gate_EF) * value_EF, out_DF)
    out_DF *= grad_DF


def gated_sum_transpose(indptr, local_source, key_DF, rows_C2F, grad_DF, out_C2F):
    """Adds the gradient of ``gated_sum`` with respect to the source rows."""
    destination, gate_EF, value_EF = _gates(indptr, local_source, key_DF, rows_C2F)
    change_EF = grad_DF[destination] * gate_EF
    both_E2F = np.concatenate([change_EF * (1 - gate_EF) * value_EF, change_EF], 1)
    scatter_add_edges(local_source, both_E2F, out_C2F)

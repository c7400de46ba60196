"""Differentiable attention over one bipartite CSC block: its logits, and all of it as one operation on the CPU.

Legend as in :mod:`hongtu.kernels.attention`, F = H * K features. ``indptr`` int64 [D + 1], ``local_source`` int32
[E].
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from hongtu.kernels.dispatch import has_numba_kernel, kernels_for, laned, new_rows, plain, plain_rows
from hongtu.kernels.torch_private import takes_saved_tensors
from hongtu.nn.ops import aggregates
from hongtu.nn.ops.aggregates import OwnGradient


def dot(key_SF: Tensor, query_DF: Tensor, indptr: Tensor, local_source: Tensor, heads: int) -> Tensor:
    """[E, H]: per head, the product of the source's key and the destination's query; no [E, F] tensor is made."""
    graph = plain(indptr), plain(local_source)

    def forward(key, query):
        out_EH = key.new_empty((len(local_source), heads))
        kernels_for(key).attend_alpha_gradient(*graph, laned(key), laned(query), out_EH)
        return out_EH, (key, query)

    def backward(wanted, saved, grad_EH):
        key, query = saved
        kernels, grad = kernels_for(key), plain(grad_EH)
        grad_key, grad_query = new_rows(key, *key.shape, zero=True), new_rows(query, *query.shape)
        kernels.attend_transpose(*graph, grad, plain_rows(query), grad_key)
        kernels.attend(*graph, grad, laned(key), grad_query)
        return grad_key, grad_query

    return OwnGradient.apply(forward, backward, key_SF, query_DF)


def additive_logits(
    rows_SF: Tensor, query_DF: Tensor, att_F: Tensor, indptr: Tensor, local_source: Tensor, heads: int, slope: float
) -> Tensor:
    """[E, H]: per head <att, leaky_relu(source row + destination's query)>; ``slope`` is that of the leaky ReLU.

    On the CPU nothing of [E, F] is made; elsewhere torch makes it.
    """
    if has_numba_kernel(rows_SF):
        graph, kernels = (plain(indptr), plain(local_source)), kernels_for(rows_SF)
        steep = plain(rows_SF).numpy().dtype.type(slope)

        def forward(*given):
            out_EH = rows_SF.new_empty((len(local_source), heads))
            kernels.additive_logits(*graph, *map(plain, given), steep, out_EH)
            return out_EH, given

        def backward(wanted, saved, grad_EH):
            rows, query, att = map(plain, saved)
            given = (*graph, rows, query, att, steep, plain(grad_EH))
            grad_SF, grad_query_DF, grad_att_DF = (torch.zeros_like(x) for x in (rows, query, query))
            kernels.additive_logits_transpose(*given, grad_SF)
            kernels.additive_logits_gradients(*given, grad_query_DF, grad_att_DF)
            return grad_SF, grad_query_DF, grad_att_DF.sum(0)

        return OwnGradient.apply(forward, backward, rows_SF, query_DF, att_F)
    num_edges = len(local_source)
    sums_EF = aggregates.edge_gather(rows_SF, local_source) + aggregates.destination_gather(query_DF, indptr, num_edges)
    return (leaky_relu(sums_EF, slope) * att_F).view(num_edges, heads, len(att_F) // heads).sum(2)


def graph_attention(
    rows_SX: Tensor, query_DH: Tensor, own_DX: Tensor | None, exclude: Tensor | None, indptr: Tensor,
    local_source: Tensor, slope: float,
) -> Tensor:  # fmt: skip
    """[D, F]: per head the sum of the source rows, weighted with the softmax of leaky_relu(source's + destination's
    logit).

    Args:
        rows_SX: F features and H logits of every source.
        query_DH: the destinations' logits.
        own_DX: the same as ``rows_SX`` of the destinations, which have a self-loop then; or None.
        exclude: bool [E], True for edges that take no part, or None.
        slope: of the leaky ReLU below 0.
    """
    kept = list[tuple[Tensor, Tensor]]()
    mask = rows_SX.new_empty(0, dtype=torch.bool) if exclude is None else plain(exclude)
    edges, steep, kernels = (
        (plain(indptr), plain(local_source)),
        plain(rows_SX).numpy().dtype.type(slope),
        kernels_for(rows_SX),
    )

    def shares(rows, query, own):
        alpha_EH, own_alpha_DH = (rows.new_empty((count, query.shape[1])) for count in (len(local_source), len(own)))
        key_SH = rows[:, -query.shape[1] :].contiguous()
        kernels.gat_logits(*edges, query, key_SH, own, steep, own_alpha_DH, alpha_EH)
        kernels.segment_softmax(edges[0], alpha_EH, mask, own_alpha_DH, alpha_EH, own_alpha_DH)  # in their place
        return alpha_EH, own_alpha_DH

    def forward(rows_SX, query_DH, own_DX=None):
        own = rows_SX.new_empty((0, rows_SX.shape[1])) if own_DX is None else plain(own_DX)
        rows, query = plain(rows_SX), plain(query_DH)
        alpha_EH, own_alpha_DH = shares(rows, query, own)
        out_DF = rows.new_empty((len(query), rows.shape[1] - query.shape[1]))
        kernels.attend(*edges, alpha_EH, rows, out_DF)
        kernels.gat_add_own(own_alpha_DH, own, out_DF)
        if not takes_saved_tensors():  # until another pass
            kept.append((alpha_EH, own_alpha_DH))
        return out_DF, (rows_SX, query_DH, own if own_DX is None else own_DX, out_DF)

    def backward(wanted, saved, grad_DF):
        rows, query, own, out = (plain(tensor) for tensor in saved)
        grad, (alpha_EH, own_alpha_DH) = plain(grad_DF), kept.pop() if kept else shares(rows, query, own)
        inner_DH, grad_query, grad_own = torch.empty_like(query), torch.empty_like(query), torch.empty_like(own)
        kernels.gat_own_gradients(own_alpha_DH, query, own, steep, out, grad, inner_DH, grad_query, grad_own)
        grad_rows = rows.new_zeros(rows.shape)
        kernels.gat_transpose(*edges, inner_DH, query, grad, steep, rows, alpha_EH, grad_rows)
        kernels.segment_sum(edges[0], alpha_EH, inner_DH)
        return (grad_rows, grad_query.add_(inner_DH), grad_own)[: len(wanted)]

    own = () if own_DX is None else (own_DX,)
    return OwnGradient.apply(forward, backward, rows_SX, query_DH, *own)

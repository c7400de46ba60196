"""Differentiable attention logits over one bipartite CSC block.

Legend: D destinations, S sources, E edges, F = H * K features, H heads, K channels per head. ``indptr`` int64 [D + 1],
``local_source`` int32 [E].
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import leaky_relu

from hongtu.kernels.dispatch import has_numba_kernel, kernels_for, laned, new_rows, plain, plain_rows
from hongtu.nn.ops import aggregates


class _Dot(torch.autograd.Function):
    @staticmethod
    def forward(ctx, key_SF, query_DF, indptr, local_source, heads):
        ctx.graph = (plain(indptr), plain(local_source))
        ctx.save_for_backward(key_SF, query_DF)
        out_EH = key_SF.new_empty((len(local_source), heads))
        key, query = laned(key_SF), laned(query_DF)
        kernels_for(key_SF).attend_alpha_gradient(*ctx.graph, key, query, out_EH)
        return out_EH

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_EH):
        key_SF, query_DF = ctx.saved_tensors
        kernels, grad = kernels_for(key_SF), plain(grad_EH)
        grad_key, grad_query = new_rows(key_SF, *key_SF.shape, zero=True), new_rows(query_DF, *query_DF.shape)
        kernels.attend_transpose(*ctx.graph, grad, plain_rows(query_DF), grad_key)
        kernels.attend(*ctx.graph, grad, laned(key_SF), grad_query)
        return grad_key, grad_query, None, None, None


def dot(key_SF: Tensor, query_DF: Tensor, indptr: Tensor, local_source: Tensor, heads: int) -> Tensor:
    """[E, H]: per head, the product of the source's key and the destination's query; no [E, F] tensor is made."""
    return _Dot.apply(key_SF, query_DF, indptr, local_source, heads)


class _AdditiveLogits(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows_SF, query_DF, att_F, indptr, local_source, heads, slope):
        ctx.graph, ctx.slope = (plain(indptr), plain(local_source)), plain(rows_SF).numpy().dtype.type(slope)
        ctx.save_for_backward(rows_SF, query_DF, att_F)
        out_EH = rows_SF.new_empty((len(local_source), heads))
        given = (plain(tensor) for tensor in (rows_SF, query_DF, att_F))
        kernels_for(rows_SF).additive_logits(*ctx.graph, *given, ctx.slope, out_EH)
        return out_EH

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_EH):
        rows_SF, query_DF, att_F = (plain(tensor) for tensor in ctx.saved_tensors)
        given = (*ctx.graph, rows_SF, query_DF, att_F, ctx.slope, plain(grad_EH))
        grad_SF, grad_query_DF, grad_att_DF = (torch.zeros_like(x) for x in (rows_SF, query_DF, query_DF))
        kernels_for(rows_SF).additive_logits_transpose(*given, grad_SF)
        kernels_for(rows_SF).additive_logits_gradients(*given, grad_query_DF, grad_att_DF)
        return grad_SF, grad_query_DF, grad_att_DF.sum(0), None, None, None, None


def additive_logits(
    rows_SF: Tensor, query_DF: Tensor, att_F: Tensor, indptr: Tensor, local_source: Tensor, heads: int, slope: float
) -> Tensor:
    """[E, H]: per head <att, leaky_relu(source row + destination's query)>; ``slope`` is that of the leaky ReLU.

    On the CPU nothing of [E, F] is made; elsewhere torch makes it.
    """
    if has_numba_kernel(rows_SF):
        return _AdditiveLogits.apply(rows_SF, query_DF, att_F, indptr, local_source, heads, slope)
    num_edges = len(local_source)
    sums_EF = aggregates.edge_gather(rows_SF, local_source) + aggregates.destination_gather(query_DF, indptr, num_edges)
    return (leaky_relu(sums_EF, slope) * att_F).view(num_edges, heads, len(att_F) // heads).sum(2)

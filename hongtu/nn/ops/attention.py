"""Differentiable attention over one bipartite CSC block: its logits, and all of it as one operation on the CPU.

Legend as in :mod:`hongtu.kernels.graph_attention`, F = H * K features. ``indptr`` int64 [D + 1], ``local_source`` int32
[E].
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import leaky_relu

from hongtu.kernels.dispatch import has_numba_kernel, kernels_for, laned, new_rows, plain, plain_rows
from hongtu.kernels.torch_private import takes_saved_tensors
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


class _GraphAttention(torch.autograd.Function):
    """Where what it saves stays until another pass, it keeps no shares, and backward computes them again."""

    @staticmethod
    def forward(ctx, rows_SX, query_DH, own_DX, exclude, indptr, local_source, slope):
        mask = rows_SX.new_empty(0, dtype=torch.bool) if exclude is None else plain(exclude)
        ctx.edges, ctx.slope = (plain(indptr), plain(local_source)), plain(rows_SX).numpy().dtype.type(slope)
        ctx.mask, ctx.has_own = mask, own_DX is not None
        own = rows_SX.new_empty((0, rows_SX.shape[1])) if own_DX is None else plain(own_DX)
        rows, query = plain(rows_SX), plain(query_DH)
        alpha_EH, own_alpha_DH = _shares(ctx, rows, query, own)
        out_DF = rows.new_empty((len(query), rows.shape[1] - query.shape[1]))
        kernels = kernels_for(rows)
        kernels.attend(*ctx.edges, alpha_EH, rows, out_DF)
        kernels.gat_add_own(own_alpha_DH, own, out_DF)
        ctx.shares = None if takes_saved_tensors() else (alpha_EH, own_alpha_DH)
        ctx.save_for_backward(rows_SX, query_DH, own if own_DX is None else own_DX, out_DF)
        return out_DF

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_DF):
        rows, query, own, out = (plain(tensor) for tensor in ctx.saved_tensors)
        grad, (alpha_EH, own_alpha_DH) = plain(grad_DF), ctx.shares or _shares(ctx, rows, query, own)
        ctx.shares = None  # they are overwritten
        inner_DH, grad_query, grad_own = torch.empty_like(query), torch.empty_like(query), torch.empty_like(own)
        kernels = kernels_for(rows)
        kernels.gat_own_gradients(own_alpha_DH, query, own, ctx.slope, out, grad, inner_DH, grad_query, grad_own)
        grad_rows = rows.new_zeros(rows.shape)
        kernels.gat_transpose(*ctx.edges, inner_DH, query, grad, ctx.slope, rows, alpha_EH, grad_rows)
        kernels.segment_sum(ctx.edges[0], alpha_EH, inner_DH)
        return grad_rows, grad_query.add_(inner_DH), grad_own if ctx.has_own else None, None, None, None, None


def _shares(ctx, rows: Tensor, query: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    alpha_EH, own_alpha_DH = (rows.new_empty((count, query.shape[1])) for count in (len(ctx.edges[1]), len(own)))
    key_SH = rows[:, -query.shape[1] :].contiguous()
    kernels = kernels_for(rows)
    kernels.gat_logits(*ctx.edges, query, key_SH, own, ctx.slope, own_alpha_DH, alpha_EH)
    kernels.segment_softmax(ctx.edges[0], alpha_EH, ctx.mask, own_alpha_DH, alpha_EH, own_alpha_DH)  # in their place
    return alpha_EH, own_alpha_DH


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
    return _GraphAttention.apply(rows_SX, query_DH, own_DX, exclude, indptr, local_source, slope)

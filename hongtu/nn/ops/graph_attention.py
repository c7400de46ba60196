"""Graph attention over one bipartite CSC block as one differentiable operation, on the CPU; legend as in
:mod:`hongtu.kernels.graph_attention`. ``indptr`` int64 [D + 1], ``local_source`` int32 [E]."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hongtu.kernels.dispatch import kernels_for, plain


class _GraphAttention(torch.autograd.Function):
    """Keeps no shares: backward computes them again."""

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
        ctx.save_for_backward(rows_SX, query_DH, own if own_DX is None else own_DX, out_DF)
        return out_DF

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_DF):
        rows, query, own, out = (plain(tensor) for tensor in ctx.saved_tensors)
        grad, (alpha_EH, own_alpha_DH) = plain(grad_DF), _shares(ctx, rows, query, own)
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

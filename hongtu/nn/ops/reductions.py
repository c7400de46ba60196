"""Differentiable reductions over one bipartite CSC block that are not linear.

On the CPU by numba kernels, which make nothing of [E, F]; elsewhere by torch, which does.
Legend: D destinations, S sources, E edges, F features. ``indptr`` int64 [D + 1], ``local_source`` int32 [E].
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hongtu.kernels.dispatch import has_numba_kernel, kernels_for, plain
from hongtu.nn.ops import aggregates


class _Extremum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows_SF, indptr, local_source, weight, largest):
        out_DF = rows_SF.new_empty((len(indptr) - 1, rows_SF.shape[1]))
        ctx.graph = (
            plain(indptr),
            plain(local_source),
            rows_SF.new_empty(0) if weight is None else plain(weight.to(rows_SF.dtype)),
        )
        kernels_for(rows_SF).csc_extremum(*ctx.graph, largest, plain(rows_SF), out_DF)
        ctx.save_for_backward(rows_SF, out_DF)
        return out_DF

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_DF):
        rows_SF, out_DF = (plain(tensor) for tensor in ctx.saved_tensors)
        shares_DF, grad_SF = torch.empty_like(out_DF), torch.zeros_like(rows_SF)
        kernels_for(rows_SF).csc_extremum_shares(*ctx.graph, rows_SF, out_DF, plain(grad_DF), shares_DF)
        kernels_for(rows_SF).csc_extremum_transpose(*ctx.graph, rows_SF, out_DF, shares_DF, grad_SF)
        return grad_SF, None, None, None, None


def extremum(
    rows_SF: Tensor, indptr: Tensor, local_source: Tensor, weight: Tensor | None = None, largest: bool = True
) -> Tensor:
    """[D, F]: per column the largest (or smallest) source row of each destination, times the edge's weight; 0 without
    in-edges.

    Ties share the gradient evenly, as in torch's ``scatter_reduce``; there, and here, an extremum of 0 keeps one share
    to itself.
    """
    if has_numba_kernel(rows_SF):
        return _Extremum.apply(rows_SF, indptr, local_source, weight, largest)
    values_EF = aggregates.edge_gather(rows_SF, local_source)
    if weight is not None:
        values_EF = values_EF * weight.to(rows_SF.dtype).unsqueeze(1)
    dst_of_edge = torch.repeat_interleave(indptr.diff(), output_size=len(local_source))
    out_DF = rows_SF.new_zeros((len(indptr) - 1, rows_SF.shape[1]))
    how = "amax" if largest else "amin"
    return out_DF.scatter_reduce(0, dst_of_edge.unsqueeze(1).expand_as(values_EF), values_EF, how, include_self=False)


class _SoftmaxSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows_SF, t_F, indptr, local_source, semi_grad):
        ctx.graph, ctx.semi_grad = (plain(indptr), plain(local_source)), semi_grad
        out_DF, highest_DF, total_DF = (rows_SF.new_empty((len(indptr) - 1, rows_SF.shape[1])) for _ in range(3))
        kernels_for(rows_SF).csc_softmax_sum(*ctx.graph, plain(t_F), plain(rows_SF), out_DF, highest_DF, total_DF)
        ctx.save_for_backward(t_F, rows_SF, out_DF, highest_DF, total_DF)
        return out_DF

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_DF):
        given = (*ctx.graph, *(plain(tensor) for tensor in ctx.saved_tensors), plain(grad_DF))
        rows_SF, grad_SF, grad_t_F = ctx.saved_tensors[1], None, None
        if ctx.needs_input_grad[0]:
            grad_SF = torch.zeros_like(rows_SF, memory_format=torch.contiguous_format)
            kernels_for(rows_SF).csc_softmax_sum_transpose(*given, ctx.semi_grad, grad_SF)
        if ctx.needs_input_grad[1]:
            grad_t_DF = torch.empty_like(ctx.saved_tensors[2])
            kernels_for(rows_SF).csc_softmax_sum_t_gradient(*given, grad_t_DF)
            grad_t_F = grad_t_DF.sum(0)
        return grad_SF, grad_t_F, None, None, None


def softmax_sum(rows_SF: Tensor, t_F: Tensor, indptr: Tensor, local_source: Tensor, semi_grad: bool = False) -> Tensor:
    """[D, F]: per column the sum of the source rows, weighted with the softmax of t times them; 0 without in-edges.

    ``semi_grad``: the shares get no gradient; ``t_F`` must not need one then.
    """
    if has_numba_kernel(rows_SF):
        return _SoftmaxSum.apply(rows_SF, t_F, indptr, local_source, semi_grad)
    values_EF = aggregates.edge_gather(rows_SF, local_source)
    with torch.set_grad_enabled(torch.is_grad_enabled() and not semi_grad):
        shares_EF, _ = aggregates.edge_softmax(values_EF * t_F, indptr)
    return aggregates.segment_sum(values_EF * shares_EF, indptr)

"""Differentiable aggregates over one bipartite CSC block.

CPU tensors run the numba kernels of ``hongtu.kernels`` without a copy; other devices run plain torch.
Legend: D destinations, S sources, C rows of a cache (S or more), E edges, F features, H heads.
``indptr`` int64 [D + 1], ``local_source`` int32 [E], ``slot_of_source`` int32 or int64 [S]. Edge weights get no
gradient.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hongtu import attention_kernels, kernels

_NO_SLOTS = np.empty(0, np.int32)
_NO_MASK = np.empty(0, np.bool_)


def _on_cpu(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().contiguous().numpy()


def _slots(slot_of_source: Tensor | None) -> np.ndarray:
    return _NO_SLOTS if slot_of_source is None else _array(slot_of_source)


def _weights(weight: Tensor | None, like: Tensor) -> np.ndarray:
    return _array(like.new_empty(0) if weight is None else weight.to(like.dtype))


def _destination_of_edge(indptr: Tensor) -> Tensor:
    return torch.repeat_interleave(torch.arange(len(indptr) - 1, device=indptr.device), indptr.diff())


class _Aggregate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows_CF, indptr, local_source, slot_of_source, weight, mean):
        out_DF = torch.empty((len(indptr) - 1, rows_CF.shape[1]), dtype=rows_CF.dtype)
        ctx.graph = (_array(indptr), _array(local_source), _slots(slot_of_source), _weights(weight, rows_CF), mean)
        ctx.num_rows = len(rows_CF)
        kernels.csc_aggregate(*ctx.graph, _array(rows_CF), out_DF.numpy())
        return out_DF

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_DF):
        out_CF = torch.zeros((ctx.num_rows, grad_DF.shape[1]), dtype=grad_DF.dtype)
        kernels.csc_aggregate_transpose(*ctx.graph, _array(grad_DF), out_CF.numpy())
        return out_CF, None, None, None, None, None


def aggregate(
    rows_CF: Tensor,
    indptr: Tensor,
    local_source: Tensor,
    slot_of_source: Tensor | None = None,
    weight: Tensor | None = None,
    mean: bool = False,
) -> Tensor:
    """[D, F]: the (weighted) sum, or the mean over the in-edge count, of the source rows of each destination."""
    if _on_cpu(rows_CF):
        return _Aggregate.apply(rows_CF, indptr, local_source, slot_of_source, weight, mean)
    index = local_source if slot_of_source is None else slot_of_source[local_source.long()]
    messages_EF = rows_CF.index_select(0, index)
    if weight is not None:
        messages_EF = messages_EF * weight.to(rows_CF.dtype).unsqueeze(1)
    out_DF = segment_sum(messages_EF, indptr)
    return out_DF / indptr.diff().clamp(min=1).to(out_DF.dtype).unsqueeze(1) if mean else out_DF


class _SegmentSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_EF, indptr):
        ctx.indptr = _array(indptr)
        out_DF = torch.empty((len(indptr) - 1, x_EF.shape[1]), dtype=x_EF.dtype)
        kernels.segment_sum(ctx.indptr, _array(x_EF), out_DF.numpy())
        return out_DF

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_DF):
        out_EF = torch.empty((int(ctx.indptr[-1]), grad_DF.shape[1]), dtype=grad_DF.dtype)
        kernels.expand_rows(ctx.indptr, _array(grad_DF), out_EF.numpy())
        return out_EF, None


def segment_sum(x_EF: Tensor, indptr: Tensor) -> Tensor:
    """[D, F]: the sum of the edge rows of each destination."""
    if _on_cpu(x_EF):
        return _SegmentSum.apply(x_EF, indptr)
    out_DF = x_EF.new_zeros((len(indptr) - 1, x_EF.shape[1]))
    return out_DF.index_add(0, _destination_of_edge(indptr), x_EF)


class _DestinationGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_DF, indptr):
        ctx.indptr = _array(indptr)
        out_EF = torch.empty((int(ctx.indptr[-1]), x_DF.shape[1]), dtype=x_DF.dtype)
        kernels.expand_rows(ctx.indptr, _array(x_DF), out_EF.numpy())
        return out_EF

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_EF):
        out_DF = torch.empty((len(ctx.indptr) - 1, grad_EF.shape[1]), dtype=grad_EF.dtype)
        kernels.segment_sum(ctx.indptr, _array(grad_EF), out_DF.numpy())
        return out_DF, None


def destination_gather(x_DF: Tensor, indptr: Tensor) -> Tensor:
    """[E, F]: the row of each edge's destination."""
    if _on_cpu(x_DF):
        return _DestinationGather.apply(x_DF, indptr)
    return x_DF.index_select(0, _destination_of_edge(indptr))


class _EdgeGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_SF, local_source):
        ctx.local_source, ctx.num_rows = _array(local_source), len(x_SF)
        out_EF = torch.empty((len(local_source), x_SF.shape[1]), dtype=x_SF.dtype)
        kernels.gather_rows(_array(x_SF), ctx.local_source, out_EF.numpy())
        return out_EF

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_EF):
        out_SF = torch.zeros((ctx.num_rows, grad_EF.shape[1]), dtype=grad_EF.dtype)
        kernels.scatter_add_edges(ctx.local_source, _array(grad_EF), out_SF.numpy())
        return out_SF, None


def edge_gather(x_SF: Tensor, local_source: Tensor) -> Tensor:
    """[E, F]: the row of each edge's source."""
    if _on_cpu(x_SF):
        return _EdgeGather.apply(x_SF, local_source)
    return x_SF.index_select(0, local_source)


class _EdgeSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_EH, indptr, exclude, extra_DH):
        heads = logits_EH.shape[1]
        alpha_EH = torch.empty(logits_EH.shape, dtype=logits_EH.dtype)
        num_extra = 0 if extra_DH is None else len(indptr) - 1
        alpha_DH = torch.empty((num_extra, heads), dtype=logits_EH.dtype)
        extra = alpha_DH if extra_DH is None else extra_DH
        mask = _NO_MASK if exclude is None else _array(exclude)
        ctx.indptr = _array(indptr)
        attention_kernels.segment_softmax(
            ctx.indptr, _array(logits_EH), mask, _array(extra), alpha_EH.numpy(), alpha_DH.numpy()
        )
        ctx.has_extra = extra_DH is not None
        ctx.save_for_backward(alpha_EH, alpha_DH)
        return alpha_EH, alpha_DH

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_EH, grad_DH):
        alpha_EH, alpha_DH = ctx.saved_tensors
        out_EH = torch.empty(alpha_EH.shape, dtype=alpha_EH.dtype)
        out_DH = torch.empty(alpha_DH.shape, dtype=alpha_DH.dtype)
        arrays = (_array(tensor) for tensor in (alpha_EH, alpha_DH, grad_EH, grad_DH))
        attention_kernels.segment_softmax_backward(ctx.indptr, *arrays, out_EH.numpy(), out_DH.numpy())
        return out_EH, None, None, out_DH if ctx.has_extra else None


def edge_softmax(
    logits_EH: Tensor, indptr: Tensor, exclude: Tensor | None = None, extra_DH: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Softmax over the in-edges of each destination, per head.

    Args:
        logits_EH: float [E, H].
        indptr: int64 [D + 1].
        exclude: bool [E], True for edges that take no part (their share is 0), or None.
        extra_DH: float [D, H], one more logit per destination (a self-loop), or None.

    Returns:
        the shares [E, H], and those of ``extra_DH`` [D, H] (None without it).
    """
    if _on_cpu(logits_EH):
        alpha_EH, alpha_DH = _EdgeSoftmax.apply(logits_EH, indptr, exclude, extra_DH)
        return alpha_EH, None if extra_DH is None else alpha_DH
    return _edge_softmax_torch(logits_EH, indptr, exclude, extra_DH)


def _edge_softmax_torch(logits_EH, indptr, exclude, extra_DH):
    destination = _destination_of_edge(indptr)
    heads, num_dst = logits_EH.shape[1], len(indptr) - 1
    if exclude is not None:
        logits_EH = logits_EH.masked_fill(exclude.unsqueeze(1), -torch.inf)
    with torch.no_grad():
        highest_DH = logits_EH.new_full((num_dst, heads), -torch.inf) if extra_DH is None else extra_DH.clone()
        highest_DH.scatter_reduce_(0, destination.unsqueeze(1).expand(-1, heads), logits_EH, "amax")
        highest_DH.masked_fill_(highest_DH == -torch.inf, 0)
    alpha_EH = (logits_EH - highest_DH[destination]).exp()
    total_DH = alpha_EH.new_zeros((num_dst, heads)).index_add(0, destination, alpha_EH)
    if extra_DH is None:
        return alpha_EH / total_DH[destination].clamp(min=torch.finfo(total_DH.dtype).tiny), None
    alpha_DH = (extra_DH - highest_DH).exp()
    total_DH = total_DH + alpha_DH
    return alpha_EH / total_DH[destination], alpha_DH / total_DH


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows_SF, alpha_EH, indptr, local_source, width):
        ctx.graph = (_array(indptr), _array(local_source))
        ctx.save_for_backward(rows_SF, alpha_EH)
        out_DF = torch.empty((len(indptr) - 1, width), dtype=rows_SF.dtype)
        attention_kernels.attend(*ctx.graph, _array(alpha_EH), _array(rows_SF), out_DF.numpy())
        return out_DF

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_DF):
        rows_SF, alpha_EH = ctx.saved_tensors
        grad, grad_rows, grad_alpha = _array(grad_DF), None, None
        if ctx.needs_input_grad[0]:
            grad_rows = torch.zeros(rows_SF.shape, dtype=rows_SF.dtype)
            attention_kernels.attend_transpose(*ctx.graph, _array(alpha_EH), grad, grad_rows.numpy())
        if ctx.needs_input_grad[1]:
            grad_alpha = torch.empty(alpha_EH.shape, dtype=alpha_EH.dtype)
            attention_kernels.attend_alpha_gradient(*ctx.graph, _array(rows_SF), grad, grad_alpha.numpy())
        return grad_rows, grad_alpha, None, None, None


def attend(rows_SF: Tensor, alpha_EH: Tensor, indptr: Tensor, local_source: Tensor, width: int) -> Tensor:
    """[D, width]: per head, the sum of the source rows weighted by alpha; no [E, width] tensor is made on the CPU.

    ``width`` is H times the channels of a head; further columns of ``rows_SF`` are ignored.
    """
    if _on_cpu(rows_SF):
        return _Attend.apply(rows_SF, alpha_EH, indptr, local_source, width)
    heads = alpha_EH.shape[1]
    messages = rows_SF[:, :width].index_select(0, local_source).view(-1, heads, width // heads)
    return segment_sum((messages * alpha_EH.unsqueeze(2)).flatten(1), indptr)


class _GatedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows_S2F, key_DF, indptr, local_source):
        ctx.graph = (_array(indptr), _array(local_source))
        ctx.save_for_backward(rows_S2F, key_DF)
        out_DF = torch.empty(key_DF.shape, dtype=key_DF.dtype)
        attention_kernels.gated_sum(*ctx.graph, _array(key_DF), _array(rows_S2F), out_DF.numpy())
        return out_DF

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_DF):
        rows_S2F, key_DF = ctx.saved_tensors
        arrays = (*ctx.graph, _array(key_DF), _array(rows_S2F), _array(grad_DF))
        grad_rows, grad_key = None, None
        if ctx.needs_input_grad[0]:
            grad_rows = torch.zeros(rows_S2F.shape, dtype=rows_S2F.dtype)
            attention_kernels.gated_sum_transpose(*arrays, grad_rows.numpy())
        if ctx.needs_input_grad[1]:
            grad_key = torch.empty(key_DF.shape, dtype=key_DF.dtype)
            attention_kernels.gated_sum_key_gradient(*arrays, grad_key.numpy())
        return grad_rows, grad_key, None, None


def gated_sum(rows_S2F: Tensor, key_DF: Tensor, indptr: Tensor, local_source: Tensor) -> Tensor:
    """[D, F]: the sum of sigmoid(key + query) * value over in-edges; no [E, F] tensor is made on the CPU.

    ``rows_S2F`` is [query | value] of the sources.
    """
    if _on_cpu(rows_S2F):
        return _GatedSum.apply(rows_S2F, key_DF, indptr, local_source)
    query_EF, value_EF = rows_S2F.index_select(0, local_source).chunk(2, dim=1)
    return segment_sum(torch.sigmoid(destination_gather(key_DF, indptr) + query_EF) * value_EF, indptr)

"""Differentiable aggregates over one bipartite CSC block, linear and not. Of those that are not, extrema and softmax
sums, the CPU makes nothing of [E, F]; elsewhere torch does.

Each runs the kernels of its tensors' device (:mod:`hongtu.kernels.dispatch`), without a copy.
Legend: D destinations, S sources, E edges, F features, H heads.
``indptr`` int64 [D + 1], ``local_source`` int32 [E]. Edge weights get no gradient.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hongtu.kernels.dispatch import HUB, has_numba_kernel, kernels_for, laned, new_rows, on_numba, plain, plain_rows


class OwnGradient(torch.autograd.Function):
    """An operation with a gradient of its own. ``forward(*given)`` returns the result, one tensor or a tuple, and a
    tuple of what is saved; ``backward(wanted, saved, *gradients)`` returns a gradient of each that was given, or None.
    """

    @staticmethod
    def forward(ctx, forward, backward, *given):
        found, saved = forward(*given)
        ctx.gradient = backward
        ctx.save_for_backward(*saved)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients):
        return None, None, *ctx.gradient(ctx.needs_input_grad[2:], ctx.saved_tensors, *gradients)


RowsTo = Callable[..., None]  # of the kernels of the rows' device, the rows, and where the result goes


def _linear(x: Tensor, num_rows: int, run: RowsTo, transpose: RowsTo, adds: bool) -> Tensor:
    """Rows [so many, F] that a kernel makes of others, linearly; another makes the gradient of these of theirs: it
    writes that, or ``adds`` it to zeros."""
    given = len(x)

    def forward(x):
        out = new_rows(x, num_rows, x.shape[1])
        run(kernels_for(x), plain_rows(x), out)
        return out, ()

    def backward(wanted, saved, grad):
        out = new_rows(grad, given, grad.shape[1], zero=adds)
        transpose(kernels_for(grad), plain_rows(grad), out)
        return (out,)

    return OwnGradient.apply(forward, backward, x)


def aggregate(
    rows_SF: Tensor, indptr: Tensor, local_source: Tensor, weight: Tensor | None = None, mean: bool = False
) -> Tensor:
    """[D, F]: the (weighted) sum, or the mean over the in-edge count, of the source rows of each destination."""
    own_rows = rows_SF.new_empty(0, dtype=torch.int32)  # source s is row s
    weights = rows_SF.new_empty(0) if weight is None else plain(weight.to(rows_SF.dtype))
    graph = plain(indptr), plain(local_source), own_rows, weights, mean
    return _linear(
        rows_SF,
        len(indptr) - 1,
        lambda kernels, rows, out: kernels.csc_aggregate(*graph, rows, out),
        lambda kernels, grad, out: kernels.csc_aggregate_transpose(*graph, grad, out),
        True,
    )


def segment_sum(x_EF: Tensor, indptr: Tensor) -> Tensor:
    """[D, F]: the sum of the edge rows of each destination."""
    return _linear(x_EF, len(indptr) - 1, *_between_edges_and_destinations(indptr), False)


def destination_gather(x_DF: Tensor, indptr: Tensor, num_edges: int) -> Tensor:
    """[E, F]: the row of each edge's destination."""
    add_up, repeat = _between_edges_and_destinations(indptr)
    return _linear(x_DF, num_edges, repeat, add_up, False)


def _between_edges_and_destinations(indptr: Tensor) -> tuple[Callable[..., None], Callable[..., None]]:
    """The kernel that adds up rows of edges, and the one that repeats those of destinations."""
    starts = plain(indptr)
    return (
        lambda kernels, rows, out: kernels.segment_sum(starts, rows, out),
        lambda kernels, rows, out: kernels.expand_rows(starts, rows, out),
    )


def edge_gather(x_SF: Tensor, local_source: Tensor) -> Tensor:
    """[E, F]: the row of each edge's source."""
    places = plain(local_source)
    return _linear(
        x_SF,
        len(places),
        lambda kernels, rows, out: kernels.gather_rows(rows, places, out),
        lambda kernels, grad, out: kernels.scatter_add_edges(places, grad, out),
        True,
    )


class _Apart(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows_SX, width):
        ctx.set_materialize_grads(False)
        ctx.width, ctx.columns = width, rows_SX.shape[1]
        rows = rows_SX.data
        return rows, rows[:, width:].contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_rows, grad_behind):
        if grad_behind is None:
            return grad_rows, None
        if grad_rows is None:
            grad_rows = grad_behind.new_zeros((len(grad_behind), ctx.columns))
        grad_rows[:, ctx.width :].add_(grad_behind)  # it is of ``rows``, which nobody has but who asked for them
        return grad_rows, None


def apart(rows_SX: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Rows as they are, and their columns from ``width`` on. The gradient of these is added to that of the rows where
    it lies, not to zeros of their size; so the rows may be given to one operation alone."""
    return _Apart.apply(rows_SX, width)


def _hub_scratch(like_EH: Tensor, copies: int, num_dst: int) -> Tensor | None:
    """On the CPU, where layers are probed: memory that the CUDA kernels take beside their outputs."""
    if len(like_EH) > HUB and on_numba(like_EH):
        return like_EH.new_empty((copies, num_dst, like_EH.shape[1]))
    return None


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
    starts, num_dst, heads = plain(indptr), len(indptr) - 1, logits_EH.shape[1]

    def forward(logits, extra=None):
        alpha_EH, alpha_DH = torch.empty_like(logits), logits.new_empty((0 if extra is None else num_dst, heads))
        other = alpha_DH if extra is None else plain(extra)
        mask = logits.new_empty(0, dtype=torch.bool) if exclude is None else plain(exclude)
        held = _hub_scratch(logits, 2, num_dst)
        kernels_for(logits).segment_softmax(starts, plain(logits), mask, other, alpha_EH, alpha_DH)
        del held
        return (alpha_EH, alpha_DH), (alpha_EH, alpha_DH)

    def backward(wanted, saved, grad_EH, grad_DH):
        alpha_EH, alpha_DH = saved
        out_EH, out_DH = torch.empty_like(alpha_EH), torch.empty_like(alpha_DH)
        given = (plain(tensor) for tensor in (alpha_EH, alpha_DH, grad_EH, grad_DH))
        held = _hub_scratch(alpha_EH, 1, num_dst)
        kernels_for(alpha_EH).segment_softmax_backward(starts, *given, out_EH, out_DH)
        del held
        return (out_EH, out_DH)[: len(wanted)]

    extras = () if extra_DH is None else (extra_DH,)
    alpha_EH, alpha_DH = OwnGradient.apply(forward, backward, logits_EH.contiguous(), *extras)
    return alpha_EH, None if extra_DH is None else alpha_DH


def attend(rows_SF: Tensor, alpha_EH: Tensor, indptr: Tensor, local_source: Tensor, width: int) -> Tensor:
    """[D, width]: per head, the sum of the source rows weighted by alpha; no [E, width] tensor is made.

    ``width`` is H times the channels of a head; further columns of ``rows_SF`` are ignored.
    """
    graph, num_dst = (plain(indptr), plain(local_source)), len(indptr) - 1

    def forward(rows, alpha):
        out_DF = new_rows(rows, num_dst, width)
        kernels_for(rows).attend(*graph, plain(alpha), plain_rows(rows), out_DF)
        return out_DF, (rows, alpha)

    def backward(wanted, saved, grad_DF):
        rows, alpha = saved
        kernels, grad, grad_rows, grad_alpha = kernels_for(rows), laned(grad_DF), None, None
        if wanted[0]:
            grad_rows = new_rows(rows, *rows.shape, zero=True)
            kernels.attend_transpose(*graph, plain(alpha), grad, grad_rows)
        if wanted[1]:
            grad_alpha = alpha.new_empty(alpha.shape)
            kernels.attend_alpha_gradient(*graph, plain_rows(rows), grad, grad_alpha)
        return grad_rows, grad_alpha

    return OwnGradient.apply(forward, backward, rows_SF, alpha_EH)


def gated_sum(rows_S2F: Tensor, key_DF: Tensor, indptr: Tensor, local_source: Tensor) -> Tensor:
    """[D, F]: the sum of sigmoid(key + query) * value over in-edges; no [E, F] tensor is made.

    ``rows_S2F`` is [query | value] of the sources.
    """
    graph = plain(indptr), plain(local_source)

    def forward(rows, key):
        out_DF = new_rows(key, *key.shape)
        kernels_for(key).gated_sum(*graph, plain_rows(key), plain_rows(rows), out_DF)
        return out_DF, (rows, key)

    def backward(wanted, saved, grad_DF):
        rows, key = saved
        kernels, grad_rows, grad_key = kernels_for(key), None, None
        given = (*graph, *(plain_rows(x) for x in (key, rows, grad_DF)))
        if wanted[0]:
            grad_rows = new_rows(rows, *rows.shape, zero=True)
            kernels.gated_sum_transpose(*given, grad_rows)
        if wanted[1]:
            grad_key = new_rows(key, *key.shape)
            kernels.gated_sum_key_gradient(*given, grad_key)
        return grad_rows, grad_key

    return OwnGradient.apply(forward, backward, rows_S2F, key_DF)


def extremum(
    rows_SF: Tensor, indptr: Tensor, local_source: Tensor, weight: Tensor | None = None, largest: bool = True
) -> Tensor:
    """[D, F]: per column the largest (or smallest) source row of each destination, times the edge's weight; 0 without
    in-edges.

    Ties share the gradient evenly, as in torch's ``scatter_reduce``; there, and here, an extremum of 0 keeps one share
    to itself.
    """
    if has_numba_kernel(rows_SF):
        weights = rows_SF.new_empty(0) if weight is None else plain(weight.to(rows_SF.dtype))
        graph = plain(indptr), plain(local_source), weights

        def forward(rows):
            out_DF = rows.new_empty((len(indptr) - 1, rows.shape[1]))
            kernels_for(rows).csc_extremum(*graph, largest, plain(rows), out_DF)
            return out_DF, (rows, out_DF)

        def backward(wanted, saved, grad_DF):
            rows, out_DF = (plain(tensor) for tensor in saved)
            shares_DF, grad_SF = torch.empty_like(out_DF), torch.zeros_like(rows)
            kernels_for(rows).csc_extremum_shares(*graph, rows, out_DF, plain(grad_DF), shares_DF)
            kernels_for(rows).csc_extremum_transpose(*graph, rows, out_DF, shares_DF, grad_SF)
            return (grad_SF,)

        return OwnGradient.apply(forward, backward, rows_SF)
    values_EF = edge_gather(rows_SF, local_source)
    if weight is not None:
        values_EF = values_EF * weight.to(rows_SF.dtype).unsqueeze(1)
    dst_of_edge = torch.repeat_interleave(indptr.diff(), output_size=len(local_source))
    out_DF = rows_SF.new_zeros((len(indptr) - 1, rows_SF.shape[1]))
    how = "amax" if largest else "amin"
    return out_DF.scatter_reduce(0, dst_of_edge.unsqueeze(1).expand_as(values_EF), values_EF, how, include_self=False)


def softmax_sum(rows_SF: Tensor, t_F: Tensor, indptr: Tensor, local_source: Tensor, semi_grad: bool = False) -> Tensor:
    """[D, F]: per column the sum of the source rows, weighted with the softmax of t times them; 0 without in-edges.

    ``semi_grad``: the shares get no gradient; ``t_F`` must not need one then.
    """
    if has_numba_kernel(rows_SF):
        graph, kernels = (plain(indptr), plain(local_source)), kernels_for(rows_SF)

        def forward(rows, t):
            out_DF, highest_DF, total_DF = (rows.new_empty((len(indptr) - 1, rows.shape[1])) for _ in range(3))
            kernels.csc_softmax_sum(*graph, plain(t), plain(rows), out_DF, highest_DF, total_DF)
            return out_DF, (t, rows, out_DF, highest_DF, total_DF)

        def backward(wanted, saved, grad_DF):
            given = (*graph, *(plain(tensor) for tensor in saved), plain(grad_DF))
            grad_SF, grad_t_F = None, None
            if wanted[0]:
                grad_SF = torch.zeros_like(saved[1], memory_format=torch.contiguous_format)
                kernels.csc_softmax_sum_transpose(*given, semi_grad, grad_SF)
            if wanted[1]:
                grad_t_DF = torch.empty_like(saved[2])
                kernels.csc_softmax_sum_t_gradient(*given, grad_t_DF)
                grad_t_F = grad_t_DF.sum(0)
            return grad_SF, grad_t_F

        return OwnGradient.apply(forward, backward, rows_SF, t_F)
    values_EF = edge_gather(rows_SF, local_source)
    with torch.set_grad_enabled(torch.is_grad_enabled() and not semi_grad):
        shares_EF, _ = edge_softmax(values_EF * t_F, indptr)
    return segment_sum(values_EF * shares_EF, indptr)

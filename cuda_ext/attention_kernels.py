"""Launches of the attention and gate kernels; twins of ``hongtu.kernels.attention``, of the same arguments.

Legend: D destinations, S sources, E edges, F = H * K features, H heads, K channels per head. The conventions are those
of ``hongtu.cuda_ext.kernels``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hongtu.cuda_ext.arguments import (
    FLOATS,
    HUB,
    address,
    block_of,
    lane_elements,
    launch_ranges,
    refuse,
    two_dimensions,
)
from hongtu.cuda_ext.launch import Launcher


def segment_softmax(
    launcher: Launcher,
    stream: Any,
    indptr: Tensor,
    logits_EH: Tensor,
    mask_E: Tensor | None,
    extra_DH: Tensor | None,
    out_EH: Tensor,
    out_extra_DH: Tensor | None,
) -> None:
    """Softmax over the in-edges of each destination, per head.

    ``mask_E`` (bool, True = the edge is excluded and gets 0) and ``extra_DH`` (one more logit per destination, its
    share goes to ``out_extra_DH``) may be absent. Takes 2 D H floats of scratch where a destination may have more
    than ``HUB`` in-edges, from torch's current stream: launch on that one.
    """
    kernel = "segment_softmax"
    dtype, num_edges, heads = two_dimensions(kernel, "logits", logits_EH)
    num_dst = indptr.shape[0] - 1
    if num_dst == 0 or heads == 0:
        return
    logits_at = address(launcher, kernel, "logits", logits_EH, dtype, (num_edges, heads))
    out_at = address(launcher, kernel, "out", out_EH, dtype, (num_edges, heads))
    indptr_at = address(launcher, kernel, "indptr", indptr, torch.int64, (num_dst + 1,))
    mask_at = extra_at = out_extra_at = 0
    if mask_E is not None and mask_E.shape[0]:
        mask_at = address(launcher, kernel, "mask", mask_E, torch.bool, (num_edges,))
    if extra_DH is not None and extra_DH.shape[0]:
        if out_extra_DH is None:
            refuse(kernel, "out_extra", "value", None, "a tensor, as for extra")
        extra_at = address(launcher, kernel, "extra", extra_DH, dtype, (num_dst, heads))
        out_extra_at = address(launcher, kernel, "out_extra", out_extra_DH, dtype, (num_dst, heads))
    scratch = logits_EH.new_empty((2, num_dst, heads)) if num_edges > HUB else None
    scratch_at = (0, 0) if scratch is None else (scratch[0].data_ptr(), scratch[1].data_ptr())
    args = (indptr_at, logits_at, mask_at, extra_at, out_at, out_extra_at, *scratch_at, num_dst, num_edges, heads)
    tensors = (indptr, logits_EH, mask_E, extra_DH, out_EH, out_extra_DH, scratch)
    name = f"{kernel}_{FLOATS[dtype]}x1"
    launch_ranges(launcher, stream, name, args, num_dst, num_edges, heads, tensors, stages_of_hubs=(1, 2, 3))


def segment_softmax_backward(
    launcher: Launcher,
    stream: Any,
    indptr: Tensor,
    alpha_EH: Tensor,
    alpha_extra_DH: Tensor | None,
    grad_EH: Tensor,
    grad_extra_DH: Tensor | None,
    grad_logits_EH: Tensor,
    grad_logits_extra_DH: Tensor | None,
) -> None:
    """Gradients of the logits from the shares ``alpha`` (0 where excluded) and the gradients of the shares.

    Takes D H floats of scratch, as ``segment_softmax``.
    """
    kernel = "segment_softmax_backward"
    dtype, num_edges, heads = two_dimensions(kernel, "alpha", alpha_EH)
    num_dst = indptr.shape[0] - 1
    if num_dst == 0 or heads == 0:
        return
    indptr_at = address(launcher, kernel, "indptr", indptr, torch.int64, (num_dst + 1,))
    alpha_at, grad_at, out_at = (
        address(launcher, kernel, name, tensor, dtype, (num_edges, heads))
        for name, tensor in (("alpha", alpha_EH), ("grad", grad_EH), ("grad_logits", grad_logits_EH))
    )
    extra_at = grad_extra_at = out_extra_at = 0
    if alpha_extra_DH is not None and alpha_extra_DH.shape[0]:
        if grad_extra_DH is None or grad_logits_extra_DH is None:
            refuse(kernel, "grad_extra and grad_logits_extra", "value", None, "tensors, as for alpha_extra")
        extra_at = address(launcher, kernel, "alpha_extra", alpha_extra_DH, dtype, (num_dst, heads))
        grad_extra_at = address(launcher, kernel, "grad_extra", grad_extra_DH, dtype, (num_dst, heads))
        out_extra_at = address(launcher, kernel, "grad_logits_extra", grad_logits_extra_DH, dtype, (num_dst, heads))
    scratch = alpha_EH.new_empty((num_dst, heads)) if num_edges > HUB else None
    scratch_at = 0 if scratch is None else scratch.data_ptr()
    extras = (extra_at, grad_at, grad_extra_at, out_at, out_extra_at)
    args = (indptr_at, alpha_at, *extras, scratch_at, num_dst, num_edges, heads)
    tensors = (indptr, alpha_EH, alpha_extra_DH, grad_EH, grad_extra_DH, grad_logits_EH, grad_logits_extra_DH, scratch)
    name = f"{kernel}_{FLOATS[dtype]}x1"
    launch_ranges(launcher, stream, name, args, num_dst, num_edges, heads, tensors, stages_of_hubs=(1, 2))


def attend(
    launcher: Launcher,
    stream: Any,
    indptr: Tensor,
    local_source: Tensor,
    alpha_EH: Tensor,
    rows_CF: Tensor,
    out_DF: Tensor,
) -> None:
    """out[d, h, :] = sum over in-edges e of alpha[e, h] * rows[source of e, h, :]; overwrites ``out``.

    Rows and outputs are H heads of K channels; ``rows_CF`` may have further columns, which are not read.
    """
    dtype, num_dst, width = two_dimensions("attend", "out", out_DF)
    if num_dst == 0 or width == 0:
        return
    out_at = address(launcher, "attend", "out", out_DF, dtype, (num_dst, width))
    graph, rows_at, sizes = _heads(launcher, "attend", indptr, local_source, alpha_EH, rows_CF, dtype, num_dst, width)
    alpha_at = address(launcher, "attend", "alpha", alpha_EH, dtype, alpha_EH.shape)
    elements = _head_lane(dtype, rows_at, out_at, sizes, width)
    args = (*graph, alpha_at, rows_at, out_at, *sizes)
    name = f"attend_{FLOATS[dtype]}x{elements}"
    tensors = (indptr, local_source, alpha_EH, rows_CF, out_DF)
    launch_ranges(launcher, stream, name, args, num_dst, sizes[3], width // elements, tensors)


def attend_transpose(
    launcher: Launcher,
    stream: Any,
    indptr: Tensor,
    local_source: Tensor,
    alpha_EH: Tensor,
    grad_DF: Tensor,
    out_CF: Tensor,
) -> None:
    """Adds the gradient of ``attend`` with respect to the rows to ``out_CF``, in place, by atomics."""
    kernel = "attend_transpose"
    dtype, num_dst, width = two_dimensions(kernel, "grad", grad_DF)
    if local_source.shape[0] == 0 or width == 0:
        return
    grad_at = address(launcher, kernel, "grad", grad_DF, dtype, (num_dst, width))
    graph, out_at, sizes = _heads(launcher, kernel, indptr, local_source, alpha_EH, out_CF, dtype, num_dst, width)
    alpha_at = address(launcher, kernel, "alpha", alpha_EH, dtype, alpha_EH.shape)
    args = (*graph, alpha_at, grad_at, out_at, *sizes)
    tensors = (indptr, local_source, alpha_EH, grad_DF, out_CF)
    launch_ranges(launcher, stream, f"{kernel}_{FLOATS[dtype]}x1", args, num_dst, sizes[3], width, tensors)


def attend_alpha_gradient(
    launcher: Launcher,
    stream: Any,
    indptr: Tensor,
    local_source: Tensor,
    rows_CF: Tensor,
    grad_DF: Tensor,
    out_EH: Tensor,
) -> None:
    """out[e, h] = <rows[source of e, h, :], grad[destination of e, h, :]>: the gradient of ``attend`` in alpha."""
    kernel = "attend_alpha_gradient"
    dtype, num_dst, width = two_dimensions(kernel, "grad", grad_DF)
    num_edges = local_source.shape[0]
    if num_edges == 0 or out_EH.shape[1] == 0:
        return
    grad_at = address(launcher, kernel, "grad", grad_DF, dtype, (num_dst, width))
    graph, rows_at, sizes = _heads(launcher, kernel, indptr, local_source, out_EH, rows_CF, dtype, num_dst, width)
    out_at = address(launcher, kernel, "out", out_EH, dtype, out_EH.shape)
    elements = _head_lane(dtype, rows_at, grad_at, sizes, width)
    args = (*graph, rows_at, grad_at, out_at, *sizes)
    heads = out_EH.shape[1]
    lanes = block_of(width // heads // elements)[0]  # of a pair of an edge and a head
    pairs = -(-num_edges * heads // num_dst)  # of an average destination
    name = f"{kernel}_{FLOATS[dtype]}x{elements}"
    tensors = (indptr, local_source, rows_CF, grad_DF, out_EH)
    launch_ranges(launcher, stream, name, args, num_dst, num_edges, min(lanes * pairs, 32), tensors)


def gated_sum(
    launcher: Launcher,
    stream: Any,
    indptr: Tensor,
    local_source: Tensor,
    key_DF: Tensor,
    rows_C2F: Tensor,
    out_DF: Tensor,
) -> None:
    """out[d] = sum over in-edges of sigmoid(key[d] + query) * value; a source row is [query | value]."""
    _gated(launcher, stream, "gated_sum", indptr, local_source, key_DF, rows_C2F, None, out_DF)


def gated_sum_key_gradient(
    launcher: Launcher,
    stream: Any,
    indptr: Tensor,
    local_source: Tensor,
    key_DF: Tensor,
    rows_C2F: Tensor,
    grad_DF: Tensor,
    out_DF: Tensor,
) -> None:
    """Gradient of ``gated_sum`` with respect to the keys; overwrites ``out``."""
    _gated(launcher, stream, "gated_sum_key_gradient", indptr, local_source, key_DF, rows_C2F, grad_DF, out_DF)


def gated_sum_transpose(
    launcher: Launcher,
    stream: Any,
    indptr: Tensor,
    local_source: Tensor,
    key_DF: Tensor,
    rows_C2F: Tensor,
    grad_DF: Tensor,
    out_C2F: Tensor,
) -> None:
    """Adds the gradient of ``gated_sum`` with respect to the source rows to ``out_C2F``, in place, by atomics."""
    _gated(launcher, stream, "gated_sum_transpose", indptr, local_source, key_DF, rows_C2F, grad_DF, out_C2F)


def _heads(
    launcher: Launcher,
    kernel: str,
    indptr: Tensor,
    local_source: Tensor,
    shares_EH: Tensor,
    rows_CF: Tensor,
    dtype: torch.dtype,
    num_dst: int,
    width: int,
) -> tuple[tuple[int, int], int, tuple[int, int, int, int, int]]:
    """Addresses of the graph and of the rows; (stride, heads, D, E, width)."""
    num_edges, heads = local_source.shape[0], shares_EH.shape[1]
    _, num_rows, stride = two_dimensions(kernel, "rows", rows_CF)
    if shares_EH.shape[0] != num_edges:
        refuse(kernel, "alpha", "shape", tuple(shares_EH.shape), (num_edges, heads))
    if heads == 0 or width % heads:
        refuse(kernel, "alpha", "heads", heads, f"a divisor of the width {width}")
    if stride < width:
        refuse(kernel, "rows", "columns", stride, f"{width} or more")
    graph = (
        address(launcher, kernel, "indptr", indptr, torch.int64, (num_dst + 1,)),
        address(launcher, kernel, "local_source", local_source, torch.int32, (num_edges,)),
    )
    rows_at = address(launcher, kernel, "rows", rows_CF, dtype, (num_rows, stride))
    return graph, rows_at, (stride, heads, num_dst, num_edges, width)


def _head_lane(dtype: torch.dtype, a: int, b: int, sizes: tuple[int, int, int, int, int], width: int) -> int:
    """Elements per lane, none of which spans two heads."""
    stride, heads = sizes[:2]
    return lane_elements(dtype, a, b, stride * dtype.itemsize, width // heads * dtype.itemsize)


def _gated(
    launcher: Launcher,
    stream: Any,
    kernel: str,
    indptr: Tensor,
    local_source: Tensor,
    key_DF: Tensor,
    rows_C2F: Tensor,
    grad_DF: Tensor | None,
    out: Tensor,
) -> None:
    dtype, num_dst, width = two_dimensions(kernel, "key", key_DF)
    num_edges, transpose = local_source.shape[0], kernel == "gated_sum_transpose"
    if num_dst == 0 or width == 0 or (transpose and num_edges == 0):
        return
    num_rows = rows_C2F.shape[0]
    pointers = [
        address(launcher, kernel, "key", key_DF, dtype, (num_dst, width)),
        address(launcher, kernel, "rows", rows_C2F, dtype, (num_rows, 2 * width)),
    ]
    if grad_DF is not None:
        pointers.append(address(launcher, kernel, "grad", grad_DF, dtype, (num_dst, width)))
    pointers.append(
        address(launcher, kernel, "out", out, dtype, (num_rows, 2 * width) if transpose else (num_dst, width))
    )
    elements = 1 if transpose else lane_elements(dtype, *pointers, width * dtype.itemsize)
    args = (
        address(launcher, kernel, "indptr", indptr, torch.int64, (num_dst + 1,)),
        address(launcher, kernel, "local_source", local_source, torch.int32, (num_edges,)),
        *pointers,
        num_dst,
        num_edges,
        width,
    )
    name = f"{kernel}_{FLOATS[dtype]}x{elements}"
    tensors = (indptr, local_source, key_DF, rows_C2F, grad_DF, out)
    launch_ranges(launcher, stream, name, args, num_dst, num_edges, width // elements, tensors)

"""Launches of the row, CSC and dropout kernels: twins of ``hongtu.kernels.sums``, ``row_copies`` and ``nn.dropout``.

Legend: D destinations, S sources, C rows of a cache, E edges, F features, K rows moved, R rows. After the launcher and
the stream they have their twins' arguments. Every function enqueues on ``stream`` (see ``Launcher.launch``) and
returns; nothing is launched for empty inputs. Tensors are contiguous, float32
or float64, all of one dtype; rows and slots are int32, ``indptr`` int64; None or a length of 0 means "none" (the
identity for indices, ones for weights). Inputs and outputs must not overlap.

Raises (all): ValueError for a tensor of another dtype, shape, layout or device; KernelError from the launcher.
"""

from __future__ import annotations

import struct
from typing import Any, Literal

import torch
from torch import Tensor

from hongtu.cuda_ext.arguments import (
    FLOATS,
    MAX_BLOCKS,
    address,
    address_anywhere,
    block_of,
    lane_elements,
    launch_ranges,
    optional,
    refuse,
    two_dimensions,
)
from hongtu.cuda_ext.launch import Launcher

ROWS_AT_ONCE = 4  # as in rows.cu
_ADDS = {"plain": "add_rows", "atomic": "add_rows_atomic", "system": "add_rows_system"}


def copy_rows(
    launcher: Launcher,
    stream: Any,
    src: Tensor,
    src_index: Tensor | None,
    dst: Tensor,
    dst_index: Tensor | None,
    max_blocks: int = MAX_BLOCKS,
) -> None:
    """dst[dst_index[k]] = src[src_index[k]]: load, pull, gradient compaction.

    Args:
        src: [N, F]; may be in pinned host memory, which a GPU reads at the same address. float32 or float64,
            as ``dst``.
        src_index: int32 [K], or None for all rows in order.
        dst: [M, F]; may be in pinned host memory as well.
        dst_index: int32 [K], unique, or None for all rows in order.
        max_blocks: leaves the other multiprocessors to what runs beside a copy over a slow link.
    """
    dtype = src.dtype
    if dtype not in FLOATS or dst.dtype is not dtype:
        refuse("copy_rows", "src and dst", "dtypes", (dtype, dst.dtype), "float32 or float64, both the same")
    count, width, args = _moved(launcher, "copy_rows", src, src_index, dst, dst_index)
    if count == 0 or width == 0:
        return
    elements = lane_elements(dtype, args[0], args[2], width * dtype.itemsize)
    name = f"copy_rows_{FLOATS[dtype]}x{elements}"
    _launch_rows(launcher, stream, name, args, count, width // elements, max_blocks, (src, src_index, dst, dst_index))


def add_rows(
    launcher: Launcher,
    stream: Any,
    src: Tensor,
    src_index: Tensor | None,
    dst: Tensor,
    dst_index: Tensor | None,
    how: Literal["plain", "atomic", "system"] = "plain",
    max_blocks: int = MAX_BLOCKS,
) -> None:
    """dst[dst_index[k]] += src[src_index[k]]: push.

    Args:
        src, src_index, dst, dst_index, max_blocks: see ``copy_rows``; one dtype.
        how: "plain" where ``dst_index`` is unique and nobody else writes these rows meanwhile, "atomic" where indices
            repeat, "system" where other devices add to them too.
    """
    dtype = src.dtype
    if dtype not in FLOATS or dst.dtype is not dtype:
        refuse("add_rows", "src and dst", "dtypes", (dtype, dst.dtype), "float32 or float64, both the same")
    count, width, args = _moved(launcher, "add_rows", src, src_index, dst, dst_index)
    if count == 0 or width == 0:
        return
    elements = lane_elements(dtype, args[0], args[2], width * dtype.itemsize) if how == "plain" else 1
    name = f"{_ADDS[how]}_{FLOATS[dtype]}x{elements}"
    _launch_rows(launcher, stream, name, args, count, width // elements, max_blocks, (src, src_index, dst, dst_index))


def zero_rows(launcher: Launcher, stream: Any, dst: Tensor, dst_index: Tensor | None) -> None:
    """dst[dst_index] = 0; ``dst`` [M, F], ``dst_index`` int32 [K] or None for all rows."""
    dtype, count, width = two_dimensions("zero_rows", "dst", dst)
    if dst_index is not None:
        count = dst_index.shape[0]
    if count == 0 or width == 0:
        return
    dst_at = address(launcher, "zero_rows", "dst", dst, dtype, dst.shape)
    args = (dst_at, optional(launcher, "zero_rows", "dst_index", dst_index, torch.int32, count), count, width)
    elements = lane_elements(dtype, dst_at, width * dtype.itemsize)
    _launch_rows(
        launcher,
        stream,
        f"zero_rows_{FLOATS[dtype]}x{elements}",
        args,
        count,
        width // elements,
        MAX_BLOCKS,
        (dst, dst_index),
    )


def gather_rows(launcher: Launcher, stream: Any, src: Tensor, index: Tensor, out: Tensor) -> None:
    """out[k] = src[index[k]]."""
    copy_rows(launcher, stream, src, index, out, None)


def scatter_add_rows(launcher: Launcher, stream: Any, dst: Tensor, index_unique: Tensor, src: Tensor) -> None:
    """dst[index[k]] += src[k]; the indices must be unique."""
    add_rows(launcher, stream, src, None, dst, index_unique)


def scatter_add_edges(launcher: Launcher, stream: Any, local_source: Tensor, src_EF: Tensor, out_SF: Tensor) -> None:
    """out[local_source[e]] += src[e]; the indices may repeat."""
    add_rows(launcher, stream, src_EF, None, out_SF, local_source, "atomic")


def csc_aggregate(
    launcher: Launcher,
    stream: Any,
    indptr: Tensor,
    local_source: Tensor,
    slot_of_source: Tensor | None,
    weight: Tensor | None,
    mean: bool,
    rows_CF: Tensor,
    out_DF: Tensor,
) -> None:
    """out[d] = sum over in-edges e of d of weight[e] * rows[slot_of_source[local_source[e]]]; overwrites ``out``.

    ``mean`` divides by the number of in-edges (not of weights); a destination without any gets 0.
    """
    dtype, num_dst, width = two_dimensions("csc_aggregate", "out", out_DF)
    if num_dst == 0 or width == 0:
        return
    num_edges = local_source.shape[0]
    rows_at = address(launcher, "csc_aggregate", "rows", rows_CF, dtype, (rows_CF.shape[0], width))
    out_at = address(launcher, "csc_aggregate", "out", out_DF, dtype, (num_dst, width))
    graph = _graph(launcher, "csc_aggregate", indptr, local_source, slot_of_source, weight, mean, num_dst, dtype)
    elements = lane_elements(dtype, rows_at, out_at, width * dtype.itemsize)
    args = (*graph, rows_at, out_at, num_dst, num_edges, width)
    name = f"csc_aggregate_{FLOATS[dtype]}x{elements}"
    tensors = (indptr, local_source, slot_of_source, weight, rows_CF, out_DF)
    launch_ranges(launcher, stream, name, args, num_dst, num_edges, width // elements, tensors)


def csc_aggregate_transpose(
    launcher: Launcher,
    stream: Any,
    indptr: Tensor,
    local_source: Tensor,
    slot_of_source: Tensor | None,
    weight: Tensor | None,
    mean: bool,
    grad_DF: Tensor,
    out_CF: Tensor,
) -> None:
    """Adds the gradient of ``csc_aggregate`` to the rows of ``out_CF``, in place, by atomics."""
    kernel = "csc_aggregate_transpose"
    dtype, num_dst, width = two_dimensions(kernel, "grad", grad_DF)
    num_edges = local_source.shape[0]
    if num_edges == 0 or width == 0:
        return
    grad_at = address(launcher, kernel, "grad", grad_DF, dtype, (num_dst, width))
    out_at = address(launcher, kernel, "out", out_CF, dtype, (out_CF.shape[0], width))
    graph = _graph(launcher, kernel, indptr, local_source, slot_of_source, weight, mean, num_dst, dtype)
    args = (*graph, grad_at, out_at, num_dst, num_edges, width)
    tensors = (indptr, local_source, slot_of_source, weight, grad_DF, out_CF)
    launch_ranges(launcher, stream, f"{kernel}_{FLOATS[dtype]}x1", args, num_dst, num_edges, width, tensors)


def segment_sum(launcher: Launcher, stream: Any, indptr: Tensor, x_EF: Tensor, out_DF: Tensor) -> None:
    """out[d] = sum of the rows of d's in-edges; overwrites ``out``."""
    _segments(launcher, stream, "segment_sum", indptr, x_EF, out_DF, out_DF.shape[0], x_EF.shape[0])


def expand_rows(launcher: Launcher, stream: Any, indptr: Tensor, x_DF: Tensor, out_EF: Tensor) -> None:
    """out[e] = x[destination of e]: the transpose of ``segment_sum``."""
    if out_EF.shape[0]:
        _segments(launcher, stream, "expand_rows", indptr, x_DF, out_EF, x_DF.shape[0], out_EF.shape[0])


def dropout(
    launcher: Launcher, stream: Any, x_RF: Tensor, ids: Tensor, key: int, threshold: int, scale: float, out_RF: Tensor
) -> None:
    """out = x * scale where the 32-bit hash of (key, row id, column) reaches ``threshold``, else 0.

    Args:
        x_RF, out_RF: float [R, F].
        ids: int64 [R], identity of each row.
        key: 64 bits, ``hongtu.nn.dropout.dropout_key``.
        threshold: p * 2^32, rounded.
        scale: 1 / (1 - p), rounded to the dtype of ``x`` before it multiplies; 0 for p = 1.
    """
    dtype, num_rows, width = two_dimensions("dropout", "x", x_RF)
    if num_rows == 0 or width == 0:
        return
    x_at = address(launcher, "dropout", "x", x_RF, dtype, (num_rows, width))
    out_at = address(launcher, "dropout", "out", out_RF, dtype, (num_rows, width))
    ids_at = address(launcher, "dropout", "ids", ids, torch.int64, (num_rows,))
    key_bits = key - (1 << 64) if key >> 63 else key
    [scale_bits] = struct.unpack("q", struct.pack("d", scale))
    args = (x_at, ids_at, key_bits, threshold, scale_bits, out_at, num_rows, width)
    block = block_of((width + 1) // 2)
    blocks = min(-(-num_rows // block[1]), MAX_BLOCKS)
    launcher.launch(f"dropout_{FLOATS[dtype]}x1", (blocks, 1), block, args, stream, (x_RF, ids, out_RF))


def _segments(
    launcher: Launcher, stream: Any, kernel: str, indptr: Tensor, x: Tensor, out: Tensor, num_dst: int, num_edges: int
) -> None:
    dtype, num_rows, width = two_dimensions(kernel, "x", x)
    if num_dst == 0 or width == 0:
        return
    x_at = address(launcher, kernel, "x", x, dtype, (num_rows, width))
    out_at = address(launcher, kernel, "out", out, dtype, (out.shape[0], width))
    indptr_at = address(launcher, kernel, "indptr", indptr, torch.int64, (num_dst + 1,))
    elements = lane_elements(dtype, x_at, out_at, width * dtype.itemsize)
    args = (indptr_at, x_at, out_at, num_dst, num_edges, width)
    name = f"{kernel}_{FLOATS[dtype]}x{elements}"
    launch_ranges(launcher, stream, name, args, num_dst, num_edges, width // elements, (indptr, x, out))


def _graph(
    launcher: Launcher,
    kernel: str,
    indptr: Tensor,
    local_source: Tensor,
    slot_of_source: Tensor | None,
    weight: Tensor | None,
    mean: bool,
    num_dst: int,
    dtype: torch.dtype,
) -> tuple[int, ...]:
    num_edges = local_source.shape[0]
    return (
        address(launcher, kernel, "indptr", indptr, torch.int64, (num_dst + 1,)),
        address(launcher, kernel, "local_source", local_source, torch.int32, (num_edges,)),
        optional(launcher, kernel, "slot_of_source", slot_of_source, torch.int32),
        optional(launcher, kernel, "weight", weight, dtype, num_edges),
        int(mean),
    )


def _moved(
    launcher: Launcher, kernel: str, src: Tensor, src_index: Tensor | None, dst: Tensor, dst_index: Tensor | None
) -> tuple[int, int, tuple[int, ...]]:
    """Rows to move, their width, and the arguments of the kernel."""
    if src.dim() != 2:
        refuse(kernel, "src", "shape", tuple(src.shape), "two dimensions")
    rows, width = src.shape
    index = src_index if dst_index is None else dst_index
    count = rows if index is None else index.shape[0]
    dst_shape = (count if dst_index is None else dst.shape[0], width)
    args = (
        address_anywhere(kernel, "src", src, src.dtype, (count if src_index is None else rows, width)),
        optional(launcher, kernel, "src_index", src_index, torch.int32, count),
        address_anywhere(kernel, "dst", dst, dst.dtype, dst_shape)
        if kernel == "copy_rows"
        else address(launcher, kernel, "dst", dst, dst.dtype, dst_shape),
        optional(launcher, kernel, "dst_index", dst_index, torch.int32, count),
        count,
        width,
    )
    return count, width, args


def _launch_rows(
    launcher: Launcher,
    stream: Any,
    name: str,
    args: tuple[int, ...],
    count: int,
    units: int,
    max_blocks: int,
    tensors: tuple[Tensor | None, ...],
) -> None:
    block = block_of(units)
    blocks = -(-count // (block[1] * ROWS_AT_ONCE))
    launcher.launch(name, (min(blocks, max_blocks), 1), block, args, stream, tensors)

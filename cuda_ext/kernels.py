"""Launches of all kernels: twins of those in ``hongtu.kernels`` and of ``nn.dropout``'s.

Legend: D destinations, C rows of a cache or of sources, E edges, F features, H heads, K rows moved, R rows. After the
launcher and the stream they have their twins' arguments. Every function enqueues on ``stream`` (see
``Launcher.launch``) and returns; nothing is launched for empty inputs. Tensors are contiguous, but for rows of
features, which may be apart (what is between two is read, and never written), float32 or float64, all of one dtype;
indices of rows and slots are int32, ``indptr`` int64; None or a length of 0 means "none" (the identity for indices,
ones for weights). Inputs and outputs must not overlap.

Raises (all): ValueError for a tensor of another dtype, shape, layout or device; KernelError from the launcher.
"""

from __future__ import annotations

import struct
from typing import Any, Literal

import torch
from torch import Tensor

from hongtu.cuda_ext.arguments import (
    COPIED,
    FLOATS,
    MAX_BLOCKS,
    address,
    block_of,
    lane_elements,
    matrix,
    optional,
    refuse,
    two_dimensions,
)
from hongtu.cuda_ext.edge_kernels import EdgeKernel
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
            as ``dst``, or one of the two is bfloat16 and the other that or float32.
        src_index: int32 [K], or None for all rows in order.
        dst: [M, F]; may be in pinned host memory as well.
        dst_index: int32 [K], unique, or None for all rows in order.
        max_blocks: leaves the other multiprocessors to what runs beside a copy over a slow link.
    """
    _move(launcher, stream, "copy_rows", src, src_index, dst, dst_index, max_blocks, wide=True)


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
    _move(launcher, stream, _ADDS[how], src, src_index, dst, dst_index, max_blocks, wide=how == "plain")


def zero_rows(launcher: Launcher, stream: Any, dst: Tensor, dst_index: Tensor | None) -> None:
    """dst[dst_index] = 0; ``dst`` [M, F], ``dst_index`` int32 [K] or None for all rows."""
    dtype, count, width = two_dimensions("zero_rows", "dst", dst)
    if dst_index is not None:
        count = dst_index.shape[0]
    at, stride, lanes = matrix(launcher, "zero_rows", "dst", dst, dtype, dst.shape)
    index_at = optional(launcher, "zero_rows", "dst_index", dst_index, torch.int32, count)
    elements = lane_elements(dtype, lanes)
    name = f"zero_rows_{FLOATS[dtype]}x{elements}"
    args = (at, index_at, stride, count, width)
    _launch_rows(launcher, stream, name, args, elements, MAX_BLOCKS, (dst, dst_index))


def gather_rows(launcher: Launcher, stream: Any, src: Tensor, index: Tensor, out: Tensor) -> None:
    """out[k] = src[index[k]]."""
    copy_rows(launcher, stream, src, index, out, None)


def scatter_add_rows(launcher: Launcher, stream: Any, dst: Tensor, index_unique: Tensor, src: Tensor) -> None:
    """dst[index[k]] += src[k]; the indices must be unique."""
    add_rows(launcher, stream, src, None, dst, index_unique)


def scatter_add_edges(launcher: Launcher, stream: Any, local_source: Tensor, src_EF: Tensor, out_SF: Tensor) -> None:
    """out[local_source[e]] += src[e]; the indices may repeat."""
    add_rows(launcher, stream, src_EF, None, out_SF, local_source, "atomic")


_SEGMENTS = "indptr:int64[D+1]"
_GRAPH = f"{_SEGMENTS} local_source:int32[E]"
_CSC = f"{_GRAPH} slot_of_source:int32[S]? weight[E]? mean"
_GATES = f"{_GRAPH} key[D,F] rows[C,2F]"
_HEADS: dict[str, Any] = {"numbers": "DEH", "lanes": "", "units": lambda sizes, _: sizes["H"]}

# transposes add to the rows of sources by atomics, a column per lane
csc_aggregate = EdgeKernel("csc_aggregate", f"{_CSC} rows[C,F] out[D,F]", "DF")
csc_aggregate_transpose = EdgeKernel("csc_aggregate_transpose", f"{_CSC} grad[D,F] out[C,F]", "EF", lanes="")
segment_sum = EdgeKernel("segment_sum", f"{_SEGMENTS} x[E,F] out[D,F]", "DF", lanes="x")
expand_rows = EdgeKernel("expand_rows", f"{_SEGMENTS} x[D,F] out[E,F]", "DEF", lanes="out")
segment_softmax = EdgeKernel(
    "segment_softmax",
    f"{_SEGMENTS} logits[E,H] mask:bool[E]? extra[D,H]? out[E,H] out_extra[D,H]&extra",
    "DH", stages=(1, 2, 3), scratch=2, **_HEADS,
)  # fmt: skip
segment_softmax_backward = EdgeKernel(
    "segment_softmax_backward",
    f"{_SEGMENTS} alpha[E,H] alpha_extra[D,H]? grad[E,H] grad_extra[D,H]&alpha_extra grad_logits[E,H] "
    "grad_logits_extra[D,H]&alpha_extra",
    "DH", stages=(1, 2), scratch=1, **_HEADS,
)  # fmt: skip
attend = EdgeKernel("attend", f"{_GRAPH} alpha[E,H] rows[C,X] out[D,F]", "DF", numbers="HDEF")
attend_transpose = EdgeKernel(
    "attend_transpose", f"{_GRAPH} alpha[E,H] grad[D,F] out[C,X]", "EF", numbers="HDEF", lanes=""
)
attend_alpha_gradient = EdgeKernel(
    "attend_alpha_gradient",
    f"{_GRAPH} rows[C,X] grad[D,F] out[E,H]",
    "EH",
    numbers="HDEF",
    lanes="rows grad",
    # lanes of a pair of an edge and a head, times the pairs of an average destination
    units=lambda n, elements: min(block_of(-(-n["K"] // elements))[0] * -(-n["E"] * n["H"] // n["D"]), 32),
)
gated_sum = EdgeKernel("gated_sum", f"{_GATES} out[D,F]", "DF")
gated_sum_key_gradient = EdgeKernel("gated_sum_key_gradient", f"{_GATES} grad[D,F] out[D,F]", "DF")
gated_sum_transpose = EdgeKernel("gated_sum_transpose", f"{_GATES} grad[D,F] out[C,2F]", "DEF", lanes="")


def dropout(
    launcher: Launcher,
    stream: Any,
    x_RF: Tensor,
    ids: Tensor,
    key: Tensor,
    site: int,
    call: int,
    threshold: int,
    scale: float,
    out_RF: Tensor,
) -> None:
    """out = x * scale where the 32-bit hash of (key, site, call, row id, column) reaches ``threshold``, else 0.

    Args:
        x_RF, out_RF: float [R, F].
        ids: int64 [R], identity of each row.
        key: int64 [1], of the seed and the epoch: read when the kernel runs.
        site, call: what else the mask depends on.
        threshold: p * 2^32, rounded.
        scale: 1 / (1 - p), rounded to the dtype of ``x`` before it multiplies; 0 for p = 1.
    """
    dtype, num_rows, width = two_dimensions("dropout", "x", x_RF)
    if num_rows == 0 or width == 0:
        return
    x_at, x_stride, _ = matrix(launcher, "dropout", "x", x_RF, dtype, (num_rows, width))
    out_at, out_stride, _ = matrix(launcher, "dropout", "out", out_RF, dtype, (num_rows, width))
    ids_at = address(launcher, "dropout", "ids", ids, torch.int64, (num_rows,))
    key_at = address(launcher, "dropout", "key", key, torch.int64, (1,))
    [scale_bits] = struct.unpack("q", struct.pack("d", scale))
    numbers = x_stride, out_stride, num_rows, width
    args = (x_at, ids_at, key_at, site, call, threshold, scale_bits, out_at, *numbers)
    block = block_of((width + 1) // 2)
    blocks = min(-(-num_rows // block[1]), MAX_BLOCKS)
    launcher.launch(f"dropout_{FLOATS[dtype]}x1", (blocks, 1), block, args, stream, (x_RF, ids, key, out_RF))


def _move(
    launcher: Launcher,
    stream: Any,
    name: str,
    src: Tensor,
    src_index: Tensor | None,
    dst: Tensor,
    dst_index: Tensor | None,
    max_blocks: int,
    *,
    wide: bool,
) -> None:
    """Launch what copies or adds rows; ``wide``: a lane may take several columns."""
    dtypes, copies = (src.dtype, dst.dtype), name == "copy_rows"
    kernel, form = "copy_rows" if copies else "add_rows", COPIED.get(dtypes)
    if form is None or (torch.bfloat16 in dtypes and not copies):
        refuse(kernel, "src and dst", "dtypes", dtypes, "float32 or float64, both the same")
    if src.dim() != 2:
        refuse(kernel, "src", "shape", tuple(src.shape), "two dimensions")
    rows, width = src.shape
    index = src_index if dst_index is None else dst_index
    count = rows if index is None else index.shape[0]
    dst_shape = (count if dst_index is None else dst.shape[0], width)
    src_shape = (count if src_index is None else rows, width)
    src_at, src_stride, src_lanes = matrix(None, kernel, "src", src, src.dtype, src_shape)  # perhaps in pinned memory
    src_index_at = optional(launcher, kernel, "src_index", src_index, torch.int32, count)
    dst_at, dst_stride, dst_lanes = matrix(None if copies else launcher, kernel, "dst", dst, dst.dtype, dst_shape)
    dst_index_at = optional(launcher, kernel, "dst_index", dst_index, torch.int32, count)
    elements = lane_elements(src.dtype, src_lanes, dst_lanes) if wide else 1
    args = (src_at, src_index_at, dst_at, dst_index_at, src_stride, dst_stride, count, width)
    tensors = (src, src_index, dst, dst_index)
    _launch_rows(launcher, stream, f"{name}_{form}x{elements}", args, elements, max_blocks, tensors)


def _launch_rows(
    launcher: Launcher,
    stream: Any,
    name: str,
    args: tuple[int, ...],
    elements: int,
    max_blocks: int,
    tensors: tuple[Tensor | None, ...],
) -> None:
    """``args`` end with the rows and their width, of which a lane takes so many ``elements``; without any nothing is
    launched."""
    count, width = args[-2:]
    if count == 0 or width == 0:
        return
    block = block_of(-(-width // elements))
    blocks = -(-count // (block[1] * ROWS_AT_ONCE))
    launcher.launch(name, (min(blocks, max_blocks), 1), block, args, stream, tensors)

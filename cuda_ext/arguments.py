"""From tensors to the arguments and the shape of a launch, checked cheaply: this runs for every launch.

Legend: D destinations, E edges, F columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor

from hongtu.cuda_ext.launch import Launcher

THREADS = 256  # per block; as in shared.cuh, like HUB
HUB = 512  # in-edges above which a destination is cut into slices
MAX_BLOCKS = 2**31 - 1
FLOATS = {torch.float32: "f32", torch.float64: "f64"}
COPIED = {(dtype, dtype): name for dtype, name in FLOATS.items()} | {  # from which to which
    (torch.bfloat16, torch.float32): "bf16_f32",
    (torch.float32, torch.bfloat16): "f32_bf16",
    (torch.bfloat16, torch.bfloat16): "bf16",
}
LANE_ELEMENTS = {torch.float32: 4, torch.float64: 2, torch.bfloat16: 4}  # 16 bytes, or 8 that become them
# Of rows: the address of the first; elements from one to the next; and a number that is a multiple of 16 where lanes of
# 16 bytes, of bfloat16 of 8, are aligned in every row, and the last one lies in the rows' memory.
Matrix = tuple[int, int, int]


def refuse(kernel: str, name: str, what: str, found: object, expected: object) -> NoReturn:
    """Raise what a wrong argument ``name`` of a kernel gets."""
    raise ValueError(f"{kernel}: {what} of {name}: found {found}, expected {expected}")


def two_dimensions(kernel: str, name: str, tensor: Tensor) -> tuple[torch.dtype, int, int]:
    """(dtype, rows, columns) of a tensor of float32 or float64."""
    dtype, shape = tensor.dtype, tensor.shape
    if dtype not in FLOATS:
        refuse(kernel, name, "dtype", dtype, "float32 or float64")
    if len(shape) != 2:
        refuse(kernel, name, "shape", tuple(shape), "two dimensions")
    return dtype, shape[0], shape[1]


def address(
    launcher: Launcher, kernel: str, name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]
) -> int:
    """The address of a contiguous tensor of this dtype and shape, in the launcher's memory."""
    _check(launcher, kernel, name, tensor, dtype, shape)
    if not tensor.is_contiguous():
        refuse(kernel, name, "strides", tensor.stride(), "a contiguous tensor")
    return tensor.data_ptr()


def matrix(
    launcher: Launcher | None, kernel: str, name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]
) -> Matrix:
    """Rows of this dtype and shape in the launcher's memory (None: or in pinned host memory), which may be apart."""
    _check(launcher, kernel, name, tensor, dtype, shape)
    at, stride, size, half = tensor.data_ptr(), shape[1], dtype.itemsize, dtype is torch.bfloat16
    if tensor.is_contiguous() and shape[0] != 1:  # one row may have padding all the same
        return at, stride, (at | stride * size) << half
    if not has_rows(tensor):
        refuse(kernel, name, "strides", tensor.stride(), "rows of adjacent elements, none in another")
    stride = max(tensor.stride(0), stride)
    end = (tensor.storage_offset() + shape[0] * stride) * size
    return at, stride, (at | stride * size | (end > tensor.untyped_storage().nbytes())) << half


def _check(
    launcher: Launcher | None, kernel: str, name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    if launcher is not None and tensor.is_cuda is not launcher.on_gpu:
        refuse(kernel, name, "device", tensor.device, "a GPU" if launcher.on_gpu else "the CPU")
    if tensor.dtype is not dtype:
        refuse(kernel, name, "dtype", tensor.dtype, dtype)
    if tensor.shape != shape:
        refuse(kernel, name, "shape", tuple(tensor.shape), shape)


def has_rows(tensor: Tensor) -> bool:
    """Whether a tensor of two dimensions is rows of adjacent elements, which may be apart: what kernels take.

    >>> has_rows(torch.empty(3, 8)[:, 1:6]), has_rows(torch.empty(3, 8).t()), has_rows(torch.empty(1, 8).expand(3, 8))
    (True, False, False)
    """
    (rows, columns), (step, next_column) = tensor.shape, tensor.stride()
    return (columns <= 1 or next_column == 1) and (rows <= 1 or step >= columns)


def optional(launcher: Launcher, kernel: str, name: str, tensor: Tensor | None, dtype: torch.dtype, length: int) -> int:
    """The address of a tensor of one dimension, 0 where it is None or empty."""
    if tensor is None or not tensor.shape[0]:
        return 0
    return address(launcher, kernel, name, tensor, dtype, (length,))


def lane_elements(dtype: torch.dtype, *multiples: int) -> int:
    """Elements per lane: 16 bytes' worth where all of these (the last of a ``Matrix``) are multiples of 16, else 1."""
    for value in multiples:
        if value & 15:
            return 1
    return LANE_ELEMENTS[dtype]


_without_hubs = [0]  # address of an indptr; 0: of none


@contextmanager
def knowing_hubs() -> Iterator[None]:
    """Until the end of this, ``has_no_hub`` holds, or as long as it is of another indptr."""
    _without_hubs.append(0)
    try:
        yield
    finally:
        _without_hubs.pop()


def has_no_hub(indptr: Tensor) -> None:
    """Inside ``knowing_hubs``: nothing need be launched for hubs of these destinations."""
    _without_hubs[-1] = indptr.data_ptr()


def may_have_hubs(indptr_at: int, num_edges: int) -> bool:
    """Whether a destination may have more than ``HUB`` of so many in-edges."""
    return num_edges > HUB and indptr_at != _without_hubs[-1]


def block_of(units: int) -> tuple[int, int]:
    """(lanes per row, rows) of a block, for rows of ``units`` lanes' work: at most a warp per row.

    >>> block_of(100), block_of(3)
    ((32, 8), (4, 64))
    """
    lanes = 32 if units > 16 else 1 << (units - 1).bit_length()
    return lanes, THREADS // lanes


def launch_ranges(
    launcher: Launcher,
    stream: Any,
    name: str,
    args: Sequence[int],
    num_dst: int,
    num_edges: int,
    units: int,
    tensors: tuple[Tensor | None, ...],
    stages_of_hubs: Sequence[int] = (1,),
) -> None:
    """Launch a kernel over the in-edges of every destination (stage 0), then over the slices of hubs if any can exist.

    ``args`` point to ``tensors``, an indptr first, and are followed by the stage; ``units`` is the lanes' work per
    destination.
    """
    block = lanes, per_block = block_of(units)
    column_blocks = -(-units // lanes)
    blocks = min(-(-num_dst // per_block), MAX_BLOCKS)
    launcher.launch(name, (blocks, column_blocks), block, (*args, 0), stream, tensors)
    if may_have_hubs(args[0], num_edges):
        slices = 2 * -(-num_edges // HUB)  # at most two hubs share one
        blocks = min(-(-slices // per_block), MAX_BLOCKS)
        for stage in stages_of_hubs:
            launcher.launch(name, (blocks, column_blocks), block, (*args, stage), stream, tensors)

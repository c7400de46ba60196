"""Row copies between host tensors and caches, by index, on CPU memory (numba, deterministic).

Destination indices of one call are unique, so rows can be moved in parallel, but where one thread works alone.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hongtu.compiled import compiled
from hongtu.kernels import reference
from hongtu.kernels.parts import by_row

MANY = 1_000_000_000  # numbers of the arrays that rows are moved between, as many as compiling takes as long as


@by_row(rows="src_index")
def copy_rows(part, bounds, src, src_index, dst, dst_index):
    """``dst[dst_index] = src[src_index]``; src [N, F], dst [M, F], indices int32 [K]."""
    for k in range(bounds[part], bounds[part + 1]):
        to, row = dst_index[k], src_index[k]
        for f in range(dst.shape[1]):
            dst[to, f] = src[row, f]


@by_row(rows="src_index")
def add_rows(part, bounds, src, src_index, dst, dst_index):
    """``dst[dst_index] += src[src_index]``; src [N, F], dst [M, F], indices int32 [K], ``dst_index`` unique."""
    for k in range(bounds[part], bounds[part + 1]):
        to, row = dst_index[k], src_index[k]
        for f in range(dst.shape[1]):
            dst[to, f] += src[row, f]


@by_row(plain=reference.zero_rows, until=MANY)
def zero_rows(part, bounds, dst, dst_index):
    """``dst[dst_index] = 0``; dst [M, F], index int32 [K]."""
    for k in range(bounds[part], bounds[part + 1]):
        to = dst_index[k]
        for f in range(dst.shape[1]):
            dst[to, f] = 0


@compiled(inline="always")
def put_row(src: np.ndarray, row: int, dst: np.ndarray, to: int, store: bool) -> None:
    """Store row ``row`` of ``src`` in row ``to`` of ``dst``, or add it there."""
    if store:
        for f in range(dst.shape[1]):
            dst[to, f] = src[row, f]
    else:
        for f in range(dst.shape[1]):
            dst[to, f] += src[row, f]


@by_row(rows="src_index", plain=reference.put_rows, until=MANY)
def put_rows(part, bounds, src, src_index, dst, dst_index, stores):
    """Store ``src[src_index]`` in ``dst[dst_index]`` where ``stores``, bool [K], else add; as ``add_rows``."""
    for k in range(bounds[part], bounds[part + 1]):
        put_row(src, src_index[k], dst, dst_index[k], stores[k])


@compiled(plain=reference.put_rows_alone, until=MANY)
def put_rows_alone(src: np.ndarray, dst: np.ndarray, dst_index: np.ndarray, stores: np.ndarray) -> None:
    """``put_rows`` of all rows of ``src``, in their order: ``dst_index`` may repeat where the first one stores."""
    for k in range(len(dst_index)):
        put_row(src, k, dst, dst_index[k], stores[k])


@compiled(inline="always")
def widened(bits: int) -> float:
    """A number in bfloat16, by its bits, in float32."""
    return np.uint32(np.uint32(np.uint16(bits)) << np.uint32(16)).view(np.float32)


@compiled(inline="always")
def rounded(number: float) -> int:
    """A number in float32 in bfloat16, by its bits: rounded to even."""
    bits = np.float32(number).view(np.uint32)
    even = np.uint32(bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    is_nan = np.uint32(bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.int16(0x7FC0) if is_nan else np.int16(np.uint32(even >> np.uint32(16)))


@compiled(inline="always")
def put_half_row(src: np.ndarray, row: int, dst: np.ndarray, to: int, store: bool) -> None:
    """``put_row`` of rows in bfloat16, by their bits: a sum is float32's, rounded to even."""
    for f in range(dst.shape[1]):
        if store:
            dst[to, f] = src[row, f]
        else:
            dst[to, f] = rounded(widened(src[row, f]) + widened(dst[to, f]))


@by_row(rows="src_index", plain=reference.widen_rows, until=MANY)
def widen_rows(part, bounds, src, src_index, dst, dst_index):
    """``copy_rows`` of rows in bfloat16, by their bits int16, to rows in float32."""
    for k in range(bounds[part], bounds[part + 1]):
        to, row = dst_index[k], src_index[k]
        for f in range(dst.shape[1]):
            dst[to, f] = widened(src[row, f])


@by_row(rows="src_index", plain=reference.put_rounded_rows, until=MANY)
def put_rounded_rows(part, bounds, src, src_index, dst, dst_index, stores):
    """``put_rows`` of rows in float32 to rows in bfloat16, by their bits int16: what is kept is rounded to even."""
    for k in range(bounds[part], bounds[part + 1]):
        to, row = dst_index[k], src_index[k]
        if stores[k]:
            for f in range(dst.shape[1]):
                dst[to, f] = rounded(src[row, f])
        else:
            for f in range(dst.shape[1]):
                dst[to, f] = rounded(src[row, f] + widened(dst[to, f]))


@compiled(plain=reference.put_halves_alone, until=MANY)
def put_halves_alone(src: np.ndarray, dst: np.ndarray, dst_index: np.ndarray, stores: np.ndarray) -> None:
    """``put_rows_alone`` of rows in bfloat16, by their bits, int16; ``dst_index`` unique."""
    for k in range(len(dst_index)):
        put_half_row(src, k, dst, dst_index[k], stores[k])


@compiled(plain=reference.widen, until=MANY)
def widen(src: np.ndarray, dst: np.ndarray) -> None:
    """``dst = src`` of numbers [N] in bfloat16, by their bits int16, in float32; one thread works alone."""
    for k in range(len(dst)):
        dst[k] = widened(src[k])


@compiled(plain=reference.round_to_halves, until=MANY)
def round_to_halves(src: np.ndarray, dst: np.ndarray) -> None:
    """``dst = src`` of numbers [N] in float32 in bfloat16, by their bits int16, rounded to even; as ``widen``."""
    for k in range(len(dst)):
        dst[k] = rounded(src[k])


def cast_alone(src: Tensor, dst: Tensor) -> None:
    """``dst = src`` of numbers [N] in other kinds, on one thread, in one call that takes no lock of Python's."""
    kinds = src.dtype, dst.dtype
    if kinds == (torch.bfloat16, torch.float32):
        widen(src.view(torch.int16).numpy(), dst.numpy())
    elif kinds == (torch.float32, torch.bfloat16):
        round_to_halves(src.numpy(), dst.view(torch.int16).numpy())
    else:
        np.copyto(dst.numpy(), src.numpy(), casting="same_kind")


@cache
def put_address(dtype: np.dtype) -> int:
    """The address of a C function that does ``put_rows_alone`` of rows of a dtype, or ``put_halves_alone`` of int16; it
    takes no lock of Python's.

    Its one argument points to seven int64: the addresses of src, dst, dst_index and stores, then K, M and F.
    """
    import numba
    from numba.core import cgutils, types
    from numba.extending import intrinsic

    @intrinsic
    def pointer(typing: Any, address: Any) -> Any:
        """An int64 as the pointer that it is."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], cgutils.voidptr_t)

        return types.voidptr(types.int64), generate

    kind, put_one = numba.from_dtype(dtype), (put_half_row if dtype == np.int16 else put_row).dispatcher

    @numba.cfunc(types.void(types.voidptr))
    def put(given: Any) -> None:
        src_at, dst_at, index_at, stores_at, count, rows, width = numba.carray(given, 7, types.int64)
        src = numba.carray(pointer(src_at), (count, width), kind)
        dst = numba.carray(pointer(dst_at), (rows, width), kind)
        index = numba.carray(pointer(index_at), count, types.int32)
        stores = numba.carray(pointer(stores_at), count, types.boolean)
        for k in range(count):
            put_one(src, k, dst, index[k], stores[k])

    _compiled.append(put)
    return int(put.address)


_compiled: list[Any] = []  # they live as long as the process: graphs have their addresses

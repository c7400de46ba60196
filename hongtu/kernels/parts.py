"""Into which parts the work of a kernel is cut: ranges of destinations, of sources or of rows.

A kernel's first arguments are the part and the bounds of all, ``bounds[part]`` to ``bounds[part + 1]`` being its range;
these decorators supply both. Whatever the ranges, the edges of one sum are added in one order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import numpy as np

from hongtu.compiled import Compiled, compiled
from hongtu.threads import num_threads

LEAST = 1 << 17  # float operations that are worth a part: some tens of microseconds
SAMPLE_PER_PART = 256  # edges looked at to balance the sources that threads own
REASSOCIATE = {"reassoc", "nsz"}  # lets sums vectorise; infinities and NaN keep their meaning

Kernel = Callable[..., None]


def by_destination(function: Kernel | None = None, *, cost: int = 1) -> Any:
    """Compile a kernel whose first array is ``indptr`` int64 [D + 1], and that owns ranges of destinations of about
    equal work: ``cost`` operations for each of a row's columns, of edges and of destinations."""

    def bounds_of(_: Kernel, indptr: np.ndarray, *arrays: Any) -> np.ndarray:
        edges = int(indptr[-1]) - int(indptr[0])
        return balanced_bounds(indptr, parts_for((edges + len(indptr)) * _columns(arrays) * cost))

    return _in_parts(function, bounds_of)


def by_source(function: Kernel | None = None, *, cost: int = 1) -> Any:
    """Compile a kernel with an array ``local_source`` int32 [E] that owns ranges of sources of about equal edges."""

    def bounds_of(kernel: Kernel, *arrays: Any) -> np.ndarray:
        return source_bounds(arrays[_position(kernel, "local_source")], _columns(arrays) * cost)

    return _in_parts(function, bounds_of)


def by_row(
    function: Kernel | None = None, *, cost: int = 1, rows: str = "", plain: Kernel | None = None, **options: Any
) -> Any:
    """Compile a kernel that owns ranges of the rows of the array ``rows`` (default: the last).

    Args:
        plain: as of ``compiled``, for the arrays without the bounds.
        options: of ``compiled``.
    """

    def bounds_of(kernel: Kernel, *arrays: Any) -> np.ndarray:
        count = len(arrays[_position(kernel, rows) if rows else -1])
        parts = max(1, min(parts_for(count * _columns(arrays) * cost // 4), count))  # rows in a row are quick
        return np.arange(parts + 1) * count // parts

    return _in_parts(function, bounds_of, plain=plain and (lambda bounds, *arrays: plain(*arrays)), **options)


def _in_parts(function: Kernel | None, bounds_of: Callable[..., np.ndarray], **options: Any) -> Any:
    def decorate(function: Kernel) -> Kernel:
        kernel: Compiled = compiled(function, fastmath=REASSOCIATE, noalias=True, **options)

        @wraps(function)
        def call(*arrays: Any) -> None:
            bounds = bounds_of(function, *arrays)
            kernel.each(len(bounds) - 1, bounds, *arrays)

        call.kernel = kernel  # type: ignore[attr-defined]
        return call

    return decorate if function is None else decorate(function)


@cache
def _position(kernel: Kernel, name: str) -> int:
    """Of an argument, behind the part and the bounds."""
    return kernel.__code__.co_varnames.index(name) - 2


def _columns(arrays: tuple[Any, ...]) -> int:
    return max((array.shape[1] for array in arrays if getattr(array, "ndim", 0) == 2), default=1)


def parts_for(work: int) -> int:
    """Number of ranges for about ``work`` float operations: 4 per thread, fewer when there is little to do."""
    threads = num_threads()
    return max(1, min(4 * threads, work // LEAST)) if threads > 1 else 1


def balanced_bounds(indptr: np.ndarray, parts: int) -> np.ndarray:
    """int64 [parts + 1]: ranges of destinations of about equal work (edges + 1 per destination)."""
    bounds = np.full(parts + 1, len(indptr) - 1)
    bounds[0] = 0
    if parts > 1:
        _balance(indptr, bounds)
    return bounds


@compiled
def _balance(indptr, bounds):
    first, parts = indptr[0], len(bounds) - 1
    total = indptr[len(indptr) - 1] - first + len(indptr) - 1
    for k in range(1, parts):
        goal = total * k // parts
        lo, hi = bounds[k - 1], len(indptr) - 1
        while lo < hi:
            middle = (lo + hi) // 2
            if indptr[middle] - first + middle < goal:
                lo = middle + 1
            else:
                hi = middle
        bounds[k] = lo


def source_bounds(local_source: np.ndarray, width: int) -> np.ndarray:
    """int64 [parts + 1]: ranges of sources of about equal edges, judged by an even sample of the edges.

    Every part reads all of ``local_source``, so narrow rows get few.
    """
    edges = len(local_source)
    parts = max(1, min(num_threads(), (width + 3) // 4, edges * width // LEAST))
    bounds = np.zeros(parts + 1, dtype=np.int64)
    bounds[parts] = np.iinfo(np.int64).max
    if parts > 1:
        count = min(edges, parts * SAMPLE_PER_PART)
        sample = np.sort(local_source[np.arange(count) * edges // count])
        bounds[1:parts] = sample[count * np.arange(1, parts) // parts]
    return bounds

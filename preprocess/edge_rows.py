"""Rows in a new order, through a bounded buffer: features of vertices, and what lies beside edges (weights, features,
types), with the edge of the input that every edge of the artifact is. Dense rows are never in memory as a whole.

Legend: V vertices, E edges of the input, T edges before equal ones are merged, A edges of the artifact, F columns.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from hongtu.errors import InputError
from hongtu.files import Create, in_memory
from hongtu.graph.sparse_rows import positions
from hongtu.host import available_bytes
from hongtu.preprocess.bucket_sort import group_by_key

ADDED = -1  # the origin of a self-loop that --self-loops adds
INDICES = 8  # times the memory of rows of one number is that of the indices by which they come


def sort_origins(
    source: np.ndarray, destination: np.ndarray, num_vertices: int, *, undirected: bool = False,
    loops: np.ndarray | None = None, create: Create = in_memory,
) -> np.ndarray:  # fmt: skip
    """The number in the input of every edge that ``csc.build_csc`` sorts, in its order: int32 [T], int64 where there
    are too many edges for that. A reverse edge has the origin of its edge, a self-loop that is added has ``ADDED``.

    >>> sort_origins(np.int32([3, 0, 4, 3, 0]), np.int32([1, 2, 1, 0, 4]), 5, loops=np.int32([0])).tolist()
    [3, -1, 0, 2, 1, 4]
    """
    dtype = "int32" if len(source) < 2**31 else "int64"
    numbers = np.arange(len(source), dtype=dtype)
    pairs = [(destination, numbers), *([(source, numbers)] if undirected else [])]
    if loops is not None:
        pairs.append((loops, np.full(len(loops), ADDED, dtype)))
    return group_by_key(pairs, num_vertices, create, dtype)[1]


class EdgeOrder:
    """Where the edges of the artifact come from.

    Args:
        origin: of ``sort_origins``, as ``clean.coalesce`` left it.
        group_start: int64 [A + 1], where the origins of each merged edge start; None: each edge has one.
        old_start: int64 [V + 1] of the edges by original vertex, merged.
        start: int64 [V + 1] of the artifact.
        original_id: int32 [V].
    """

    def __init__(
        self, origin: np.ndarray, group_start: np.ndarray | None, old_start: np.ndarray, start: np.ndarray,
        original_id: np.ndarray,
    ) -> None:  # fmt: skip
        self._origin, self._group_start = origin, group_start
        self._start, self._shift = start, old_start[original_id] - start[:-1]
        self.repeats = max(1, -(-len(origin) // max(1, int(start[-1]))))  # origins of an edge, about

    def origins(self, lo: int, hi: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Those of the edges lo .. hi - 1 of the artifact, and where each edge's start; None: one each."""
        first, last = np.searchsorted(self._start, (lo, hi - 1), side="right") + np.array([-1, 0])
        edges = np.diff(np.clip(self._start[first : last + 1], lo, hi))
        old = np.arange(lo, hi) + np.repeat(self._shift[first:last], edges)
        if self._group_start is None:
            return self._origin[old], None
        count = self._group_start[old + 1] - self._group_start[old]
        return self._origin[positions(self._group_start, old)], np.cumsum(count) - count


def copy_edge_rows(
    name: str,
    values: np.ndarray,
    order: EdgeOrder,
    into: np.ndarray,
    progress: Callable[[float], None] = lambda share: None,
    most: int | None = None,
) -> None:
    """Fill ``into`` with the rows of the input's edges, through a bounded buffer: those of merged edges are summed in
    float64, those of added self-loops are 1 (torch_geometric's ``to_undirected`` and ``add_remaining_self_loops``).

    Args:
        name: what messages call them.
        values: [E] or [E, F], perhaps a memory map.
        into: [A] or [A, F].
        most: bytes of memory for blocks, with their indices; None: what the machine has.

    Raises:
        InputError: when a sum overflows float32.

    >>> order = EdgeOrder(np.int32([1, 0, 2, -1]), np.array([0, 1, 3, 4]), np.array([0, 2, 3]), np.array([0, 1, 3]),
    ...                   np.int32([1, 0]))
    >>> into = np.empty(3, np.float32)
    >>> copy_edge_rows("edge_weight", np.array([1.0, 5.0, 3.0]), order, into)
    >>> into.tolist()
    [1.0, 5.0, 4.0]
    """
    width = int(np.prod(into.shape[1:]))
    step = max(1, block_rows(into.nbytes, width, None if most is None else most // INDICES) // order.repeats)
    for lo in range(0, len(into), step):
        hi = min(lo + step, len(into))
        ids, starts = order.origins(lo, hi)
        rows = np.ones((len(ids), *values.shape[1:]), dtype=into.dtype)
        ascending = np.argsort(ids, kind="stable")  # a file is read from front to back
        ascending = ascending[ids[ascending] != ADDED]
        rows[ascending] = values[ids[ascending]]
        into[lo:hi] = rows if starts is None else _summed(name, rows, starts)
        progress(hi / len(into))


def _summed(name: str, rows: np.ndarray, starts: np.ndarray) -> np.ndarray:
    sums = np.add.reduceat(rows, starts, axis=0, dtype=np.float64)
    if np.abs(sums).max(initial=0) > np.finfo(np.float32).max:
        raise InputError(f"{name}: the sum over duplicate edges overflows float32; scale them down")
    return sums.astype(np.float32)


BUFFER = 1 << 22  # elements of a block
SHARE = 4  # of the memory that is left, for blocks of an array that does not fit it
STEP = 1 << 18  # rows of CSR copied in one step
SPARSE = 4  # CSR is kept where it takes at most one part in so many of the dense rows


def copy_rows(
    features: Any,
    original_id: np.ndarray,
    into: np.ndarray,
    change: Callable[[np.ndarray], np.ndarray] | None = None,
    progress: Callable[[float], None] = lambda share: None,
    most: int | None = None,
) -> None:
    """``into[v] = change(features[original_id[v]])``.

    Args:
        features: float [V, F], perhaps a memory map, or a scipy CSR matrix.
        original_id: int32 [V].
        into: float32 [V, F].
        change: of rows float32, or None.
        progress: told the share that is done.
        most: bytes of memory for blocks; None: what the machine has.
    """
    count, width = into.shape
    step = block_rows(into.nbytes, width, most)

    def copy(lo: int) -> None:
        ids = original_id[lo : lo + step]
        ascending = np.argsort(ids)  # a file is read from front to back
        rows = features[ids[ascending]]
        rows = (rows if isinstance(rows, np.ndarray) else rows.toarray()).astype(np.float32, copy=False)
        into[lo + ascending] = rows if change is None else change(rows)

    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        for lo, _ in zip(range(0, count, step), pool.map(copy, range(0, count, step))):
            progress(min(1.0, (lo + step) / count))


def stays_sparse(features: Any) -> bool:
    """Whether features are kept in CSR, because that is much smaller."""
    if not hasattr(features, "nnz"):
        return False
    rows, columns = features.shape
    return SPARSE * (8 * (rows + 1) + 8 * features.nnz) <= 4 * rows * columns


def copy_sparse_rows(features: Any, original_id: np.ndarray, create: Create, *, normalize: bool) -> None:
    """The CSR rows in new order, as "feature_start", "feature_column" and "feature_value" made by ``create``.

    Args:
        features: scipy CSR [V, F].
        original_id: int32 [V].
        normalize: divide each row by ``max(1, its sum)``.
    """
    start = create("feature_start", "int64", (len(original_id) + 1,))
    start[0] = 0
    np.cumsum(np.diff(features.indptr)[original_id], out=start[1:])
    column = create("feature_column", "int32", (int(start[-1]),))
    value = create("feature_value", "float32", column.shape)
    for lo in range(0, len(original_id), STEP):
        rows = features[original_id[lo : lo + STEP]].astype(np.float32)
        if normalize:
            sums = np.asarray(rows.sum(axis=1, dtype=np.float64)).ravel().clip(min=1)
            rows.data /= np.repeat(sums.astype(np.float32), np.diff(rows.indptr))
        part = slice(start[lo], start[lo] + rows.nnz)
        column[part], value[part] = rows.indices, rows.data


def normalize_rows(block: np.ndarray) -> np.ndarray:
    """Each row of float32 [R, F] divided by ``max(1, its sum)``.

    >>> normalize_rows(np.array([[1, 3], [0.25, 0.25]], dtype=np.float32)).tolist()
    [[0.25, 0.75], [0.25, 0.25]]
    """
    return block / block.sum(axis=1, keepdims=True).clip(min=1)


def block_rows(nbytes: int, width: int, most: int | None = None) -> int:
    """Rows of a block of an array of so many bytes. Rows that lie anywhere in a file larger than memory are read again
    for every block, so that blocks are then as large as memory allows.

    Args:
        most: bytes of memory that may be used for blocks; None: what the machine has.
    """
    available = min((left for left in (available_bytes(), most) if left is not None), default=None)
    small = available is None or nbytes < available // 2
    elements = BUFFER if small else max(BUFFER, available // (4 * SHARE * 2))
    return max(1, elements // width)

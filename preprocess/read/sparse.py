"""Sparse matrices of scipy, torch and torch_sparse, as features (CSR) or as edges; torch is not imported."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hongtu.errors import InputError
from hongtu.preprocess.read.source import weights_of

DENSE = "of a dense adjacency matrix pass scipy.sparse.csr_matrix(matrix)"


class MatrixEdges(NamedTuple):
    """The entries of a matrix, one by one: equal ones are not added up.

    Attributes:
        row, column: integers [E].
        values: float [E] or [E, F], or None where all are 1 or there are none.
        vertices: its rows.
    """

    row: np.ndarray
    column: np.ndarray
    values: np.ndarray | None
    vertices: int


def to_edges(value: Any, name: str, *, square: bool = True) -> MatrixEdges | None:
    """The entries of an adjacency matrix; None for what is no sparse matrix.

    Raises:
        InputError: for one that is not square, not whole, or not of real numbers.
    """
    found = _entries(value, name)
    if found is None:
        return None
    row, column, values, (rows, columns) = found
    if square and rows != columns:
        raise InputError(f"{name}: a matrix of {rows} x {columns}, expected a square adjacency matrix")
    if values is not None and values.dtype.kind not in "biuf":
        raise InputError(f"{name}: entries of type {values.dtype}, expected real numbers; keep the real part")
    return MatrixEdges(row, column, None if values is None else weights_of(values), rows)


def _entries(value: Any, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, tuple[int, ...]] | None:
    try:
        return _parts(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name}: not a whole sparse matrix of numbers on the CPU ({error}); make it again") from None


def _parts(value: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, tuple[int, ...]] | None:
    """Row, column and value of every entry, and the shape."""
    layout = str(getattr(value, "layout", ""))
    if hasattr(value, "tocsr"):
        if hasattr(value, "check_format"):
            check_compressed(value)
        whole = value.tocoo()
        if getattr(value, "format", "") == "bsr":
            whole.eliminate_zeros()  # what fills up blocks
        row, column = whole.coords if hasattr(whole, "coords") else (whole.row, whole.col)
        return row, column, whole.data, whole.shape
    if hasattr(value, "sparse_sizes"):  # of torch_sparse
        row, column, values = value.coo()
        return np.asarray(row), np.asarray(column), None if values is None else np.asarray(values), value.sparse_sizes()
    if layout == "torch.sparse_coo":
        row, column = np.asarray(value._indices())  # coalesce() would add up equal ones
        return row, column, np.asarray(value._values()), tuple(value.shape[:2])
    if layout in ("torch.sparse_csr", "torch.sparse_csc"):
        by_row = layout == "torch.sparse_csr"
        start, other = (value.crow_indices, value.col_indices) if by_row else (value.ccol_indices, value.row_indices)
        long = np.repeat(np.arange(len(start()) - 1), np.diff(np.asarray(start())))
        pair = (long, np.asarray(other())) if by_row else (np.asarray(other()), long)
        return *pair, np.asarray(value.values()), tuple(value.shape[:2])
    if layout in ("torch.sparse_bsr", "torch.sparse_bsc"):
        raise TypeError("it holds blocks; pass matrix.to_dense().to_sparse()")
    return None


def to_csr(value: Any, name: str = "features") -> Any:
    """scipy CSR of a scipy sparse matrix, a sparse torch tensor or a ``torch_sparse.SparseTensor``; None for others.

    Raises:
        InputError: for a matrix whose parts do not fit together.
    """
    import scipy.sparse

    found = _entries(value, name)
    if found is None or hasattr(value, "tocsr"):
        return None if found is None else value.tocsr()
    row, column, values, shape = found
    try:
        return scipy.sparse.coo_matrix((np.ones(len(row)) if values is None else values, (row, column)), shape).tocsr()
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: not a whole sparse matrix of numbers ({error}); make it again") from None


def check_compressed(matrix: Any) -> None:
    """Refuse a CSR, CSC or BSR matrix whose indices are not all within it: scipy's own code walks memory by them.

    Raises:
        ValueError: at the first thing that is wrong.
    """
    matrix.check_format(full_check=True)
    if (matrix.indptr[1:] < matrix.indptr[:-1]).any():  # scipy does not look where the last one says: no entries
        raise ValueError("indptr must be a non-decreasing sequence")

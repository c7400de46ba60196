"""Sparse matrices of torch and torch_sparse as scipy CSR, which the readers keep sparse; torch is not imported."""

from __future__ import annotations

from typing import Any

import numpy as np

from hongtu.errors import InputError


def to_csr(value: Any, name: str = "features") -> Any:
    """scipy CSR of a scipy sparse matrix, a sparse torch tensor or a ``torch_sparse.SparseTensor``; None for others.

    Raises:
        InputError: for a scipy matrix whose parts do not fit together.
    """
    import scipy.sparse

    if hasattr(value, "tocsr"):
        try:
            if hasattr(value, "check_format"):
                check_compressed(value)
            return value.tocsr()
        except ValueError as error:
            raise InputError(f"{name}: not a whole scipy matrix ({error}); make it again") from None
    if hasattr(value, "to_torch_sparse_csr_tensor"):
        value = value.to_torch_sparse_csr_tensor()
    layout = str(getattr(value, "layout", ""))
    if layout == "torch.sparse_coo":
        value = value.coalesce()
        indices = np.asarray(value.indices())
        return scipy.sparse.coo_matrix(
            (np.asarray(value.values()), (indices[0], indices[1])), tuple(value.shape)
        ).tocsr()
    if layout == "torch.sparse_csr":
        parts = (np.asarray(part) for part in (value.values(), value.col_indices(), value.crow_indices()))
        return to_csr(scipy.sparse.csr_matrix(tuple(parts), shape=tuple(value.shape)), name)
    return None


def check_compressed(matrix: Any) -> None:
    """Refuse a CSR, CSC or BSR matrix whose indices are not all within it: scipy's own code walks memory by them.

    Raises:
        ValueError: at the first thing that is wrong.
    """
    matrix.check_format(full_check=True)
    if (matrix.indptr[1:] < matrix.indptr[:-1]).any():  # scipy does not look where the last one says: no entries
        raise ValueError("indptr must be a non-decreasing sequence")

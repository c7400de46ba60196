"""Sparse matrices of torch and torch_sparse as scipy CSR, which the readers keep sparse; torch is not imported."""

from __future__ import annotations

from typing import Any

import numpy as np


def to_csr(value: Any) -> Any:
    """scipy CSR of a scipy sparse matrix, a sparse torch tensor or a ``torch_sparse.SparseTensor``; None for others."""
    import scipy.sparse

    if hasattr(value, "tocsr"):
        return value.tocsr()
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
        return scipy.sparse.csr_matrix(tuple(parts), shape=tuple(value.shape))
    return None

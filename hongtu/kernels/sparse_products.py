"""The weighted sum over in-edges and its transpose as products of torch-sparse; all other kernels are numba's.

Legend: D destinations, S sources, C rows of a cache (S or more), E edges, F features.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hongtu.kernels.dispatch import NumbaKernels


class SparseProducts(NumbaKernels):
    """Kernels for CPU tensors, with the names and arguments of ``sums`` and ``transposes``."""

    def csc_aggregate(
        self, indptr: Tensor, local_source: Tensor, slot_of_source: Tensor, weight: Tensor, mean: bool,
        rows_CF: Tensor, out_DF: Tensor,
    ) -> None:  # fmt: skip
        """See :func:`hongtu.kernels.sums.csc_aggregate`."""
        source = local_source.long()
        column = slot_of_source.long()[source] if len(slot_of_source) else source
        out_DF.copy_(_matrix(indptr, column, weight, len(rows_CF)).matmul(rows_CF))
        if mean:
            out_DF.div_(_degree(indptr, out_DF))

    def csc_aggregate_transpose(
        self, indptr: Tensor, local_source: Tensor, slot_of_source: Tensor, weight: Tensor, mean: bool,
        grad_DF: Tensor, out_CF: Tensor,
    ) -> None:  # fmt: skip
        """See :func:`hongtu.kernels.transposes.csc_aggregate_transpose`."""
        if not len(local_source):
            return
        given = grad_DF / _degree(indptr, grad_DF) if mean else grad_DF
        sources = len(slot_of_source) or len(out_CF)
        added_SF = _matrix(indptr, local_source.long(), weight, sources).t().matmul(given)
        if len(slot_of_source):
            out_CF.index_add_(0, slot_of_source, added_SF)
        else:
            out_CF.add_(added_SF)


def _matrix(indptr: Tensor, column: Tensor, weight: Tensor, columns: int) -> Any:
    """[D, columns]: an entry for each edge."""
    from torch_sparse import SparseTensor

    return SparseTensor(
        rowptr=indptr, col=column, value=weight if len(weight) else None, sparse_sizes=(len(indptr) - 1, columns),
        is_sorted=True, trust_data=True,
    )  # fmt: skip


def _degree(indptr: Tensor, like: Tensor) -> Tensor:
    """[D, 1]: in-edges, at least 1."""
    return indptr.diff().clamp(min=1).to(like.dtype).unsqueeze(1)

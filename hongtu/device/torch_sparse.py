"""The CPU whose sums over in-edges are products of torch-sparse: to compare with, and to check our kernels by."""

from __future__ import annotations

from hongtu.device.cpu import Backend
from hongtu.errors import InputError
from hongtu.kernels.sparse_products import SparseProducts


class TorchSparseBackend(Backend):
    """Makes such devices.

    Args:
        size: edges and vertices of the graph.

    Raises:
        InputError: where torch-sparse is not installed, with the pip line.
    """

    def __init__(self, size: int | None = None) -> None:
        try:
            import torch_sparse  # noqa: F401
        except (ImportError, OSError) as error:  # a build for another torch
            raise InputError(
                f"device 'torch-sparse': {error}; pip install --no-build-isolation torch-scatter torch-sparse"
            ) from None
        super().__init__(SparseProducts.of_graph(size))

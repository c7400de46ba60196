"""Where a run takes place: on the CPU, on GPUs, or on GPUs played by the CPU."""

from __future__ import annotations

import re

import torch

from hongtu.device.cpu import Backend as Backend
from hongtu.errors import InputError
from hongtu.kernels.dispatch import NumbaKernels, SparseProducts


def get_backend(device: str | torch.device | Backend, size: int | None = None) -> Backend:
    """The backend of "cpu", "torch-sparse", "cuda", "cuda:K" or "simulated", or of a ``torch.device``.

    Args:
        size: edges and vertices of the graph, which say what runs on the CPU.

    Raises:
        InputError: for another name, or where there is no such GPU.
    """
    if isinstance(device, torch.device):
        device = str(device)
    if isinstance(device, Backend):
        return device
    if device == "cpu":
        return Backend(NumbaKernels.of_graph(size))
    if device == "torch-sparse":
        return _torch_sparse(size)
    if device == "simulated":
        from hongtu.device.simulated import SimulatedBackend

        return SimulatedBackend()
    if device == "cuda" or (isinstance(device, str) and re.fullmatch(r"cuda:[0-9]{1,9}", device)):
        from hongtu.device.cuda import CudaBackend

        return CudaBackend(device)
    raise InputError(
        f"device {device!r}: expected 'cpu', 'cuda', 'cuda:K', 'torch-sparse' (the CPU with its products), or "
        "'simulated' (CUDA's engine on the CPU)"
    )


def _torch_sparse(size: int | None) -> Backend:
    """The CPU whose sums over in-edges are products of torch-sparse: to compare with, and to check our kernels by."""
    try:
        import torch_sparse  # noqa: F401
    except (ImportError, OSError) as error:  # a build for another torch
        raise InputError(
            f"device 'torch-sparse': {error}; pip install --no-build-isolation torch-scatter torch-sparse"
        ) from None
    return Backend(SparseProducts.of_graph(size))

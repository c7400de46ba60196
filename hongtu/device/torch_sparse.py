"""The CPU whose sums over in-edges are products of torch-sparse: to compare with, and to check our kernels by."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from hongtu.device.base import Device
from hongtu.device.cpu import Backend, CpuDevice
from hongtu.device.streams import Stream
from hongtu.errors import InputError
from hongtu.kernels.dispatch import using
from hongtu.kernels.sparse_products import SparseProducts
from hongtu.metrics import Traffic


class TorchSparseDevice(CpuDevice):
    """Layers run inside ``computing``."""

    @contextmanager
    def computing(self, name: str = "", chunk: int = 0, *, always: bool = True) -> Iterator[None]:
        with using(SparseProducts()), super().computing(name, chunk, always=always):
            yield


class TorchSparseBackend(Backend):
    """Makes such devices.

    Raises:
        InputError: where torch-sparse is not installed, with the pip line.
    """

    def __init__(self) -> None:
        try:
            import torch_sparse  # noqa: F401
        except (ImportError, OSError) as error:  # a build for another torch
            raise InputError(
                f"device 'torch-sparse': {error}; pip install --no-build-isolation torch-scatter torch-sparse"
            ) from None

    def trial(self) -> AbstractContextManager[None]:
        return using(SparseProducts())

    def _device(self, name: str, budget: int | None, traffic: Traffic, disk: Stream) -> Device:
        return TorchSparseDevice(name, budget, traffic, disk)

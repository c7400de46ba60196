"""Where a run takes place: on the CPU, on GPUs, or on GPUs played by the CPU."""

from __future__ import annotations

from typing import Protocol

import torch

from hongtu.device.base import Device
from hongtu.device.cpu import CpuDevice
from hongtu.device.pool import Make
from hongtu.errors import InputError
from hongtu.hardware import CPU, Hardware
from hongtu.metrics import Traffic


class Backend(Protocol):
    """Makes the devices of a run."""

    @property
    def hardware(self) -> Hardware:
        """The profile that a plan is made for where none is given."""

    @property
    def pinned(self) -> Make | None:
        """Makes host memory that the devices read, or None: they read any."""

    def gpu_of(self, partition: int) -> int:
        """What a partition's parameters live on; partitions on the same one share them."""

    def where(self, gpu: int) -> torch.device:
        """The torch device of its tensors."""

    def memory(self, partitions: int) -> int | None:
        """Bytes that each of so many partitions may take where no budget is set; None: no limit but the host's."""

    def devices(self, partitions: int, budget: int | None, traffic: Traffic) -> list[Device]:
        """One device for each partition."""


class CpuBackend:
    """The CPU, as many times as there are partitions."""

    hardware = CPU
    pinned: Make | None = None

    def gpu_of(self, partition: int) -> int:
        return 0

    def where(self, gpu: int) -> torch.device:
        return torch.device("cpu")

    def memory(self, partitions: int) -> int | None:
        return None

    def devices(self, partitions: int, budget: int | None, traffic: Traffic) -> list[Device]:
        return [CpuDevice(f"device {i}", budget, traffic) for i in range(partitions)]


def get_backend(device: str | torch.device | Backend) -> Backend:
    """The backend of "cpu", "cuda", "cuda:K" or "simulated", or of a ``torch.device``.

    Raises:
        InputError: for another name, or where there is no such GPU.
    """
    if isinstance(device, torch.device):
        device = str(device)
    if not isinstance(device, str):
        return device
    if device == "cpu":
        return CpuBackend()
    if device == "simulated":
        from hongtu.device.simulated import SimulatedBackend

        return SimulatedBackend()
    if device == "cuda" or (device.startswith("cuda:") and device[5:].isdecimal()):
        from hongtu.device.cuda import CudaBackend

        return CudaBackend(device)
    raise InputError(f"device {device!r}: expected 'cpu', 'cuda', 'cuda:K', or 'simulated' (CUDA's engine on the CPU)")

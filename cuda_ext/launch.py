"""Launchers: what runs a kernel by name. ``CudaLauncher`` on a GPU; ``host_build`` has the one for CPUs."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from hongtu.cuda_ext import driver
from hongtu.cuda_ext.compile import KernelError, cubin, file_of, nvrtc_version

MAX_ARGUMENTS = 24


class Launcher(Protocol):
    """Runs kernels.

    Attributes:
        on_gpu: whether tensors must be on a GPU.
    """

    on_gpu: bool

    def launch(
        self,
        name: str,
        grid: tuple[int, int],
        block: tuple[int, int],
        args: Sequence[int],
        stream: Any,
        tensors: tuple[Tensor | None, ...],
    ) -> None:
        """Run kernel ``name``; every argument is 8 bytes: an address, a signed integer or the bits of a double.

        ``stream`` is what the launcher orders work by: the raw handle of a CUDA stream, or a queue. ``tensors``, what
        the addresses point to, must live until the kernel has run: torch's allocator sees to that on its current
        stream, a queue holds them.
        """


class CudaLauncher:
    """Launches on one GPU. Compiles and loads a kernel file when a kernel of it is first launched.

    Args:
        device: index of the GPU; ``launch`` makes it current for the call where another one is.

    Raises:
        KernelError: there is no such GPU, or cuda-bindings or NVRTC is missing.
    """

    on_gpu = True

    def __init__(self, device: int = 0) -> None:
        nvrtc_version()
        if device >= torch.cuda.device_count():
            raise KernelError(f"CUDA device {device}: torch {torch.__version__} finds {torch.cuda.device_count()}")
        self.device = device
        major, minor = torch.cuda.get_device_capability(device)
        self.arch = f"sm_{major}{minor}"
        self._driver = driver.bindings()
        self._kernels: dict[str, Any] = {}
        self._files: dict[str, Any] = {}
        self._buffers = _Buffers()

    def launch(
        self,
        name: str,
        grid: tuple[int, int],
        block: tuple[int, int],
        args: Sequence[int],
        stream: int,
        tensors: tuple[Tensor | None, ...],
    ) -> None:
        """Enqueue a kernel on a CUDA stream of this device, given by its raw handle."""
        if torch.cuda.current_device() != self.device:
            with torch.cuda.device(self.device):
                return self.launch(name, grid, block, args, stream, tensors)
        kernel = self._kernels.get(name) or self._load(name)
        buffers = self._buffers
        buffers.values[: len(args)] = args  # type: ignore[call-overload]  # any sequence will do
        arguments = (kernel, *grid, 1, *block, 1, 0, stream, buffers.addresses_at, 0)
        (status,) = self._driver.cuLaunchKernel(*arguments)
        if status == self._driver.CUresult.CUDA_ERROR_INVALID_CONTEXT and driver.enter(self.device):
            (status,) = self._driver.cuLaunchKernel(*arguments)  # on a thread, autograd's, say, that is new here
        if status:
            raise KernelError(f"kernel {name} (grid {grid}, block {block}) on GPU {self.device}: {status!r}")

    def _load(self, name: str) -> Any:
        file = file_of(name)
        if file not in self._files:
            code = cubin(file, self.arch)
            status, self._files[file] = self._driver.cuLibraryLoadData(code, [], [], 0, [], [], 0)
            if status:
                del self._files[file]
                raise KernelError(f"machine code of {file} for {self.arch} on GPU {self.device}: {status!r}")
        status, kernel = self._driver.cuLibraryGetKernel(self._files[file], name.encode())
        if status:
            raise KernelError(f"kernel {name} of {file}, compiled for {self.arch}: {status!r}")
        # the driver launches a kernel handle, which belongs to no context, as it does a function
        self._kernels[name] = self._driver.CUfunction(int(kernel))
        return self._kernels[name]


class _Buffers(threading.local):
    """The arguments of a launch, and their addresses; the driver copies them before a launch returns."""

    def __init__(self) -> None:
        self.values = (ctypes.c_int64 * MAX_ARGUMENTS)()
        start = ctypes.addressof(self.values)
        self._addresses = (ctypes.c_int64 * MAX_ARGUMENTS)(*(start + 8 * k for k in range(MAX_ARGUMENTS)))
        self.addresses_at = ctypes.addressof(self._addresses)

"""Kernel files compiled for one GPU architecture by NVRTC, without a GPU, and kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hongtu.cuda_ext import disk_cache
from hongtu.cuda_ext.sources import FOLDER, KernelError, digest

_STANDARD = "c++17"


def cubin(file: str, arch: str, folder: Path = FOLDER) -> bytes:
    """Machine code of kernel file ``file`` for ``arch`` ("sm_90"), from the disk cache or compiled now.

    Raises:
        KernelError: NVRTC is not installed, or refuses the file (the message holds its log).
    """
    source = folder / file
    key = digest(source, arch, _STANDARD, nvrtc_version())
    path = disk_cache.fetch(f"{source.stem}-{arch}-{key}.cubin", lambda: _compile(source, arch))
    return disk_cache.content(path)


def nvrtc_version() -> str:
    """Version of the NVRTC library that is loaded.

    Raises:
        KernelError: cuda-bindings or NVRTC is missing.
    """
    try:
        from cuda.bindings import nvrtc

        status, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise KernelError(
            f"CUDA kernels need cuda-bindings and NVRTC: {error}. Remedy: pip install 'hongtu[cuda]'; NVRTC comes with "
            "torch's CUDA build and must have the major version of cuda-bindings"
        ) from error
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise KernelError(f"NVRTC does not tell its version: {status}")
    return f"{major}.{minor}"


def _compile(source: Path, arch: str) -> bytes:
    return compile_with_log(source, arch)[0]


def compile_with_log(source: Path, arch: str, *options: str) -> tuple[bytes, str]:
    """What NVRTC makes of a kernel file, with more options than it needs where wanted: machine code, and the log.

    Raises:
        KernelError: it refuses the file or an option; the message holds the log.
    """
    from cuda.bindings import nvrtc

    given = [f"--gpu-architecture={arch}", f"--std={_STANDARD}", f"--include-path={source.parent}", *options]
    status, program = nvrtc.nvrtcCreateProgram(source.read_bytes(), source.name.encode(), 0, [], [])
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise KernelError(f"NVRTC does not take kernel file {source.name}: {status!r}")
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(given), [option.encode() for option in given])
        log = _written(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).partition(b"\0")[0].decode()
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise KernelError(f"kernel file {source.name} does not compile for {arch}: {status!r}\n{log}")
        return _written(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program), log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _written(size_of: Callable[..., Any], get: Callable[..., Any], program: Any) -> bytes:
    """What NVRTC writes into a buffer that it is given."""
    _, size = size_of(program)
    buffer = bytes(size)
    get(program, buffer)
    return buffer

"""Kernel files compiled for one GPU architecture by NVRTC, without a GPU, and kept on disk."""

from __future__ import annotations

from pathlib import Path

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
        KernelError: cuda.core, cuda.bindings or NVRTC is missing.
    """
    try:
        import cuda.core  # noqa: F401
        from cuda.bindings import nvrtc

        status, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise KernelError(
            f"CUDA kernels need cuda.core and NVRTC: {error}. Remedy: pip install 'hongtu[cuda]'; NVRTC comes with "
            "torch's CUDA build and must have the major version of cuda-bindings"
        ) from error
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise KernelError(f"NVRTC does not tell its version: {status}")
    return f"{major}.{minor}"


def _compile(source: Path, arch: str) -> bytes:
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(name=source.name, arch=arch, std=_STANDARD, include_path=str(source.parent))
    try:
        code = Program(source.read_text(), "c++", options).compile("cubin").code
    except Exception as error:  # cuda.core's error classes are private; its message holds the log
        raise KernelError(f"kernel file {source.name} does not compile for {arch}:\n{error}") from error
    return bytes(code)

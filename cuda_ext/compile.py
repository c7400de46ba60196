"""Kernel files compiled for one GPU architecture by NVRTC, without a GPU, and kept on disk.

They lie in ``$XDG_CACHE_HOME/hongtu/kernels`` (default ``~/.cache/hongtu/kernels``). An entry is what the compiler
wrote with its SHA-256 behind it, written to a temporary name and renamed: processes may fill the cache at the same
time, and an entry that was cut off or changed is made again. Shared libraries load with the hash at their end.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
SHIM = FOLDER / "cpu_shim.cuh"

KERNELS_OF = {
    "rows.cu": ("copy_rows", "add_rows", "add_rows_atomic", "add_rows_system", "zero_rows"),
    "csc.cu": ("csc_aggregate", "csc_aggregate_transpose", "segment_sum", "expand_rows"),
    "softmax.cu": ("segment_softmax", "segment_softmax_backward"),
    "attention.cu": ("attend", "attend_transpose", "attend_alpha_gradient"),
    "gates.cu": ("gated_sum", "gated_sum_transpose", "gated_sum_key_gradient"),
    "dropout.cu": ("dropout",),
}
_FILE_OF = {kernel: file for file, kernels in KERNELS_OF.items() for kernel in kernels}
_HASH_BYTES = 32
_STANDARD = "c++17"


class KernelError(RuntimeError):
    """A kernel could not be compiled or launched; the message names it and holds the log."""


def file_of(name: str) -> str:
    """The file of a kernel, by the name of one of its instances.

    >>> file_of("copy_rows_f32x4")
    'rows.cu'
    """
    kernel = name
    while kernel not in _FILE_OF:
        kernel, _, rest = kernel.rpartition("_")
        if not rest:
            raise KernelError(f"kernel {name!r}: no file of {sorted(KERNELS_OF)} defines it")
    return _FILE_OF[kernel]


def digest(source: Path, *parts: str) -> str:
    """Hash of a source file, of every header beside it and of ``parts`` (options, compiler versions)."""
    found = hashlib.sha256()
    for path in (source, *sorted(source.parent.glob("*.cuh"))):
        found.update(path.read_bytes())
    found.update("\0".join(parts).encode())
    return found.hexdigest()[:32]


def folder() -> Path:
    """Where entries are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hongtu" / "kernels"


def fetch(name: str, make: Callable[[], bytes]) -> Path:
    """The entry ``name``, made first where the cache has none that is whole.

    Where the cache cannot be written (a warning says so) entries live as long as the process.
    """
    path = folder() / name
    if _is_whole(path):
        return path
    content = make()
    try:
        _write(path, content)
    except OSError as error:
        _warn(folder(), str(error))
        path = Path(_process_folder(), name)
        _write(path, content)
    return path


def content(path: Path) -> bytes:
    """What the compiler wrote."""
    return path.read_bytes()[:-_HASH_BYTES]


def _is_whole(path: Path) -> bool:
    try:
        found = path.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(found[:-_HASH_BYTES]).digest() == found[-_HASH_BYTES:]


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content + hashlib.sha256(content).digest())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


@cache
def _process_folder() -> str:
    made = tempfile.mkdtemp(prefix="hongtu-kernels-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


@cache
def _warn(where: Path, why: str) -> None:
    warnings.warn(
        f"compiled kernels cannot be kept in {where} ({why}), so every process compiles them again; "
        "make it writable or set XDG_CACHE_HOME",
        stacklevel=4,
    )


def cubin(file: str, arch: str, folder: Path = FOLDER) -> bytes:
    """Machine code of kernel file ``file`` for ``arch`` ("sm_90"), from the disk cache or compiled now.

    Raises:
        KernelError: NVRTC is not installed, or refuses the file (the message holds its log).
    """
    source = folder / file
    key = digest(source, arch, _STANDARD, nvrtc_version())
    path = fetch(f"{source.stem}-{arch}-{key}.cubin", lambda: _compile(source, arch))
    return content(path)


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

"""The kernels without a GPU: the same sources, compiled by a C++ compiler behind ``cpu_shim.cuh``, run by loops."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from hongtu.cuda_ext.compile import FOLDER, SHIM, KernelError, digest, fetch, file_of

LANGUAGE = ("-std=c++17", "-fno-strict-aliasing", "-ffp-contract=off", "-w")  # of kernels, however they are built
_OPTIONS = ("-O2", *LANGUAGE, "-shared", "-fPIC")
_REFUSED = {
    1: "a misaligned access",
    2: "another number of arguments than it has parameters",
    3: "an exchange of values that not all lanes of a group come to, or others",
}


class HostLauncher:
    """Launches kernels on the CPU, on CPU tensors.

    Args:
        descending: run the threads in descending order; results must not depend on it, beyond rounding.
        folder: where the kernel files are.

    Raises:
        KernelError: no C++ compiler is installed.
    """

    on_gpu = False

    def __init__(self, descending: bool = False, folder: Path = FOLDER) -> None:
        compiler()
        self.descending, self.folder = descending, folder
        self._kernels: dict[str, Any] = {}
        self._files: dict[str, ctypes.CDLL] = {}

    def launch(
        self,
        name: str,
        grid: tuple[int, int],
        block: tuple[int, int],
        args: Sequence[int],
        stream: Callable[[Callable[[], None]], object] | None,
        tensors: tuple[Tensor | None, ...],
    ) -> None:
        """Run a kernel now (``stream`` None), or give ``stream`` the call that runs it."""
        kernel = self._kernels.get(name) or self._load(name)
        shape = (ctypes.c_uint * 6)(*grid, 1, *block, 1)
        values = (ctypes.c_int64 * len(args))(*args)

        def run(_held: tuple[Tensor | None, ...] = tensors) -> None:
            refused = kernel(shape, values, len(args), self.descending)
            if refused:
                raise KernelError(f"kernel {name} (grid {grid}, block {block}): {_REFUSED[refused]}")

        if stream is None:
            run()
        else:
            stream(run)

    def _load(self, name: str) -> Any:
        file = file_of(name)
        if file not in self._files:
            self._files[file] = ctypes.CDLL(str(library(self.folder / file)))
        kernel = getattr(self._files[file], f"{name}_on_cpu", None)
        if kernel is None:
            raise KernelError(f"kernel {name} is not in {file}")
        self._kernels[name] = kernel
        return kernel


def library(source: Path) -> Path:
    """The kernel file as a shared library for this CPU, from the disk cache or compiled now.

    Raises:
        KernelError: no compiler, or it refuses the file (the message holds its log).
    """
    command, version = compiler()
    key = digest(source, *command, *_OPTIONS, version)
    return fetch(f"{source.stem}-cpu-{key}.so", lambda: _compile(source, command))


@cache
def compiler() -> tuple[tuple[str, ...], str]:
    """The C++ compiler (``$CXX``, else g++, c++ or clang++) and what it says its version is.

    Raises:
        KernelError: there is none.
    """
    asked = shlex.split(os.environ.get("CXX", ""))
    for command in [asked] if asked else [["g++"], ["c++"], ["clang++"]]:
        if shutil.which(command[0]):
            done = subprocess.run([*command, "--version"], capture_output=True, text=True)
            if done.returncode == 0:
                return tuple(command), done.stdout
    raise KernelError(
        f"no C++ compiler ({' '.join(asked) or 'g++, c++ or clang++'}): running the CUDA kernels on a CPU needs one; "
        "install g++ or set CXX"
    )


def _compile(source: Path, command: Sequence[str]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "kernels.so")
        done = subprocess.run(
            [*command, *_OPTIONS, "-x", "c++", "-include", str(SHIM), str(source), "-o", str(out)],
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise KernelError(f"kernel file {source.name} does not compile with {command[0]}:\n{done.stderr}")
        return out.read_bytes()

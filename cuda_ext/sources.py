"""The kernel files, and which kernel is in which."""

from __future__ import annotations

import hashlib
from pathlib import Path

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

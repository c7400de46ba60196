"""Compiled kernels on disk: ``$XDG_CACHE_HOME/hongtu/kernels`` (default ``~/.cache/hongtu/kernels``).

An entry is what the compiler wrote with its SHA-256 behind it, written to a temporary name and renamed: processes may
fill the cache at the same time, and an entry that was cut off or changed is made again. Shared libraries load with the
hash at their end.
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

_HASH_BYTES = 32


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

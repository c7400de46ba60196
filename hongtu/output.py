"""Directories that are complete or absent: written beside their place, then renamed into it."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hongtu.errors import InputError


def check_output(path: Path, *, force: bool, marker: str) -> None:
    """Refuse an output path that exists (unless ``force`` and it holds the file ``marker``) or that cannot be written.

    Raises:
        InputError: with the remedy.
    """
    if not os.path.lexists(path):
        parent = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            raise InputError(f"{path}: cannot be made, {parent} is not a writable directory; choose another path")
        return
    if not force:
        raise InputError(f"{path}: already exists; choose another path or pass --force to replace it")
    if not path.is_dir() or (any(path.iterdir()) and not (path / marker).exists()):
        raise InputError(f"{path}: --force replaces artifacts only, and this is not one; choose another path")


def temporary_sibling(path: Path) -> Path:
    """A new directory beside ``path``, to be filled and then renamed by ``replace_directory``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f".{path.name}.partial-", dir=path.parent))


def reserve(file: Path) -> None:
    """Allocate the blocks of a file made by ``open_memmap``: a full disk is then an OSError, not a bus error later."""
    if hasattr(os, "posix_fallocate"):
        with open(file, "r+b") as stream:
            os.posix_fallocate(stream.fileno(), 0, file.stat().st_size)


def replace_directory(source: Path, target: Path) -> None:
    """Rename ``source`` (a temporary sibling) to ``target``, removing a directory that is there."""
    os.chmod(source, 0o755)
    if target.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old-", dir=target.parent))
        os.rename(target, old / "artifact")
        os.rename(source, target)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.rename(source, target)

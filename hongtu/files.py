"""Files and directories: .npy files that anything may be in, and directories that are complete or absent."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from hongtu.errors import InputError, OutputError

Create = Callable[[str, str, tuple[int, ...]], np.ndarray]  # name, dtype, shape -> an array to fill, perhaps on disk
PARTIAL = ".partial-"  # in the name of a file that is not complete


def open_npy(file: Path, remedy: str) -> np.ndarray:
    """A read-only memory map of an array.

    Raises:
        InputError: with the remedy, when the file is no array or holds fewer bytes than its header says.
    """
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):  # of headers by other versions, of absurd shapes
            warnings.simplefilter("ignore")
            array = np.load(file, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # ValueError, OSError, EOFError, but also TokenError, OverflowError, TypeError, ...
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{file}: not a readable .npy array ({reason}); {remedy}") from None
    if not isinstance(array, np.ndarray):
        raise InputError(f"{file}: a .npz archive, expected one .npy array; {remedy}")
    return array


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


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A file beside ``path`` to be filled: it takes that place in the end, or is gone where anything went wrong.

    Raises:
        OutputError: when it cannot be written; what was at ``path`` stays.
    """
    partial = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(prefix=f".{path.name}{PARTIAL}", dir=path.parent)
        os.close(descriptor)
        yield Path(partial)
        os.chmod(partial, 0o644)
        os.replace(partial, path)
        _sync_directory(path.parent)
    except OSError as error:
        raise OutputError(path, error) from error
    finally:
        if partial is not None and os.path.exists(partial):
            os.unlink(partial)


def _sync_directory(directory: Path) -> None:
    """Make a rename last through a loss of power."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


def in_memory(name: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """An array in memory, whatever its name."""
    return np.empty(shape, dtype=dtype)

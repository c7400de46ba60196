"""Files and directories: .npy files that anything may be in, and directories that are complete or absent."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import stat
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, AnyStr

import numpy as np

from hongtu.errors import InputError, OutputError, uninterrupted
from hongtu.host import available_bytes

Create = Callable[[str, str, tuple[int, ...]], np.ndarray]  # name, dtype, shape -> an array to fill, perhaps on disk
PARTIAL = ".partial-"  # in the name of a file that is not complete
LONGEST_TEXT = 16 << 20  # bytes of a file of settings
LONGEST_HEADER = 1 << 16  # bytes of what describes an array; numpy takes 10,000
LOCK = ".running"  # in a directory that a run writes in


def open_npy(file: Path, remedy: str) -> np.ndarray:
    """A read-only memory map of an array.

    Raises:
        InputError: with the remedy, when the file is no array or holds fewer bytes than its header says.
    """
    try:
        with open(file, "rb") as stream:
            front = stream.read(12)
        if front[6:7] > b"\1" and int.from_bytes(front[8:], "little") > LONGEST_HEADER:  # numpy would read it first
            raise ValueError("a header of many bytes")
        with warnings.catch_warnings(), np.errstate(all="ignore"):  # of headers by other versions, of absurd shapes
            warnings.simplefilter("ignore")
            array = np.load(file, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # ValueError, OSError, EOFError, but also TokenError, OverflowError, TypeError, ...
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{file}: not a readable .npy array ({reason}); {remedy}") from None
    if not isinstance(array, np.ndarray):
        raise InputError(f"{file}: a .npz archive, expected one .npy array; {remedy}")
    return array


def read_json(file: Path, remedy: str) -> Any:
    """What a file of JSON holds."""
    try:
        return json.loads(read_text(file))
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror or error}); {remedy}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: not valid JSON ({error}); {remedy}") from None


def read_text(file: Path) -> str:
    """Of a file of settings, in UTF-8. One that was handed over may be a pipe without a writer, a link to a device
    without an end, or a hole of many GiB.

    Raises:
        OSError: when it cannot be read, or is no file, or not such a small one; UnicodeDecodeError.
    """
    with open(file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError("not a file")
        if status.st_size > LONGEST_TEXT:
            raise OSError(f"{status.st_size} bytes, expected at most {LONGEST_TEXT}")
        return stream.read().decode("utf-8")


def lines_of(stream: IO[AnyStr]) -> Iterator[AnyStr]:
    """Of a file that was handed over, which may be a hole of many GiB: a longer line is cut, and nothing comes after
    it."""
    while line := stream.readline(LONGEST_TEXT):
        yield line
        if len(line) == LONGEST_TEXT:
            return


def check_file(file: Path, *, linked: bool) -> None:
    """Refuse a directory, a pipe, a device or a link to none in the place of a file.

    Args:
        linked: it may be a link to one, or have other names, for it is read and replaced, but not written through.
    """
    if not file.is_file() or (file.is_symlink() and not linked):
        what = "a link, which hongtu does not write through" if file.is_symlink() else "not a file"
        raise InputError(f"{file}: is {what}; remove it, or choose another directory")
    if file.stat().st_nlink > 1 and not linked:
        raise InputError(
            f"{file}: has other names (hard links), which hongtu does not write through; copy it anew, or choose "
            "another directory"
        )


def check_stored(file: Path) -> None:
    """Refuse a file of torch's that would unpack to more than it is, for torch compresses nothing, or to more than
    there is memory for.

    Raises:
        InputError: naming what is compressed.
        MemoryError: naming the file.
        ValueError, OSError: when that cannot be told.
    """
    size, available = file.stat().st_size, available_bytes()
    if available is not None and size > available:
        raise MemoryError(f"{file} has {size} bytes, {available} are available")
    with open(file, "rb") as stream:
        if stream.read(4) != b"PK\3\4":  # by which torch knows an archive
            return
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            found = [member.filename for member in members if member.file_size > member.compress_size]
            if sum(member.compress_size for member in members) > size:
                raise ValueError("its members lie over each other")
    except Exception as error:  # of a damaged one: BadZipFile, but also UnicodeDecodeError, NotImplementedError, ...
        raise ValueError(f"a damaged archive: {error}") from None
    if found:
        raise InputError(f"{file}: {found[0]} is compressed, which torch.save does not do; save it anew")


def check_new_directory(path: Path) -> None:
    """Refuse a directory that exists, or that cannot be made."""
    if os.path.lexists(path):
        raise InputError(f"{path}: already exists; choose another path or pass --force to replace it")
    parent = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"{path}: cannot be made, {parent} is not a writable directory; choose another path")


def check_replaceable(path: Path, what: str, mark: str, known: Callable[[Path], Collection[str] | None]) -> None:
    """Refuse to replace a directory unless it is empty, or one of ours, a real one, with nothing of others in it.

    Args:
        what: such directories are called.
        mark: the file that says whose it is.
        known: the names of all that hongtu put there, by that file; None where it is not ours.
    """
    if path.is_symlink():
        target = os.path.realpath(path)  # of one that leads to itself, too
        raise InputError(f"{path}: is a link, and --force replaces no links; pass {target}, or remove the link")
    there = {file.name for file in path.iterdir()} if path.is_dir() else set()
    if path.is_dir() and not there:
        return
    names = known(path / mark) if (path / mark).is_file() else None
    if names is None:
        raise InputError(f"{path}: --force replaces {what} only, and this is not one; choose another path")
    others = sorted(there - {mark, *names} | {name for name in there if (path / name).is_dir()})
    if others:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        raise InputError(
            f"{path}: holds what hongtu did not put there ({', '.join(others[:3])}{more}), which --force would remove; "
            "move it, or choose another path"
        )


def make_directory(path: Path) -> None:
    """Make a directory and those around it, which last through a loss of power."""
    for folder in reversed([path, *path.parents]):
        if not folder.is_dir():
            folder.mkdir(exist_ok=True)
            sync(folder.parent)


def not_linked(path: str, flags: int) -> int:
    """The opener of files in a directory that somebody may have handed over: no link leads elsewhere, a hard one
    neither, and no pipe is waited for."""
    descriptor = os.open(path, (flags & ~os.O_TRUNC) | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    try:
        if os.fstat(descriptor).st_nlink > 1:
            raise OSError(errno.EMLINK, os.strerror(errno.EMLINK), path)
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def write_text(file: Path, text: str, default: str) -> None:
    """Write a file, through a link only where somebody has named it: the default name may be one that a link was given,
    in a directory that was handed over.

    Raises:
        OutputError: when it cannot be written.
    """
    try:
        with open(file, "w", encoding="utf-8", opener=not_linked if file == Path(default) else None) as stream:
            stream.write(text)
    except OSError as error:
        raise OutputError(file, error) from error


def new_file(folder: Path, name: str) -> Path:
    """A new, empty file for what will be ``name``, under a name that nobody can prepare; its mode follows the umask."""
    path = folder / f".{name}{PARTIAL}{secrets.token_hex(8)}"
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    return path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A file beside ``path`` to be filled: synced, it takes that place, or it is gone where anything went wrong.

    Raises:
        OutputError: when it cannot be written; what was at ``path`` stays.
    """
    partial = None
    try:
        make_directory(path.parent)
        partial = new_file(path.parent, path.name)
        yield partial
        sync(partial)
        os.replace(partial, path)
        sync(path.parent)
    except OSError as error:
        raise OutputError(path, error) from error
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Make a file's content, or the names in a directory, last through a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """A directory beside ``path`` to be filled: ``replace_directory`` moves it there; what is left goes in the end."""
    make_directory(path.absolute().parent)
    around = Path(tempfile.mkdtemp(prefix=f".{path.name}{PARTIAL}", dir=path.parent))
    try:
        partial = around / "whole"
        partial.mkdir()  # its mode follows the umask
        yield partial
    finally:
        shutil.rmtree(around, ignore_errors=True)


def create_array(file: Path, dtype: Any, shape: tuple[int, ...]) -> np.memmap:
    """A writable memory map of a new .npy file, whose blocks are allocated: a full disk is an OSError here, not a bus
    error later."""
    array = np.lib.format.open_memmap(file, mode="w+", dtype=np.dtype(dtype), shape=shape)
    if hasattr(os, "posix_fallocate"):
        with open(file, "r+b") as stream:
            os.posix_fallocate(stream.fileno(), 0, file.stat().st_size)
    return array


@uninterrupted()
def replace_directory(source: Path, target: Path, check: Callable[[], None]) -> None:
    """Rename ``source``, whose files are synced, to ``target``, removing a directory that is there.

    Args:
        check: raises where what is at ``target`` by now is not to be removed.
    """
    sync(source)
    check()
    if not os.path.lexists(target):
        os.rename(source, target)
        sync(target.parent)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old-", dir=target.parent))
    os.rename(target, old / "artifact")
    os.rename(source, target)
    sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def in_memory(name: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """An array in memory, whatever its name."""
    return np.empty(shape, dtype=dtype)

"""The directory of one run: ``epochs.jsonl``, a line per epoch, the last few ``snapshot-EPOCH.pt``, and ``best.pt``."""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hongtu.errors import InputError, OutputError, note, uninterrupted
from hongtu.files import LOCK, PARTIAL, check_file, lines_of, make_directory, not_linked, sync, whole_file
from hongtu.metrics import EpochRecord, summary_of
from hongtu.ranks.parent import GRACE, watched_parent
from hongtu.train.snapshot import read_snapshot, write_snapshot

LOG = "epochs.jsonl"
ENDING = GRACE + 5.0  # seconds that a process has to end whose torchrun has
_SNAPSHOT = re.compile(r"snapshot-(\d+)\.pt")
_UNFINISHED = re.compile(rf"\..*{PARTIAL}.*")


_held: dict[str, int] = {}  # what this process holds: how many times


class RunDirectory:
    """The files of a run; the directory is made when it is first used.

    Args:
        path: the directory.
        keep: snapshots to keep; older ones are removed.

    Raises:
        OutputError: from every method that writes, when it cannot.
    """

    def __init__(self, path: str | os.PathLike[str], keep: int = 3) -> None:
        self.path, self._keep = Path(path), keep

    @contextmanager
    def held(self, *, make: bool = True) -> Iterator[None]:
        """Inside, no other process writes here; this one may ask again.

        Args:
            make: the directory, where it is not there; else nothing is held then.

        Raises:
            InputError: at once, naming who writes here, or what takes the place of a file.
        """
        there, place, mine = self.path.is_dir(), os.path.realpath(self.path), list[int | None]()

        def release() -> None:
            while mine:
                lock = mine.pop()
                _held[place] -= 1
                if lock is not None:
                    del _held[place]
                    with suppress(OSError):
                        os.unlink(self.path / LOCK)
                    os.close(lock)
            if make and not there:
                with suppress(OSError):  # it is not empty, as a rule
                    self.path.rmdir()

        try:
            try:
                if make and not there:
                    with suppress(OSError):  # whoever writes here says so
                        self.path.mkdir(parents=True)
                self._take(place, mine)
                self._check_files()
                yield
            finally:
                with uninterrupted():
                    release()
        except KeyboardInterrupt:  # it came before signals waited, and no other does
            release()
            raise

    def _check_files(self) -> None:
        """Refuse what others have put in the places of a run's files."""
        with suppress(OSError):  # of a directory: whoever reads there says so
            for name in sorted(os.listdir(self.path)):
                if name in (LOG, LOCK, self.best.name) or _SNAPSHOT.fullmatch(name) or _UNFINISHED.fullmatch(name):
                    check_file(self.path / name, linked=name not in (LOG, LOCK))

    def _take(self, place: str, mine: list[int | None]) -> None:
        """Add this process's lock of the directory, or None where it has that already; nothing where there is none."""
        until = time.monotonic() + ENDING
        while True:
            try:
                with uninterrupted():  # a lock that nobody knows of would last as long as the process
                    lock = _lock(self.path) if place not in _held and self.path.is_dir() else None
                    if lock is not None or place in _held:
                        mine.append(lock)
                        _held[place] = _held.get(place, 0) + 1
                return
            except _Taken as taken:
                host, pid, parent = _holder(*taken.args)
                if time.monotonic() > until or not _is_ending(host, pid, parent):
                    raise InputError(
                        f"{self.path}: another run is writing here (pid {pid} on {host}); wait for its end or stop it, "
                        "or choose another directory"
                    ) from None
                time.sleep(0.1)

    def log(self, record: EpochRecord) -> None:
        """Append the line of one epoch."""
        file = self.path / LOG
        try:
            make_directory(self.path)
            with open(file, "a", opener=not_linked, encoding="utf-8") as stream:
                stream.write(json.dumps(record.to_dict(), allow_nan=False) + "\n")
        except OSError as error:
            raise OutputError(file, error) from error

    @property
    def best(self) -> Path:
        """The snapshot of the best validation score, which is there where one was to be kept."""
        return self.path / "best.pt"

    def save_best(self, state: dict[str, Any]) -> None:
        """Write the snapshot of the best epoch so far."""
        self._write(self.best, state)

    def _write(self, file: Path, state: dict[str, Any]) -> None:
        """A snapshot whose history is in the log, which is on disk before it; it knows how much that is, and the last
        of it but for its seconds."""
        try:
            if (self.path / LOG).is_file():
                sync(self.path / LOG)
                sync(self.path)
        except OSError as error:
            raise OutputError(self.path / LOG, error) from error
        history = state["history"]
        last = [
            {"epoch": entry["epoch"], "loss": entry["loss"], "seconds": None, "metrics": dict(entry["metrics"] or {})}
            for entry in json.loads(json.dumps(history[-1:]))
        ]
        write_snapshot(file, state | {"history": None, "logged": len(history), "last": last})

    def history_of(self, state: dict[str, Any]) -> list[dict[str, Any]]:
        """The history of a snapshot; where the log has lost some of it, a warning says how much."""
        found = self.history(state["epoch"])
        last = [entry for entry in state.get("last", ()) if entry["epoch"] not in {one["epoch"] for one in found}]
        if lost := state.get("logged", 0) - len(found):
            warnings.warn(
                f"{self.path / LOG}: {lost} of the {state['logged']} lines up to epoch {state['epoch']} are missing or "
                "damaged, so that the history is not whole; the training itself goes on as it was",
                stacklevel=2,
            )
        return [*found, *last]

    def history(self, epoch: int) -> list[dict[str, Any]]:
        """What the log has of the epochs up to this one, as ``Trainer.history``."""
        return [entry for line in self._lines() if (entry := _until(epoch, line)) is not None]

    def _lines(self) -> Iterator[bytes]:
        """Of the log, where that is a file."""
        if (self.path / LOG).is_file():
            with suppress(OSError), open(self.path / LOG, "rb") as stream:
                yield from lines_of(stream)

    def save(self, epoch: int, state: dict[str, Any]) -> None:
        """Write the snapshot of an epoch, whose history is in the log, then remove the oldest of too many."""
        self._write(self.path / f"snapshot-{epoch}.pt", state)
        for old in self.snapshots()[: -self._keep]:
            with suppress(OSError):  # another user's
                old.unlink()

    def snapshots(self) -> list[Path]:
        """By epoch, the newest last."""
        return list(self._epochs())

    def check_newest(self, epoch: int) -> None:
        """Refuse to write among the snapshots and lines of epochs to come: they are of another run.

        Raises:
            InputError: naming the newest.
        """
        last = max((entry["epoch"] for entry in self.history(2**63)), default=0)
        if last > epoch and not self._epochs():
            raise InputError(
                f"{self.path / LOG}: has an epoch {last}, later than this run's {epoch}; choose another directory"
            )
        if newer := [file for file, other in self._epochs().items() if other > epoch]:
            raise InputError(
                f"{newer[-1]}: is of a later epoch than this run's {epoch}; continue that run with "
                "trainer.resume(run_dir), or choose another directory"
            )

    def newest(self) -> tuple[Path, dict[str, Any]] | None:
        """The newest snapshot that can be read, and its state; a damaged one is set aside with a warning.

        Raises:
            InputError: when there are snapshots and none of them can be read.
        """
        reason = None
        for file in reversed(self.snapshots()):
            try:
                return file, read_snapshot(file)
            except InputError as error:
                reason = reason or error
                warnings.warn(f"{error}; trying the one before", stacklevel=2)
                with suppress(OSError):  # in a directory that may only be read
                    file.rename(file.with_name(f"{file.name}.damaged"))
        if reason is not None:
            raise reason
        return None

    def rewind(self, epoch: int) -> None:
        """Forget what a run that was stopped left behind: lines of epochs after ``epoch``, which will be trained
        again, a line that is not whole, and files that are not."""
        try:
            for name in filter(_UNFINISHED.fullmatch, os.listdir(self.path) if self.path.is_dir() else ()):
                (self.path / name).unlink()
            file = self.path / LOG
            kept = [line for line in self._lines() if _until(epoch, line) is not None]
            if file.is_file() and sum(map(len, kept)) != file.stat().st_size:
                with whole_file(file) as partial:
                    partial.write_bytes(b"".join(kept))
        except OSError as error:
            raise OutputError(self.path, error) from error

    def _epochs(self) -> dict[Path, int]:
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({error.strerror}); choose another directory") from None
        found = ((int(match[1]), self.path / name) for name in names if (match := _SNAPSHOT.fullmatch(name)))
        return {file: epoch for epoch, file in sorted(found)}


class _Taken(Exception):
    """Another process has the lock; the argument is what it wrote."""


def _lock(directory: Path) -> int | None:
    """The descriptor of a file with a lock, which the system lets go of when the process ends, however it does; None
    where there can be none.

    Raises:
        _Taken: when another process has it.
    """
    while True:
        lock = _opened(str(directory / LOCK))
        if lock is None:
            return None  # whoever writes here says so
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), os.stat(directory / LOCK)):  # else its holder removed it meanwhile
                who = {"host": socket.gethostname(), "pid": os.getpid(), "parent": watched_parent()}
                with suppress(OSError):
                    os.ftruncate(lock, 0)
                    os.pwrite(lock, json.dumps(who).encode(), 0)
                return lock
            os.close(lock)
        except FileNotFoundError:
            os.close(lock)
        except BlockingIOError:
            said = b""
            with suppress(OSError):  # of a pipe
                said = os.pread(lock, 4096, 0)
            os.close(lock)
            raise _Taken(said) from None
        except OSError as error:
            os.close(lock)
            with suppress(OSError):
                os.unlink(directory / LOCK)
            note(f"{directory}: cannot be locked here ({error.strerror}); start no other run in it meanwhile")
            return None


def _opened(lock: str) -> int | None:
    for flags in (os.O_RDWR | os.O_CREAT, os.O_RDONLY):  # another user's can be locked, too
        with suppress(OSError):
            return not_linked(lock, flags)
    return None


def _holder(said: bytes) -> tuple[Any, Any, Any]:
    """Host, process and the process that this ends with, as a lock's file says."""
    try:
        found = json.loads(said)
        return found["host"], found["pid"], found["parent"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return "an unknown host", "unknown", None


def _is_ending(host: Any, pid: Any, parent: Any) -> bool:
    """Whether a process of this machine has lost the one that it ends with."""
    if host != socket.gethostname() or not (type(pid) is type(parent) is int):
        return False
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return True
    return int(fields[1]) != parent


def newest_snapshot(path: str | os.PathLike[str]) -> Path:
    """A snapshot as it is, or the newest of a run directory that can be read.

    Raises:
        InputError: when there is none.
    """
    if not Path(path).is_file() and not Path(path).is_dir():
        raise InputError(
            f"{path}: no such snapshot, and holds no run; start one with `hongtu train ARTIFACT --run {path}`"
        )
    if not Path(path).is_dir():
        return Path(path)
    found = RunDirectory(path).newest()
    if found is None:
        what = "is an artifact, and " * (Path(path) / "manifest.json").is_file()
        raise InputError(
            f"{path}: {what}holds no snapshot; pass one, or a directory that `hongtu train ARTIFACT --run RUN` wrote"
        )
    return found[0]


def _until(epoch: int, line: bytes) -> dict[str, Any] | None:
    """What a whole line says of an epoch up to this one."""
    try:
        entry = summary_of(json.loads(line)) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None
    return entry if entry is not None and entry["epoch"] <= epoch else None

"""Where an artifact grows: finished stages stay on disk, so that a run that was killed can be continued.

    .NAME.partial/            beside the artifact NAME, locked while a process works in it; another name where that is
                              taken: nothing is used, emptied or removed but a real directory of the same user's that
                              holds the next file
        identity.json         what the artifact is made of: the input's files, the settings, this boot of the machine
        finished.jsonl        a line for every finished stage: its values, and the files of its arrays
        scratch/              arrays that only later stages need
        artifact/             the artifact's arrays, then its manifest: renamed to NAME
            stages.jsonl      seconds and peak memory of every stage; no part of the manifest
            origin.json       what it is made of; no part of the manifest

The kernel keeps what a killed process wrote, so nothing is flushed for that; a reboot may lose it, so a run is not
continued after one.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from hongtu.errors import InputError, OutputError, uninterrupted
from hongtu.files import Create, create_array, make_directory, read_json
from hongtu.graph.format import ARRAYS, ORIGIN
from hongtu.graph.format import STAGES as LOG
from hongtu.graph.writer import check_output, commit_artifact
from hongtu.preprocess.workspace.watch import Progress, Watch

FORMAT, IDENTITY = "hongtu-workspace", "identity.json"
BOOT = Path("/proc/sys/kernel/random/boot_id")


class Workspace:
    """The directory of one run.

    Args:
        path: the artifact to make.
        identity: what decides the artifact, JSON; None for input in memory, which cannot be continued.
        force: replace an artifact that is there.
        resume: continue after the last finished stage of a run with the same identity, where there is one.

    Raises:
        InputError: when ``path`` exists without ``force``, another process works on it, or ``resume`` finds stages of
            another input, other settings, or from before a restart of the machine.
    """

    def __init__(self, path: Path, identity: dict[str, Any] | None, *, force: bool, resume: bool) -> None:
        check_output(path, force=force)
        if resume and identity is None:
            raise InputError("resume: only a graph on disk can be continued; leave it out")
        self.path, self.force, self.identity, self._resume = path, force, identity, resume
        self.origin: dict[str, Any] = {}  # what the artifact is made of
        self.predicted = 0  # bytes of anonymous memory that the stages will not exceed, for the log
        self._finished: dict[str, dict[str, Any]] = {}
        self.directory: Path = None  # until it is entered
        self._locks = contextlib.ExitStack()
        self._made: list[Path] = []  # around it, the deepest first
        self._sync = ThreadPoolExecutor(max_workers=1)
        self.check: Callable[[], None] = lambda: None  # raises where the input is another one by now
        self.watch, self.progress, self._shown = Watch(), Progress(), contextlib.ExitStack()

    @property
    def scratch(self) -> Path:
        return self.directory / "scratch"

    @property
    def artifact(self) -> Path:
        return self.directory / "artifact"

    def __enter__(self) -> Workspace:
        try:
            with uninterrupted():
                self._open()
                self._shown.enter_context(self.watch)
                self._shown.enter_context(self.progress)
            return self
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise

    def _open(self) -> None:
        parent = self.path.absolute().parent
        self._made = [folder for folder in (parent, *parent.parents) if not folder.exists()]
        make_directory(parent)
        now = json.loads(json.dumps({"format": FORMAT, "input": self.identity, "boot": _boot()}))
        old = list(self._unfinished(parent))
        for folder in old:
            self._lock(folder)
        if self._resume and old:
            self._continue(old, now)
        else:
            for folder in old:
                shutil.rmtree(folder)
            self._begin(parent, now)
        for folder in (self.scratch, self.artifact):
            folder.mkdir(exist_ok=True)

    def _unfinished(self, parent: Path) -> Iterator[Path]:
        """What runs that were stopped have left: real directories of this user's, with our mark."""
        for folder in sorted(parent.glob(f".{glob.escape(self.path.name)}.partial*")):
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
                ours = not folder.is_symlink() and folder.stat().st_uid == os.geteuid()
                if ours and read_json(folder / IDENTITY, "")["format"] == FORMAT:
                    yield folder

    def _lock(self, folder: Path) -> None:
        """Keep a directory from other processes until the end."""
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        self._locks.callback(os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"{self.path}: another process is making it; wait for that, or choose another path"
            ) from None
        except OSError:  # a file system without locks
            pass

    def _begin(self, parent: Path, identity: dict[str, Any]) -> None:
        """A new directory, whatever others may have put in its place."""
        for name in (f".{self.path.name}.partial", f".{self.path.name}.partial-{secrets.token_hex(8)}"):
            with contextlib.suppress(FileExistsError):
                (parent / name).mkdir(mode=0o700)
                self.directory = parent / name
                break
        self._lock(self.directory)
        (self.directory / IDENTITY).write_text(json.dumps(identity))

    def _continue(self, old: list[Path], identity: dict[str, Any]) -> None:
        """Take over the directory of the same run, and its finished stages."""
        found = [json.loads((folder / IDENTITY).read_text()) for folder in old]
        if identity not in found:
            inputs = [before.get("input") for before in found]
            what = "a restart of the machine" if identity["input"] in inputs else "another input or settings"
            raise InputError(f"{self.path}: the unfinished run is of {what}; leave --resume out to start again")
        self.directory = old[found.index(identity)]
        file = self.directory / "finished.jsonl"
        for line in file.read_text().splitlines() if file.exists() else []:
            with contextlib.suppress(json.JSONDecodeError):  # of the last one, where the process was killed
                record = json.loads(line)
                self._finished[record["stage"]] = record

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: Any) -> None:
        try:
            self._close(error)
        except KeyboardInterrupt:  # it came before signals waited, and no other does
            self._close(error)
            raise

    @uninterrupted()
    def _close(self, error: BaseException | None) -> None:
        self._shown.close()
        self._sync.shutdown()
        stopped = error is not None and not isinstance(error, Exception)
        if stopped and self.identity is not None and self._finished and self.artifact.exists():
            words = str(error) or "interrupted"
            error.args = (f"{words}; {self.directory} holds what is finished: pass --resume to continue, or remove it",)
        else:
            if self.directory is not None:
                shutil.rmtree(self.directory, ignore_errors=True)
            with contextlib.suppress(OSError):  # not empty where the artifact is
                for parent in self._made:
                    parent.rmdir()
        self._locks.close()
        if isinstance(error, OSError) and error.filename is None:  # what numpy and mapped files say of a full disk
            raise OutputError(self.path, error) from error

    def stage(self, name: str, compute: Callable[[], dict[str, Any]], edges: int = 0) -> dict[str, Any]:
        """The outputs of a stage, computed or, where it is finished, read.

        Args:
            compute: makes the outputs: arrays, and values that JSON holds.
            edges: that the stage goes through, to show a rate.
        """
        self.progress.enter(name)
        if name in self._finished:
            record = self._finished[name]
            arrays = {key: Path(file) for key, file in record["arrays"].items()}  # less those that were dropped
            return {**record["values"], **{key: _load(file) for key, file in arrays.items() if file.is_file()}}
        self.check()
        self.watch.restart()
        start = time.perf_counter()
        outputs = compute()
        files = {key: self._file(name, key, array) for key, array in outputs.items() if isinstance(array, np.ndarray)}
        seconds = time.perf_counter() - start
        values = {key: value for key, value in outputs.items() if key not in files}
        record = {"stage": name, "values": values, "arrays": {key: str(file) for key, file in files.items()}}
        with uninterrupted():  # what is written down is known to be, or the directory goes
            if self.identity is not None:
                with (self.directory / "finished.jsonl").open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps(record) + "\n")
            self._finished[name] = record
            self.log(name, seconds, edges)
        for file in files.values():
            if file is not None and file.parent == self.artifact:
                self._sync.submit(_write_back, file)
        return outputs

    def within(self, stage: str, share: float) -> None:
        """This share of a stage is done, and what it reads is still the same."""
        self.check()
        self.progress.within(stage, share)

    def log(self, name: str, seconds: float, edges: int = 0) -> None:
        """Add a line to the log, and show the rate."""
        rate = edges / max(seconds, 1e-9)
        line = {"stage": name, "seconds": round(seconds, 4), "peak_bytes": self.watch.peak}
        if self.predicted:
            line["predicted_bytes"] = self.predicted
        with (self.artifact / LOG).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line | ({"edges_per_second": round(rate)} if edges else {})) + "\n")
        self.progress.finish(name, rate)

    def maker(self, **files: str) -> Create:
        """Makes arrays under other names: ``maker(start="csc_start")("start", ...)`` is the array "csc_start"."""

        def create(name: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
            stem = files.get(name, name)
            return create_array((self.artifact if stem in ARRAYS else self.scratch) / f"{stem}.npy", dtype, shape)

        return create

    def drop(self, *names: str) -> None:
        """Remove arrays that no later stage needs."""
        for name in names:
            (self.scratch / f"{name}.npy").unlink(missing_ok=True)

    def commit(self, header: dict[str, Any]) -> None:
        """Make the artifact of the arrays in ``artifact/``; nothing is left of the rest."""
        (self.artifact / ORIGIN).write_text(json.dumps(self.origin), "utf-8")
        commit_artifact(self.artifact, self.path, header, force=self.force)

    def put(self, name: str, array: np.ndarray) -> np.ndarray:
        """Store a whole array, of the artifact or of scratch, and return its map."""
        stored = self.maker()(name, str(array.dtype), array.shape)
        stored[...] = array
        return stored

    def _file(self, stage: str, key: str, array: np.ndarray) -> Path | None:
        """The file of an array; one in memory is saved, unless this run cannot be continued anyway."""
        file = _whole_file(array)
        if file is None and self.identity is not None:
            file = self.scratch / f"{stage}.{key}.npy"
            np.save(file, array)
        return file


def _whole_file(array: np.ndarray) -> Path | None:
    """The .npy file that a memory map, or a plain view of one, is the whole of."""
    mapped = array
    while mapped is not None and not isinstance(mapped, np.memmap):
        mapped = mapped.base if isinstance(mapped.base, np.ndarray) else None
    if mapped is None or mapped.shape != array.shape or mapped.dtype != array.dtype:
        return None
    file = Path(mapped.filename)
    return file.absolute() if file.suffix == ".npy" and mapped.flags.c_contiguous else None


def _load(file: Path) -> np.ndarray:
    array = np.load(file, mmap_mode=None if file.stat().st_size < 4096 else "r", allow_pickle=False)
    return np.asarray(array)


def _write_back(file: Path) -> None:
    """Start writing to disk what later stages do not touch, beside their work."""
    with contextlib.suppress(OSError), file.open("rb") as stream:  # the commit does it again, and says what is wrong
        os.fdatasync(stream.fileno())


def _boot() -> str:
    try:
        return BOOT.read_text().strip()
    except OSError:
        return ""

"""Full disks, directories that may not be written to, files that go and signals, at random moments of `hongtu train`.

What must come of each: the exit code and a line on stderr as documented, and a run that resumes to the result of one
that was left alone.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.faults.outcome import Outcome
from tests.faults.processes import Process, finish, start_command, wait_for_a_moment
from tests.faults.run import prepare, same_result

EPOCHS = 40


@dataclass
class Try:
    """One run to disturb.

    Attributes:
        artifact: of its own.
        directory: the run directory, on a small disk where one was asked for.
        process: once it runs.
    """

    artifact: Path
    directory: Path
    process: Process | None = None


@dataclass(frozen=True)
class Fault:
    """A disturbance.

    Attributes:
        name: for the table.
        code: exit code that must come of it.
        words: what stderr must say.
        disturb: does it, at a random moment.
        mend: undoes it, before the run is resumed.
        disk: bytes of the disk for the run directory; None: no disk of its own.
        obeys_modes: without root's right to write everywhere.
    """

    name: str
    code: int
    words: str
    disturb: Callable[[Try], None]
    mend: Callable[[Try], None] = lambda _: None
    disk: int | None = None
    obeys_modes: bool = False


def _mount(directory: Path, options: str, *, again: bool = False) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", f"remount,{options}" if again else options, "tmpfs", str(directory)]
    return subprocess.run(command, capture_output=True).returncode == 0


def _send(number: int) -> Callable[[Try], None]:
    def send(run: Try) -> None:
        assert run.process is not None and run.process.pid is not None
        os.kill(run.process.pid, number)

    return send


def _fill(run: Try) -> None:
    with open(run.directory.parent / "filler", "wb", buffering=0) as stream:
        try:
            while True:
                stream.write(bytes(4096))
        except OSError:
            return


def _remount(run: Try, mode: str) -> None:
    while not _mount(run.directory.parent, mode, again=True):  # busy while a file is open for writing
        assert run.process is not None
        if mode == "ro" and not run.process.is_alive():
            return


FAULTS = (
    Fault("SIGTERM", 143, "stopped by SIGTERM", _send(signal.SIGTERM)),
    Fault("SIGHUP", 129, "stopped by SIGHUP", _send(signal.SIGHUP)),
    Fault("SIGINT", 130, "interrupted", _send(signal.SIGINT)),
    Fault(
        "the disk fills (ENOSPC, on a real one)", 1, "cannot be written (No space left on device)", _fill,
        lambda run: (run.directory.parent / "filler").unlink(), disk=64 << 20,
    ),
    Fault(
        "the disk becomes read-only (EROFS)", 1, "cannot be written (Read-only file system)",
        lambda run: _remount(run, "ro"), lambda run: _remount(run, "rw"), disk=64 << 20,
    ),
    Fault(
        "the directory may not be written to any more (EACCES)", 1, "cannot be written (Permission denied)",
        lambda run: run.directory.chmod(0o555), lambda run: run.directory.chmod(0o755), obeys_modes=True,
    ),
    Fault("the artifact is removed", 0, "", lambda run: shutil.rmtree(run.artifact)),
)  # fmt: skip


def disturb(fault: Fault, tries: int, seed: int = 0) -> Outcome:
    """Disturb so many runs, each at a random moment, and resume them."""
    says = f"exit code {fault.code}" + (f", '{fault.words}' in one line" if fault.words else "")
    outcome = Outcome(f"{fault.name}, at a random moment of `hongtu train`", f"{says}; resumed: bit-identical")
    rng = np.random.default_rng(seed)
    early = 0
    with tempfile.TemporaryDirectory(prefix="hongtu-faults-") as name:
        folder = Path(name)
        source = prepare(folder / "artifact", vertices=1500, edges=9000).path
        assert finish(start_command(_train(source, folder / "whole"), folder / "err")) == 0, (
            folder / "err"
        ).read_text()
        for k in range(tries):
            with _disk(folder / f"disk-{k}", fault) as disk:
                if disk is None:
                    outcome.note = "needs the right to mount a disk: not tried here"
                    return outcome
                loss, ended = _disturb_one(fault, Try(folder / f"copy-{k}", disk / "run"), source, folder, rng)
                early += ended
                outcome.expect(loss is None, f"try {k} of seed {seed}: {loss}")
    outcome.note = f"seed {seed}" + (f"; {early} had ended before" if early else "")
    return outcome


def _disturb_one(
    fault: Fault, run: Try, source: Path, folder: Path, rng: np.random.Generator
) -> tuple[str | None, bool]:
    """What was lost, if anything, and whether the run had ended before it was disturbed."""
    shutil.copytree(source, run.artifact)
    err = folder / "err"
    err.unlink(missing_ok=True)
    run.process = start_command(_train(run.artifact, run.directory), err, obeys_modes=fault.obeys_modes)
    wait_for_a_moment(run.process, run.directory, EPOCHS - 5, 0.05, rng)
    while run.process.is_alive() and not (run.directory / "options.json").exists():
        pass  # until then nothing has begun
    ended = not run.process.is_alive()
    if not ended:
        fault.disturb(run)
    code, said = finish(run.process), err.read_text() if err.exists() else ""
    if not ended:
        fault.mend(run)
    if not ended and (code != fault.code or fault.words not in said or said.count("\n") != (1 if fault.code else 0)):
        return f"exit code {code}, stderr {said!r}", ended
    if not run.artifact.exists():
        shutil.copytree(source, run.artifact)
    if code != 0:
        code = finish(
            start_command([*_train(run.artifact, run.directory), "--resume"], err, obeys_modes=fault.obeys_modes)
        )
    if code != 0:
        return f"resumed: exit code {code}, stderr {err.read_text()!r}", ended
    return (None if same_result(folder / "whole", run.directory) else "another result"), ended


def _train(artifact: Path, directory: Path) -> list[str]:
    return ["train", str(artifact), "--model", "gat", "--hidden", "8", "--dropout", "0.3", "--epochs", str(EPOCHS),
            "--eval-every", "4", "--save-every", "3", "--run", str(directory)]  # fmt: skip


@contextmanager
def _disk(folder: Path, fault: Fault) -> Iterator[Path | None]:
    """A folder for the run directory; None where a disk of its own is not to be had."""
    folder.mkdir()
    mounted = fault.disk is not None and _mount(folder, f"size={fault.disk}")
    try:
        yield folder if mounted or fault.disk is None else None
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=False)

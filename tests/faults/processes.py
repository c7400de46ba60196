"""Training runs in processes of their own, to do things to while they run."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hongtu.cli.main import main
from tests.faults.outcome import Outcome

# the server has imported everything, but has not started a thread: its children begin at once
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["tests.faults.processes", "tests.faults.run", "hongtu.train.trainer", "torch_geometric.nn"]
)
SECONDS = 180

Process = multiprocessing.process.BaseProcess


def start(target: Callable[..., None], *arguments: Any) -> Process:
    process = CONTEXT.Process(target=target, args=arguments)
    process.start()
    return process


def start_command(
    arguments: list[str],
    err: Path,
    out: Path | str = os.devnull,
    *,
    obeys_modes: bool = False,
    environment: dict[str, str] | None = None,
) -> Process:
    """``hongtu`` with these arguments and what it prints in files; files' modes count for it even where it is root."""
    return start(_command, arguments, str(err), str(out), obeys_modes, environment or {})


def _command(arguments: list[str], err: str, out: str, obeys_modes: bool, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    sys.stdout = open(out, "w")  # noqa: SIM115
    sys.stderr = open(err, "w")  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
    if obeys_modes:
        _drop_capabilities()
    code = main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _drop_capabilities() -> None:
    """Give up root's right to write where no mode allows it (capset of no capabilities, version 3)."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    ctypes.CDLL(None, use_errno=True).capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)()))


def isolated(work: Callable[[], Outcome], name: str) -> Outcome:
    """Do it in a process of its own, so that a crash is an outcome too."""
    receive, send = CONTEXT.Pipe(duplex=False)
    process = start(_send, work, send)
    send.close()
    try:
        return receive.recv()
    except EOFError:
        process.join()
        return Outcome(name, "no crash", tries=1, losses=[f"the process ended with code {process.exitcode}"])


def _send(work: Callable[[], Outcome], to: Any) -> None:
    to.send(work())


def finish(process: Process) -> int | None:
    """The exit code; None for a process that hangs, which is killed."""
    process.join(SECONDS)
    code = process.exitcode
    process.kill()
    process.join()
    return code


def wait_for(process: Process, directory: Path, epoch: int) -> None:
    """Until a run has logged so many epochs, or has ended."""
    while process.is_alive() and epochs(directory) < epoch:
        time.sleep(0.001)


def epochs(directory: Path) -> int:
    """Epochs in a run's log."""
    log = directory / "epochs.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def wait_for_a_moment(process: Process, directory: Path, of: int, pause: float, rng: np.random.Generator) -> None:
    """Until a random moment of a run of so many epochs; ``pause`` is about how long one takes."""
    wait_for(process, directory, int(rng.integers(0, of)))
    time.sleep(rng.uniform(0, pause))

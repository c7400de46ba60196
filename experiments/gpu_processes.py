"""Processes of a GPU check: each ends with all that it has started, and tests begin where torch is imported."""

from __future__ import annotations

import atexit
import faulthandler
import gc
import importlib
import os
import resource
import runpy
import signal
import subprocess
import sys
import traceback
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)  # `make` and `timeout` may say it twice
MARK = "HONGTU_GPU_CHECK"  # in the environment of every part, and of what it starts: the folder of its check


def begin(
    command: tuple[str, ...], stdout: IO[Any], stderr: IO[Any], more: dict[str, str] | None = None, forked: bool = False
) -> subprocess.Popen[bytes]:
    """Start a command in a process group of this session, so that it ends with whatever ends that.

    Args:
        forked: it is ``python -m MODULE ...``, and runs in a copy of this process, which imports once what takes each
            of them seconds; where that has begun to use the driver, whose state no copy can have, as any other.
    """
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"} | (more or {})
    environment["COLUMNS"] = "300"  # pytest cuts what is wider
    forked = forked and imported()

    def alone() -> None:
        os.setpgrp()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if forked:
            become(command[2:], environment)

    return subprocess.Popen(command, stdout=stdout, stderr=stderr, preexec_fn=alone, env=environment)


@cache
def imported() -> bool:
    """Import what tests on a GPU need; whether copies of this process can use the driver."""
    policy = os.environ.get("OMP_WAIT_POLICY")
    os.environ["OMP_WAIT_POLICY"] = policy or "PASSIVE"  # as for all tests; torch reads it when it is imported
    for name in ("torch", "torch_geometric.nn", "numba", "hypothesis", "pytest", "hongtu.train"):
        with suppress(Exception):  # a part will say what
            importlib.import_module(name)
    if policy is None:  # not for what is timed
        del os.environ["OMP_WAIT_POLICY"]
    gc.collect()
    gc.freeze()
    return "libcuda.so" not in Path("/proc/self/maps").read_text()


def become(command: tuple[str, ...], environment: dict[str, str]) -> None:
    """Be ``python -m`` with this command, in a copy of the check's process; never returns."""
    os.closerange(3, 4096)  # the check waits for the end of one of them
    os.environ.clear()
    os.environ.update(environment)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    faulthandler.enable()
    code: Any = 1
    sys.argv = [*command]
    try:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as stopped:
        code = stopped.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(int(code))


def kill(process: subprocess.Popen[bytes], number: signal.Signals = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def end(process: subprocess.Popen[bytes]) -> None:
    """End it, with all that it has started; what the driver does not let go is not waited for."""
    kill(process)
    with suppress(subprocess.TimeoutExpired):
        process.wait(10)


def run_all(command: tuple[str, ...], stdout: IO[Any], stderr: IO[Any], limit: float) -> int | None:
    """Run a command; its exit code, or None when it was ended, with all that it had started, after the limit."""
    process = begin(command, stdout, stderr)
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        end(process)


def end_left_behind(work: Path) -> int:
    """End what an earlier call that was killed has left running; how many processes these were."""
    mark, found = f"{MARK}={work}".encode(), 0
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0") and int(entry.name) != os.getpid():
                os.kill(int(entry.name), signal.SIGKILL)
                found += 1
    return found

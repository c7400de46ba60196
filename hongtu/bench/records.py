"""How every measurement writes its results: JSON lines that name the command and what it ran on."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import hongtu
from hongtu.errors import InputError, OutputError
from hongtu.files import lines_of

PACKAGES = ("torch", "torch_geometric", "numpy")
CPUINFO = Path("/proc/cpuinfo")


def machine(experiment: str, command: str | None = None) -> dict[str, Any]:
    """What a result was measured on, and by which command.

    Args:
        command: what the arguments of this process follow; None: the experiment, as a module.
    """
    return {
        "experiment": experiment,
        "command": shlex.join([*(command or f"python -m experiments.{experiment}").split(), *sys.argv[1:]]),
        "hongtu": hongtu.__version__,
        "python": platform.python_version(),
        **{name: version_of(name) for name in PACKAGES},
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
    }


def append(path: Path | None, row: dict[str, Any]) -> None:
    """Add a JSON line to a file, if there is one to write to."""
    if path is None:
        return
    try:
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")
    except OSError as error:
        raise OutputError(path, error) from error


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines; none where there is no file.

    Raises:
        InputError: naming the first line that is no JSON object.
    """
    return list(_rows(path)) if path.is_file() else []


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(_lines(path), start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: not JSON ({error}); remove the line") from error
        if not isinstance(row, dict):
            raise InputError(f"{path}, line {number}: expected a JSON object, found {type(row).__name__}")
        yield row


def _lines(path: Path) -> Iterator[str]:
    try:
        with open(path, encoding="utf-8") as stream:
            yield from lines_of(stream)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a file of JSON lines ({error})") from error


def version_of(package: str) -> str | None:
    """That of an installed distribution; None where there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    """The model's name where the machine tells it."""
    if CPUINFO.exists():
        for line in CPUINFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()

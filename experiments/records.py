"""How every experiment writes its results: JSON lines that name the command and what it ran on."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import hongtu

PACKAGES = ("torch", "torch_geometric", "numpy")


def machine(experiment: str) -> dict[str, Any]:
    """What a result was measured on, and by which command."""
    return {
        "command": shlex.join(["python", "-m", f"experiments.{experiment}", *sys.argv[1:]]),
        "hongtu": hongtu.__version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "cores": os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
    }


def append(path: Path | None, row: dict[str, Any]) -> None:
    """Add a JSON line to a file, if there is one to write to."""
    if path is not None:
        with open(path, "a") as stream:
            stream.write(json.dumps(row) + "\n")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None

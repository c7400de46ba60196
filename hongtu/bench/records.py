"""How every measurement writes its results: JSON lines that name the command and what it ran on, and lines for people;
and what else the machine does meanwhile, and what a process takes of its memory. Linux only."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import hongtu
from hongtu.bench.spec import Model
from hongtu.errors import InputError, OutputError
from hongtu.files import lines_of
from hongtu.host import STATUS, proc_bytes
from hongtu.threads import busy_seconds

PACKAGES = ("torch", "torch_geometric", "numpy")
CPUINFO = Path("/proc/cpuinfo")
CLEAR = Path("/proc/self/clear_refs")
BUSY = 0.08  # share of the machine that others may take while something is timed
LEAST = 3 / os.sysconf("SC_CLK_TCK")  # seconds: the kernel counts in ticks


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
    rows: list[dict[str, Any]] = []
    if not path.is_file():
        return rows
    try:
        with open(path, encoding="utf-8") as stream:
            for number, line in enumerate(lines_of(stream), start=1):
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise InputError(f"{path}, line {number}: not JSON ({error}); remove the line") from error
                if not isinstance(row, dict):
                    raise InputError(f"{path}, line {number}: expected a JSON object, found {type(row).__name__}")
                rows.append(row)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a file of JSON lines ({error})") from error
    return rows


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


def table(model: Model, rows: list[dict[str, Any]]) -> str:
    """Seconds with their spread, memory, both over those of the first row, and where accuracy came to."""
    lines = [f"{model.name}, {model.layers} layers, hidden {model.hidden}; reference {rows[0]['reference']}"]
    first = rows[0]
    for row in rows:
        if "seconds" not in row:
            lines.append(f"  {row['label']:34s} NOT TIMED: losses {row['losses']} are not {row['reference_losses']}")
            continue
        low, high = row["spread"]
        text = f"  {row['label']:34s} {row['seconds']:8.3f} s [{low:.3f}, {high:.3f}]"
        if "seconds" in first:
            text += f" {row['seconds'] / first['seconds']:6.2f}x"
        if row.get("least_seconds"):
            text += f"  {row['least_seconds'] / row['seconds']:4.0%} of the roofline"
        if "process_bytes" in row:
            text += f"  {row['process_bytes'] / 2**20:7.0f} MiB"
        if "bytes" in row:
            text += f"  {host_bytes(row['bytes']) / 2**20:8.0f} MiB over the host link"
        if row.get("curve") and row["curve"][-1].get("val") is not None:
            text += f"  val {row['curve'][-1]['val']:.3f} after {row['curve'][-1]['seconds']:.1f} s"
        lines.append(text + ("" if row["others"] <= BUSY else f"  (others took {row['others']:.0%} of the machine)"))
    return "\n".join(lines)


def host_bytes(moved: dict[str, int]) -> int:
    """Bytes that crossed the host link, structure and plan arrays apart."""
    return sum(moved[link] for link in ("load", "flush", "read", "write"))


class OthersShare:
    """The share of the cores that other processes take, from here to ``stop``; that of this one is ``own`` then."""

    def __init__(self) -> None:
        self.own = 0.0
        self._before = _seconds()

    def stop(self, seconds: float) -> float:
        """Between 0 and 1; 0 where the machine does not tell."""
        if seconds <= 0:
            return 0.0
        busy, own = (after - before for after, before in zip(_seconds(), self._before, strict=True))
        whole = seconds * (os.cpu_count() or 1)
        self.own = own / whole
        return min((busy - own) / whole, 1.0) if busy - own > LEAST else 0.0


def _seconds() -> tuple[float, float]:
    """Of all processes, and of this one and those that it started and that have ended."""
    return busy_seconds(), sum(os.times()[:4])


def peak_resident() -> int:
    """Bytes of memory that this process held at most since it began, or since ``forget_peak``; 0 where unknown."""
    return proc_bytes(STATUS, "VmHWM") or 0


def forget_peak() -> None:
    """What the process holds now is its peak."""
    with suppress(OSError):  # the imports' own peak stays in
        CLEAR.write_text("5")

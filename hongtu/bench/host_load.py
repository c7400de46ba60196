"""What else the machine does while something is timed, and what a process takes of its memory. Linux only."""

from __future__ import annotations

import os
from pathlib import Path

from hongtu.host import STATUS, proc_bytes

STAT, CLEAR = Path("/proc/stat"), Path("/proc/self/clear_refs")
BUSY = 0.08  # share of the machine that others may take while something is timed
LEAST = 3 / os.sysconf("SC_CLK_TCK")  # seconds: the kernel counts in ticks


class OthersShare:
    """The share of the cores that other processes take, from here to ``stop``."""

    def __init__(self) -> None:
        self._before = _processor_seconds()

    def stop(self, seconds: float) -> float:
        """Between 0 and 1; 0 where the machine does not tell."""
        before, after = self._before, _processor_seconds()
        if before is None or after is None or seconds <= 0:
            return 0.0
        others = (after[0] - before[0]) - (after[1] - before[1])
        if others <= LEAST:
            return 0.0
        return min(others / (seconds * (os.cpu_count() or 1)), 1.0)


def _processor_seconds() -> tuple[float, float] | None:
    """Of all processes, and of this one and those that it started and that have ended."""
    try:
        fields = [int(field) for field in STAT.read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    idle = fields[3] + fields[4]
    return (sum(fields) - idle) / os.sysconf("SC_CLK_TCK"), sum(os.times()[:4])


def peak_resident() -> int:
    """Bytes of memory that this process held at most since it began, or since ``forget_peak``; 0 where unknown."""
    return proc_bytes(STATUS, "VmHWM") or 0


def forget_peak() -> None:
    """What the process holds now is its peak."""
    try:
        CLEAR.write_text("5")
    except OSError:  # the imports' own peak stays in
        return

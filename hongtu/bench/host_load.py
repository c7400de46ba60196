"""What else the machine does while something is timed, and what a process takes of its memory. Linux only."""

from __future__ import annotations

import os
from pathlib import Path

from hongtu.host import STATUS, proc_bytes
from hongtu.threads import busy_seconds

CLEAR = Path("/proc/self/clear_refs")
BUSY = 0.08  # share of the machine that others may take while something is timed
LEAST = 3 / os.sysconf("SC_CLK_TCK")  # seconds: the kernel counts in ticks


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
    try:
        CLEAR.write_text("5")
    except OSError:  # the imports' own peak stays in
        return

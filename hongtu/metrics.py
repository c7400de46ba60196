"""What a run reports: transfer counters and the record of one epoch.

``load, pull, push, flush`` move sparse rows (host->device, peer->device, device->peer gradient, device->host
gradient); ``read`` and ``write`` move a chunk's own contiguous rows (host->device, device->host); ``topology``
moves chunk structure and plan arrays (host->device). ``fetch`` and ``send`` move sparse rows between ranks: values from
their owners, gradients to them; counted where they are read. What moves to and from a memory below the host's counts
under the memory's name: ``disk``, rows in files.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

from hongtu.config import size

LINKS = ("load", "pull", "push", "flush", "read", "write", "topology", "fetch", "send")
ROW_LINKS = ("load", "pull", "push", "flush", "fetch", "send")
BELOW = {"disk": "disk_link"}  # memories of rows that the host does not hold; of each, its rate in hardware profiles


@dataclass(kw_only=True)
class Traffic:
    """Bytes per link, rows for the sparse links, and (measured only) seconds per phase: the links and compute."""

    bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*LINKS, *BELOW), 0))
    rows: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ROW_LINKS, 0))
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float), compare=False)

    def add(self, link: str, nbytes: int, rows: int = 0, seconds: float = 0.0) -> None:
        self.bytes[link] += nbytes
        if link in self.rows:
            self.rows[link] += rows
        if seconds:
            self.seconds[link] += seconds

    def clear(self) -> None:
        """Start counting again."""
        self.bytes, self.rows = dict.fromkeys(self.bytes, 0), dict.fromkeys(ROW_LINKS, 0)
        self.seconds.clear()

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            bytes={link: nbytes + other.bytes[link] for link, nbytes in self.bytes.items()},
            rows={link: self.rows[link] + other.rows[link] for link in ROW_LINKS},
        )


@dataclass(kw_only=True)
class EpochRecord:
    """One training epoch.

    Attributes:
        epoch: its number, from 1.
        loss: the training loss: the weighted sum of its terms, or the loss over edges.
        seconds: wall-clock seconds.
        bytes: bytes moved per link (see the module docstring).
        rows: rows moved per sparse link.
        peak_bytes: per memory ("device 0", ..., "pinned host", "pageable host", and "disk" where rows are spilled):
            highest total of planned buffers and workspace.
        arena_bytes: per memory: highest total of planned buffers alone; equals the plan's prediction.
        phases: seconds per phase.
        pass_seconds: wall-clock seconds per pass, by its name.
        eager: why Python dispatched the epoch's operations; "" where a GPU did captured passes again.
        metrics: evaluation results, when this epoch was evaluated.
    """

    epoch: int
    loss: float
    seconds: float
    bytes: dict[str, int]
    rows: dict[str, int]
    peak_bytes: dict[str, int]
    arena_bytes: dict[str, int]
    phases: dict[str, float]
    pass_seconds: dict[str, float] = field(default_factory=dict)
    eager: str = ""
    metrics: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON; a number that does not exist is None."""
        return asdict(self) | self.summary()

    def _repr_html_(self) -> str:
        """What a notebook shows of it."""
        numbers = {"epoch": self.epoch, "loss": f"{self.loss:.4f}", "seconds": f"{self.seconds:.3f}"}
        numbers |= {escape(name): f"{score:.4f}" for name, score in self.metrics.items()}
        numbers |= {f"{link} bytes": f"{count:,}" for link, count in self.bytes.items() if count}
        numbers |= {f"peak of {escape(name)}": size(count) for name, count in self.peak_bytes.items()}
        cells = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in numbers.items())
        return f"<table>{cells}</table>"

    def summary(self) -> dict[str, Any]:
        """The part that a run's history keeps of every epoch."""
        metrics = {name: _json_number(score) for name, score in self.metrics.items()}
        return {"epoch": self.epoch, "loss": _json_number(self.loss), "seconds": self.seconds, "metrics": metrics}


def summary_of(found: Any) -> dict[str, Any] | None:
    """What a line of a log says of its epoch, as ``EpochRecord.summary``; None where it is no such line.

    >>> summary_of({"epoch": 1, "loss": 0.5, "rows": {}})
    {'epoch': 1, 'loss': 0.5, 'seconds': None, 'metrics': None}
    >>> summary_of({"epoch": 1, "loss": "0.5"})
    """
    if not isinstance(found, dict) or type(found.get("epoch")) is not int:
        return None
    said = {name: found.get(name) for name in ("epoch", "loss", "seconds", "metrics")}
    scores = {} if said["metrics"] is None else said["metrics"]
    if not isinstance(scores, dict):
        return None
    numbers = said["loss"], said["seconds"], *scores.values()
    good = all(x is None or (type(x) in (int, float) and abs(x) < 2**1023) for x in (said["epoch"], *numbers))
    return said if good else None


def _json_number(x: float) -> float | None:
    return x if math.isfinite(x) else None

"""When the streams of a planned pass work, batch by batch, at the rates of a hardware profile.

Every instruction takes what its own rows and bytes take there; a stream does its instructions in their order and waits
where the program says so. The thread that gives streams their work is one more of them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from hongtu.hardware import Hardware
from hongtu.plan.cost.seconds import pass_seconds
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.passes.definition import Pass
from hongtu.plan.program import moves
from hongtu.plan.program.program import script_bytes
from hongtu.plan.program.rows import DESTINATIONS

Clocks = dict[tuple[str, int], float]


class Timeline:
    """Of one pass.

    Args:
        times: every vertex and every edge stands for so many.

    Attributes:
        busy: seconds of work by stream and device; ``total``: of the pass.
        least: by device, seconds that the link alone takes at least, with these batches in this order: those of what
            comes until some batch, and of what leaves from it on, wherever that is most.
    """

    def __init__(self, plan: ExecutionPlan, p: Pass, hardware: Hardware, times: int = 1) -> None:
        self.plan, self.pass_, self.hardware, self.times = plan, p, hardware, times
        self.program = plan.pass_program(p)
        self.devices = range(len(self.program.buffers))
        self.busy: Counter[tuple[str, int]] = Counter()
        self._clock: Counter[tuple[str, int]] = Counter()
        self._scripts = [script_bytes(self.program, i) for i in self.devices]
        self._turns: list[dict[str, Clocks]] = [{e: {} for e in moves.EVENTS} for _ in range(self.program.sets)]
        moved = {i: np.zeros((2, len(self.program.order))) for i in self.devices}
        for step, batch in enumerate(self.program.order):
            before = self.busy.copy()
            self._given = (step + 1) * hardware.chunk_seconds  # when the thread has come so far
            for x in self.program.body:
                self._do(x, step, batch)
            for i in self.devices:
                moved[i][:, step] = [self.busy[stream, i] - before[stream, i] for stream in ("load", "flush")]
        self.total = max(self._clock.values())
        self.least = {i: float((np.cumsum(come) + np.cumsum(go[::-1])[::-1]).max()) for i, (come, go) in moved.items()}

    def share(self, stream: str) -> float:
        """Of the pass in which a stream works, on the device where that is the least."""
        return min(self.busy[stream, i] for i in self.devices) / self.total

    def _do(self, x: Any, step: int, batch: int) -> None:
        turn, clock = self._turns[step % self.program.sets], self._clock
        for i in self.devices:
            if isinstance(x, moves.Wait):
                clock[x.stream, i] = max(clock[x.stream, i], turn[x.event].get((x.stream, i), 0.0))
            elif isinstance(x, moves.Follow):
                clock[x.stream, i] = max(clock[x.stream, i], clock[x.other, i])
            elif isinstance(x, moves.Signal):
                turn[x.event] |= {(stream, i): clock[x.stream, i] for stream in ("load", "compute", "flush")}
            elif isinstance(x, moves.Meet):
                clock[x.stream, i] = max(clock[x.stream, k] for k in self.devices)
            elif x.on == "load":
                self._work("load", i, self._seconds(x, i, step, batch))
            elif x.on == "compute":
                self._work("compute", i, self._seconds(x, i, step, batch))
            elif x.on == "flush":  # and the host takes what has arrived
                self._work("flush", i, self._seconds(x, i, step, batch))
                clock["host", i] = max(clock["host", i], clock["flush", i])
                rows = self._moved(x, i, batch) if x.verb == "flush" else 0
                self._work("host", i, rows / self.hardware.host_link)

    def _work(self, stream: str, i: int, seconds: float) -> None:
        self._clock[stream, i] = max(self._clock[stream, i], self._given) + seconds
        self.busy[stream, i] += seconds

    def _seconds(self, x: Any, i: int, step: int, batch: int) -> float:
        hardware, row = self.hardware, self.plan.shape.itemsize
        if isinstance(x, moves.Ship):
            return self.times * self._scripts[i][step] / hardware.host_link
        if x.verb in ("load", "flush"):
            return self._moved(x, i, batch) / hardware.host_link
        if x.verb in ("pull", "push"):
            return self._moved(x, i, batch) / hardware.peer_link
        reads = isinstance(x, moves.Copy) and x.src.where == "host" and x.src.rows is DESTINATIONS
        if (reads or x.verb == "write") and x.dst.tensor not in self.program.packed:
            rows = int(self.program.view.num_dst[self.program.chunk(i, batch)])
            return self.times * rows * self.plan.passes.width[x.dst.tensor] * row / hardware.host_link
        if isinstance(x, moves.Compute):
            own = slice(i * self.program.view.chunks, (i + 1) * self.program.view.chunks)
            edges = self.program.view.chunk_edges
            s = pass_seconds(self.plan, self.pass_, hardware)
            share = edges[self.program.chunk(i, batch)] / max(int(edges[own].sum()), 1)
            return float(self.times * (s.aggregate + s.rowwise) * share)
        return 0.0

    def _moved(self, x: Any, i: int, batch: int) -> float:
        """Bytes of the rows that are picked."""
        rows, p = len(x.src.rows.array(i, batch)), self.pass_
        name = str(p.exchange if x.verb in ("load", "pull") else p.flush)
        return self.times * rows * self.plan.passes.width[name] * self.plan.shape.itemsize

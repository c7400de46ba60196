"""What the waits of today's programs order: vector clocks over the streams of one pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hongtu.plan.program import moves
from tests.ledger.form import Call, Copy
from tests.ledger.lower import Lowered, Placed
from tests.ledger.streams import HERE, stream_of

DEVICES = "load", "compute", "flush"


class Order:
    """Which operations are done before which.

    Args:
        one: a pass.
        keeps: which waits there are; events are always signalled.
    """

    def __init__(self, one: Lowered, keeps: Callable[[Placed], bool] = lambda placed: True) -> None:
        self.one, self.devices = one, range(len(one.p.buffers))
        names = [HERE, ("host", 0), ("disk", 0), *((name, i) for name in DEVICES for i in self.devices)]
        self.number = {name: k for k, name in enumerate(names)}
        self.clocks = np.zeros((len(names), len(names)), dtype=np.int64)
        self.begun = np.zeros((len(one.ops), len(names)), dtype=np.int64)
        self.stream, self.tick = (np.zeros(len(one.ops), dtype=np.int64) for _ in range(2))
        turns = max(one.p.sets, 1 + one.p.ahead)
        self.events = [
            {name: [np.zeros(len(names), np.int64) for _ in self.devices] for name in moves.EVENTS}
            for _ in range(turns)
        ]
        k = 0
        for x in one.entries:
            if not isinstance(x, Placed):
                self._run(k, x)
                k += 1
            elif isinstance(x.wait, moves.Signal) or keeps(x):
                getattr(self, x.wait.verb)(x.wait, x)

    def _run(self, k: int, x: object) -> None:
        if isinstance(x, Copy | Call):
            s = self._at(*stream_of(x, staged=self.one.staged))
            self._hold(s, self.clocks[0])
            self.clocks[s, s] += 1
            self.begun[k], self.stream[k], self.tick[k] = self.clocks[s], s, self.clocks[s, s]

    def _at(self, name: str, device: int) -> int:
        if not self.one.staged and name != "disk":
            return 0
        return self.number[name, device if name in DEVICES else 0]

    def _hold(self, stream: int, moment: np.ndarray) -> None:
        np.maximum(self.clocks[stream], moment, out=self.clocks[stream])

    def unordered(self, pairs: np.ndarray) -> np.ndarray:
        """Of pairs of operations those of which the first may not be done when the second begins."""
        first, then = pairs[:, 0], pairs[:, 1]
        return pairs[self.begun[then, self.stream[first]] < self.tick[first]]

    def wait(self, x: moves.Wait, at: Placed) -> None:
        for i in self.devices:
            self._hold(self._at(x.stream, i), self.events[at.turn][x.event][i])

    def signal(self, x: moves.Signal, at: Placed) -> None:
        self.events[at.turn][x.event] = [self.clocks[self._at(x.stream, i)].copy() for i in self.devices]

    def follow(self, x: moves.Follow, at: Placed) -> None:
        for i in self.devices if at.device is None else [at.device]:
            self._hold(self._at(x.stream, i), self.clocks[self._at(x.other, i)].copy())

    def meet(self, x: moves.Meet, at: Placed) -> None:
        moments = [self.clocks[self._at(x.stream, i)].copy() for i in self.devices]
        for i in self.devices:
            for moment in moments:
                self._hold(self._at(x.stream, i), moment)

    def drain(self, x: object, at: Placed) -> None:
        self._hold(0, self.clocks.max(axis=0))

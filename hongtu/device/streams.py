"""Streams: work on one device in order, and events by which one stream waits for another.

A device has a ``load``, a ``compute`` and a ``flush`` stream; ``host`` is the host's own, on which gradient rows are
added up. On the CPU device all work is done at once, so waiting is nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Event(Protocol):
    """A moment of a stream: everything put there before it is done."""

    def synchronize(self, why: str) -> None:
        """Wait for it here, on the host."""


class Stream(Protocol):
    """A queue of work that runs in order."""

    def run(self, work: Callable[[], object]) -> None:
        """Put work into the queue; what it reads must stay until the queue is drained."""

    def record(self) -> Event:
        """The moment after all that is in the queue now."""

    def wait(self, event: Event, why: str) -> None:
        """Hold the work put here from now on until an event; ``why`` says what would go wrong without."""


class Done:
    """An event that has passed."""

    def synchronize(self, why: str) -> None:
        pass


DONE = Done()


class Inline:
    """A stream that does its work at once."""

    def run(self, work: Callable[[], object]) -> None:
        work()

    def record(self) -> Event:
        return DONE

    def wait(self, event: Event, why: str) -> None:
        pass


@dataclass(frozen=True)
class Streams:
    """The streams of one device, and the host's."""

    load: Stream
    compute: Stream
    flush: Stream
    host: Stream


class Turn:
    """One set of staging memory, and how far each device has come with the batch that uses it.

    Attributes:
        set: number of the set.
        brought: on ``load``: values and structure are there; the host's side of the set is free again.
        sent: on ``flush``: it has computed, and what it gave has left the device.
        added: on ``host``: and has been stored or added up.
    """

    def __init__(self, number: int, devices: int) -> None:
        self.set = number
        self.brought: list[Event] = [DONE] * devices
        self.sent: list[Event] = [DONE] * devices
        self.added: list[Event] = [DONE] * devices

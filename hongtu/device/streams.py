"""Streams: work on one device in order, and events by which one stream waits for another.

A device has a ``load``, a ``compute`` and a ``flush`` stream; ``host`` is the host's own, on which gradient rows are
added up, and ``disk``, on which rows come from a disk and go there. On the CPU device all other work is done at once.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
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
        event.synchronize(why)


_QUEUED = 64  # pieces of work that a thread may be behind


class ThreadEvent:
    """A moment of a thread."""

    def __init__(self, thread: ThreadStream) -> None:
        self._thread, self._passed = thread, threading.Event()

    def synchronize(self, why: str) -> None:
        self._passed.wait()
        self._thread.check()

    def come(self) -> None:
        self._passed.set()


class ThreadStream:
    """A stream on a thread of the host, which begins with its first work. An error is raised where it is waited for.

    Args:
        begin: called first.
    """

    def __init__(self, begin: Callable[[], object] = lambda: None) -> None:
        self._begin = begin
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(_QUEUED)
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Callable[[], object]) -> None:
        if self._thread is None:
            arguments = self._work, self._room, weakref.ref(self), self._begin
            self._thread = threading.Thread(target=_work_off, args=arguments, daemon=True)
            self._thread.start()
            weakref.finalize(self, self._work.put, None)  # which waits for nobody, wherever Python looks for garbage
        self._put(work)

    def record(self) -> Event:
        if self._thread is None:
            return DONE
        event = ThreadEvent(self)
        self._put(event.come)
        return event

    def _put(self, piece: Callable[[], object]) -> None:
        self._room.acquire()
        self._work.put(piece)

    def wait(self, event: Event, why: str) -> None:
        if event is not DONE:
            self.run(lambda: event.synchronize(why))

    def fail(self, error: BaseException) -> None:
        self._error = self._error or error

    def check(self) -> None:
        """Raise what has gone wrong on the thread."""
        error, self._error = self._error, None
        if error is not None:
            raise error


def _work_off(
    work: queue.SimpleQueue[Callable[[], object] | None],
    room: threading.Semaphore,
    owner: weakref.ref[ThreadStream],
    begin: Callable[[], object],
) -> None:
    begin()
    while True:
        piece = work.get()
        if piece is None:
            return
        room.release()
        try:
            piece()
        except BaseException as error:  # raised where somebody waits for it
            thread = owner()
            if thread is not None:
                thread.fail(error)
            del thread
        del piece  # an event holds its thread, which could not go


@dataclass(frozen=True)
class Streams:
    """The streams of one device, and those of the host, which all devices share."""

    load: Stream
    compute: Stream
    flush: Stream
    host: Stream
    disk: Stream = field(default_factory=Inline)

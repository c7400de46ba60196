"""Work in parts, on as many threads as torch has: for code that releases the GIL.

The threads take one part after the other, so that one that is held up leaves more to the others. Between two calls they
sleep; waking them takes some 20 microseconds.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from hongtu.threads import num_threads


def parallel_for(function: Callable[..., object], count: int, *args: Any, threads: int | None = None) -> None:
    """Call ``function(part, *args)`` for every part of ``range(count)``, in no order, on several threads.

    Returns when all calls have; may itself be called from several threads at the same time.

    Args:
        threads: that work, the caller's among them (default: ``num_threads()``).

    Raises:
        BaseException: one that a call has raised; all others have run.
    """
    helpers = min(num_threads() if threads is None else threads, count) - 1
    if helpers <= 0:
        for part in range(count):
            function(part, *args)
        return
    job = _Job(function, count, args)
    try:
        _crew.help(job, helpers)
        job.work()
    finally:
        job.close()
    if job.error is not None:
        raise job.error


class _Job:
    """Parts, taken by whoever has time.

    Attributes:
        error: that a call has raised.
    """

    def __init__(self, function: Callable[..., object], count: int, args: tuple[Any, ...]) -> None:
        self._function, self._args = function, args
        self._parts = iter(range(count))  # of which ``next`` is atomic
        self._lock, self._over = threading.Lock(), threading.Lock()
        self._over.acquire()  # until the last helper is through; an Event takes ten times as long
        self._helping, self._closed = 0, False
        self.error: BaseException | None = None

    def work(self) -> None:
        """Do parts until none is left."""
        function, args = self._function, self._args
        for part in self._parts:
            try:
                function(part, *args)
            except BaseException as error:  # the caller of ``parallel_for`` gets it
                self.error = self.error or error

    def help(self) -> None:
        """The same, from another thread, unless the job is over by the time."""
        with self._lock:
            if self._closed:
                return
            self._helping += 1
        self.work()
        with self._lock:
            self._helping -= 1
            if self._closed and not self._helping:
                self._over.release()

    def close(self) -> None:
        """Give nothing out any more, and wait for those who are still at a part; who has not begun does not count."""
        for _ in self._parts:  # the iterator that helpers take theirs from
            pass
        with self._lock:
            self._closed = True
            wait = self._helping > 0
        if wait:
            self._over.acquire()


class _Crew:
    """Threads that wait for jobs, as many as were ever asked for."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._size = 0

    def help(self, job: _Job, helpers: int) -> None:
        for _ in range(helpers - self._size):  # two callers may make more
            threading.Thread(target=self._run, name="hongtu parts", daemon=True).start()
            self._size += 1
        for _ in range(helpers):
            self._jobs.put(job)

    def _run(self) -> None:
        while True:
            self._jobs.get().help()


def _begin() -> None:
    global _crew
    _crew = _Crew()


_crew = _Crew()
os.register_at_fork(after_in_child=_begin)  # threads do not come along

"""A system in another process, as the one that compares sees it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from itertools import count
from multiprocessing import get_context
from typing import Any

from hongtu.bench import worker as inside
from hongtu.bench.worker import FIRST, Order
from hongtu.errors import InputError


class Process:
    """A process for systems, which have numbers; it does what it is told in turn."""

    def __init__(self) -> None:
        context = get_context("spawn")  # with nothing of this one's memory
        self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=inside.print_to_stderr)
        self.numbers = count(FIRST)
        self.submit = self._pool.submit

    def close(self) -> None:
        """End it."""
        self._pool.shutdown(cancel_futures=True)


class Worker:
    """A system in another process, with the losses of its first epochs and the epochs that were timed; it starts by
    itself, and answers after ``ready``.

    Args:
        process: that it shares with others; None: one of its own.
    """

    def __init__(self, order: Order, process: Process | None = None) -> None:
        self.order, self.run = order, order.run
        self.losses: list[float | None] = []
        self.epochs: list[dict[str, Any]] = []
        self._shared = process is not None
        self._process = process or Process()
        self._number = next(self._process.numbers)
        self._made = self._process.submit(inside.make, self._number, order)

    def ready(self) -> None:
        """Wait until it is."""
        self._answer(self._made)

    def do(self, what: str) -> dict[str, Any]:
        """One of the worker's verbs.

        Raises:
            InputError: what the process refuses, word for word (BudgetError: with the smallest that works).
            RuntimeError: when it has ended.
        """
        return self._answer(self._process.submit(inside.do, self._number, what))

    def epoch(self) -> dict[str, Any]:
        return self.do("epoch")

    def close(self) -> None:
        """End the system."""
        if not self._shared:
            self._process.close()
        elif not self._made.cancel():
            self._made.exception()  # whatever it is, nobody asks any more
            with suppress(RuntimeError):  # the process is gone already
                self.do("drop")

    def _answer(self, answer: Future[dict[str, Any]]) -> dict[str, Any]:
        try:
            return answer.result()
        except InputError as refused:
            refused.args = (f"{self.run.label}: {refused}",)
            raise
        except BrokenProcessPool:
            raise RuntimeError(
                f"{self.run.label}: its process was killed (out of memory?), or its error is above"
            ) from None


@contextmanager
def worker(order: Order, process: Process | None = None) -> Iterator[Worker]:
    """A worker that is gone afterwards."""
    found = Worker(order, process)
    try:
        found.ready()
        yield found
    finally:
        found.close()


@contextmanager
def shared_process() -> Iterator[Process]:
    """A process for many systems, gone afterwards: they start faster, but nobody knows whose memory is whose."""
    process = Process()
    try:
        yield process
    finally:
        process.close()

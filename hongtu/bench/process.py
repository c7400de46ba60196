"""A system in another process, as the one that compares sees it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

from hongtu.bench.worker import FIRST, Order
from hongtu.errors import BudgetError, InputError


class Process:
    """A process for systems."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "hongtu.bench.worker"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._number, self._unanswered = count(FIRST), 0

    def number(self) -> int:
        """Of a new system."""
        return next(self._number)

    def say(self, line: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._unanswered += 1
        with suppress(BrokenPipeError):  # there will be no answer
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()

    def answer(self, label: str) -> dict[str, Any]:
        """To the first line that has none yet.

        Raises:
            InputError: what the process refuses, word for word (BudgetError: with the smallest that works).
            RuntimeError: when it has ended.
        """
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        self._unanswered -= 1
        if not answer:
            code = self._process.wait()
            why = "out of memory?" if code == -9 else "its error is above"
            raise RuntimeError(f"{label}: the process ended with {code} ({why})")
        found = json.loads(answer)
        if "refused" in found:
            message = f"{label}: {found['refused']}"
            raise BudgetError(message, found["smallest"]) if found["smallest"] else InputError(message)
        return found

    def catch_up(self) -> None:
        """Pass over what nobody waits for."""
        while self._unanswered:
            with suppress(InputError):
                self.answer("")

    def close(self) -> None:
        """End it."""
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                assert stream is not None
                stream.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


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
        self._number = self._process.number()
        self._process.say({"system": self._number, "order": order.to_dict()})

    def ready(self) -> None:
        """Wait until it is; in a shared process those who started first wait first."""
        self._process.answer(self.run.label)

    def do(self, what: str) -> dict[str, Any]:
        """One of the worker's verbs."""
        self._process.say({"system": self._number, "do": what})
        return self._process.answer(self.run.label)

    def epoch(self) -> dict[str, Any]:
        return self.do("epoch")

    def close(self) -> None:
        """End the system."""
        if self._shared:
            with suppress(RuntimeError):  # the process is gone already
                self._process.say({"system": self._number, "do": "drop"})
                self._process.catch_up()
        else:
            self._process.close()


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

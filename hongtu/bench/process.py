"""A system in a process of its own, as the one that compares sees it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from typing import Any

from hongtu.bench.spec import OURS
from hongtu.bench.worker import Order
from hongtu.errors import BudgetError, InputError
from hongtu.malloc import without_caches


class Worker:
    """A system in another process, with the losses of its first epochs and the epochs that were timed; it starts by
    itself, and answers after ``ready``."""

    def __init__(self, order: Order) -> None:
        self.order, self.run = order, order.run
        self.losses: list[float | None] = []
        self.epochs: list[dict[str, Any]] = []
        command = [sys.executable, "-m", "hongtu.bench.worker"]
        # each as its users start it: `hongtu train` sets malloc, the others are started by Python
        environment = without_caches(os.environ) if self.run.system == OURS else None
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._say(order.to_json())

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # there will be no answer
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            code = self._process.wait()
            why = "out of memory?" if code == -9 else "its error is above"
            raise RuntimeError(f"{self.run.label}: the process ended with {code} ({why})")
        found = json.loads(answer)
        if "refused" in found:
            message = f"{self.run.label}: {found['refused']}"
            raise BudgetError(message, found["smallest"]) if found["smallest"] else InputError(message)
        return found

    def ready(self) -> None:
        """Wait until it is.

        Raises:
            InputError: what the process refuses, word for word (BudgetError: with the smallest that works).
        """
        self._answer()

    def do(self, what: str) -> dict[str, Any]:
        """One of the worker's verbs."""
        self._say(json.dumps({"do": what}))
        return self._answer()

    def epoch(self) -> dict[str, Any]:
        return self.do("epoch")

    def close(self) -> None:
        """End the process."""
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                assert stream is not None
                stream.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def worker(order: Order):  # type: ignore[no-untyped-def]
    """A worker that is gone afterwards."""
    found = Worker(order)
    try:
        found.ready()
        yield found
    finally:
        found.close()

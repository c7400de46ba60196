"""A system in another process, as the one that compares sees it."""

from __future__ import annotations

from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from itertools import count
from multiprocessing import get_context
from tempfile import TemporaryDirectory
from typing import Any

from hongtu.bench import worker as inside
from hongtu.bench.worker import FIRST, Order
from hongtu.errors import InputError, RankLost

CAUSE_SECONDS = 5.0  # that a lost rank's own last words are waited for


class Process:
    """A process for systems, which have numbers; it does what it is told in turn. Several start faster in one, but
    nobody knows whose memory is whose."""

    def __init__(self) -> None:
        context = get_context("spawn")  # with nothing of this one's memory
        self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=inside.begin)
        self.numbers = count(FIRST)
        self.submit = self._pool.submit

    def close(self) -> None:
        """End it."""
        self._pool.shutdown(cancel_futures=True)

    def kill(self) -> None:
        """End it whatever it waits for."""
        for child in list(self._pool._processes.values()):  # Python 3.14 has kill_workers
            child.kill()
        self.close()


class Worker:
    """A system in another process, or in one for each of its ranks, with the losses of its first epochs and the epochs
    that were timed; it starts by itself, and answers after ``ready``.

    Args:
        process: that it shares with others; None: one of its own, as ranks always have.
    """

    def __init__(self, order: Order, process: Process | None = None) -> None:
        self.order, self.run = order, order.run
        self.losses: list[float | None] = []
        self.epochs: list[dict[str, Any]] = []
        ranks = order.run.ranks
        self._shared = process is not None and ranks == 1
        self._processes = [process] if process is not None and ranks == 1 else [Process() for _ in range(ranks)]
        self._number = next(self._processes[0].numbers)
        self._meeting = TemporaryDirectory(prefix="hongtu bench ")
        file = f"{self._meeting.name}/ranks"
        self._made = [p.submit(inside.make, self._number, order, rank, file) for rank, p in enumerate(self._processes)]

    def ready(self) -> None:
        """Wait until it is."""
        self._answer(self._made)

    def do(self, what: str) -> dict[str, Any]:
        """One of the worker's verbs.

        Raises:
            InputError: what the process refuses, word for word (BudgetError: with the smallest that works).
            RuntimeError: when it has ended.
        """
        return self._answer([process.submit(inside.do, self._number, what) for process in self._processes])

    def epoch(self) -> dict[str, Any]:
        return self.do("epoch")

    def close(self) -> None:
        """End the system."""
        self._meeting.cleanup()
        if self.run.ranks > 1:  # which may wait for one another
            for process in self._processes:
                process.kill()
        elif not self._shared:
            self._processes[0].close()
        elif not self._made[0].cancel():
            self._made[0].exception()  # whatever it is, nobody asks any more
            with suppress(RuntimeError):  # the process is gone already
                self.do("drop")

    def _answer(self, answers: list[Future[dict[str, Any]]]) -> dict[str, Any]:
        wait(answers, return_when=FIRST_EXCEPTION)  # the others may wait for one that has ended
        if any(isinstance(failure, RankLost) for failure in _failures(answers)):
            wait(answers, timeout=CAUSE_SECONDS)  # whoever lost a rank may say so before it is known why that one ended
        try:
            if failures := _failures(answers):
                raise min(failures, key=lambda failure: isinstance(failure, RankLost))
            return of_ranks([answer.result() for answer in answers])
        except InputError as refused:
            refused.args = (f"{self.run.label}: {refused}",)
            raise
        except BrokenProcessPool:
            raise RuntimeError(
                f"{self.run.label}: its process was killed (out of memory?), or its error is above"
            ) from None


def _failures(answers: list[Future[Any]]) -> list[BaseException]:
    return [failure for answer in answers if answer.done() and (failure := answer.exception()) is not None]


def of_ranks(found: list[dict[str, Any]]) -> dict[str, Any]:
    """What the slowest rank says, with what only all of them know."""
    if len(found) == 1:
        return found[0]
    slowest: dict[str, Any] = max(found, key=lambda each: each.get("seconds", 0))
    answer = dict(slowest)
    if "others" in answer:  # to which each rank counts the other ones
        own = sum(each["own"] for each in found)
        answer |= {"others": max(found[0]["others"] + found[0]["own"] - own, 0.0), "own": own}
    if "bytes" in answer:
        answer["bytes"] = {link: sum(each["bytes"][link] for each in found) for link in answer["bytes"]}
    if "process_bytes" in answer:
        answer["process_bytes"] = sum(each["process_bytes"] for each in found)
    if "memory" in answer:
        memory = [
            (f"rank {rank}, {name}", size) for rank, each in enumerate(found) for name, size in each["memory"].items()
        ]
        answer |= {
            "memory": dict(memory),
            "need": max(each["need"] for each in found),
            "counted_is_predicted": all(each["counted_is_predicted"] for each in found),
            "predicted_seconds": max(each["predicted_seconds"] for each in found),
        }
    return answer

"""Several systems on one artifact: each in a process of its own, their losses checked, then timed in turns."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hongtu.artifact import Artifact
from hongtu.bench.spec import Model, Run
from hongtu.bench.worker import Order
from hongtu.errors import BudgetError, InputError
from hongtu.host_load import BUSY

CHECKED = 3  # epochs, beginning with the first, whose losses must be the reference's; they also warm up
TOLERANCE = 1e-4  # relative, between float32 losses
STARTING = 2  # processes that start at the same time
SCORED = 20  # points of a curve of accuracy against time, about
EXACT = ("pyg-csr", "pyg", "pyg-sparse", "pyg-offload")  # fit to be the reference, the fastest first


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a comparison goes.

    Attributes:
        epochs: timed of each system, in turns, after those whose losses are checked.
        again: more epochs at most for those that others disturbed.
        accuracy: train every system for so many epochs in all, with scores on the way; 0: not.
        device, hardware: see :class:`~hongtu.bench.worker.Order`.
    """

    epochs: int = 5
    again: int = 4
    accuracy: int = 0
    device: str = "cpu"
    hardware: str | None = None


class Worker:
    """A system in another process, with the losses of its first epochs and the epochs that were timed; it starts by
    itself, and answers after ``ready``."""

    def __init__(self, order: Order) -> None:
        self.order, self.run = order, order.run
        self.losses: list[float | None] = []
        self.epochs: list[dict[str, Any]] = []
        command = [sys.executable, "-m", "hongtu.bench.worker"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
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


def in_memory_need(artifact: Path, model: Model, settings: Settings) -> int:
    """Bytes of the largest device when ours trains without a limit; what shares of memory are shares of."""
    with worker(_order(artifact, model, Run(strategy="full"), settings)) as found:
        found.epoch()
        return int(found.do("peak")["need"])


def reference_of(model: Model) -> Run:
    """What losses are checked against: torch_geometric, or ours without any saving where it is not installed."""
    from hongtu.bench.baselines import missing

    known = (form for form in EXACT if missing(form, model.name) is None)
    return next((Run(system=form) for form in known), Run(strategy="none"))


def compare(
    artifact: Path,
    model: Model,
    runs: Sequence[Run],
    settings: Settings,
    progress: Callable[[str], None] = lambda what: None,
) -> list[dict[str, Any]]:
    """One row per run, in their order.

    Args:
        progress: called after each step of ``steps``, with what was done.
    """
    reference = reference_of(model)
    with ExitStack() as stack:
        workers = []
        for first in range(0, len(runs), STARTING):
            started = [Worker(_order(artifact, model, run, settings)) for run in runs[first : first + STARTING]]
            for found in started:
                stack.callback(found.close)
            for found in started:
                found.ready()
                progress(f"{found.run.label}: ready")
            workers += started
        losses = _check(artifact, model, reference, workers, settings, progress)
        agree = [_agrees(found, losses) for found in workers]
        for _ in range(settings.epochs):
            for found, fine in zip(workers, agree, strict=True):
                if fine:
                    found.epochs.append(found.epoch())
                progress(f"{found.run.label}: timed")
        for _ in range(settings.again):
            for found in workers:
                if any(_disturbed(epoch) for epoch in found.epochs):
                    _replace_worst(found)
        peaks = [found.do("peak") for found in workers]
    curves = []
    for found in workers:
        wanted = settings.accuracy and found.run.system != "dense"
        curves.append(_curve(found.order, settings) if wanted else [])
        progress(f"{found.run.label}: accuracy")
    return [
        _row(found, reference, losses, fine, peak, curve)
        for found, fine, peak, curve in zip(workers, agree, peaks, curves, strict=True)
    ]


def describe(artifact: Artifact, settings: Settings) -> dict[str, Any]:
    """The columns of a row that all runs on an artifact have in common."""
    topology = artifact.topology
    return {
        "graph": artifact.path.name,
        "vertices": artifact.num_vertices,
        "edges": topology.num_edges,
        "partitions": topology.partitions,
        "chunks": topology.chunks,
        "device": settings.device,
        "epochs": settings.epochs,
        "accuracy": settings.accuracy,
    }


def steps(runs: Sequence[Run], settings: Settings) -> int:
    """How often ``compare`` calls its ``progress``."""
    return len(runs) * (3 + settings.epochs)


def _order(artifact: Path, model: Model, run: Run, settings: Settings) -> Order:
    return Order(
        artifact=str(artifact), model=model, run=run, device=settings.device, hardware=settings.hardware
    )  # fmt: skip


def _check(
    artifact: Path,
    model: Model,
    reference: Run,
    workers: Sequence[Worker],
    settings: Settings,
    progress: Callable[[str], None],
) -> list[float | None]:
    """The reference's losses of the first epochs; every worker keeps its own."""
    for found in workers:
        if found.run.system == "pyg-loader":  # its steps are others: the same model, before it has learned
            found.losses = [found.do("loss")["loss"]]
            found.epoch()
        else:
            found.losses = [found.epoch()["loss"] for _ in range(CHECKED)]
        progress(f"{found.run.label}: loss checked")
    known = next((found.losses for found in workers if found.run == reference), None)
    if known is not None:
        return known
    with worker(_order(artifact, model, reference, settings)) as found:
        return [found.epoch()["loss"] for _ in range(CHECKED)]


def _agrees(found: Worker, losses: Sequence[float | None]) -> bool:
    """Whether every loss is the reference's; "dense" has none."""
    pairs = zip(found.losses, losses, strict=False)
    return found.run.system == "dense" or all(
        own is not None and other is not None and abs(own - other) <= TOLERANCE * max(abs(other), 1e-3)
        for own, other in pairs
    )


def _disturbed(epoch: dict[str, Any]) -> bool:
    return epoch["others"] > BUSY


def _replace_worst(found: Worker) -> None:
    """Time one more epoch in place of the one that others disturbed most, if that was quieter."""
    worst = max(range(len(found.epochs)), key=lambda k: found.epochs[k]["others"])
    fresh = found.epoch()
    if fresh["others"] < found.epochs[worst]["others"]:
        found.epochs[worst] = fresh


def _curve(order: Order, settings: Settings) -> list[dict[str, Any]]:
    """Seconds trained and scores on the way, from the start to ``accuracy`` epochs, in a process that begins again."""
    points, trained = [], 0.0
    every = max(1, settings.accuracy // SCORED)
    with worker(order) as found:
        for epoch in range(1, settings.accuracy + 1):
            trained += found.epoch()["seconds"]
            if epoch % every == 0 or epoch == settings.accuracy:
                points.append({"epoch": epoch, "seconds": trained, **found.do("scores")})
    return points


def _row(
    found: Worker,
    reference: Run,
    losses: Sequence[float | None],
    fine: bool,
    peak: dict[str, Any],
    curve: list[dict[str, Any]],
) -> dict[str, Any]:
    row = found.run.to_dict() | {"label": found.run.label, "reference": reference.label, "loss_agrees": fine}
    row |= {"losses": found.losses, "reference_losses": list(losses), **peak}
    if not found.epochs:
        return row
    seconds = [epoch["seconds"] for epoch in found.epochs]
    middle = sorted(found.epochs, key=lambda epoch: epoch["seconds"])[len(seconds) // 2]
    row |= {
        "seconds": statistics.median(seconds),
        "spread": [min(seconds), max(seconds)],
        "others": max(epoch["others"] for epoch in found.epochs),
    }
    row.update((name, middle[name]) for name in ("phases", "passes", "bytes") if name in middle)
    return row | ({"curve": curve} if curve else {})

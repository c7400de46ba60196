"""Several systems, models or graphs in processes of their own: their losses are checked, then all timed in turns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hongtu.bench.process import Process, Worker
from hongtu.bench.records import BUSY
from hongtu.bench.spec import OURS, SAMPLED, Model, Run
from hongtu.bench.worker import Order
from hongtu.graph.artifact import Artifact

CHECKED = 3
TOLERANCE = 1e-4  # relative, between float32 losses
STARTING = 2  # processes that start at the same time
SCORED = 20  # points of a curve of accuracy against time, about
Reference = tuple[str, Sequence[float | None]]  # its label, and its losses
EXACT = ("pyg-csr", "pyg", "pyg-sparse", "pyg-offload")  # fit to be the reference, the fastest first


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a comparison goes.

    Attributes:
        epochs: timed of each system, in turns, after those whose losses are checked.
        checked: epochs, beginning with the first, whose losses must be the reference's; they also warm up. With 1 the
            reference need not learn, which saves most of its time on large graphs.
        again: more epochs at most for those that others disturbed.
        accuracy: train every system for so many epochs, or seconds, in all, with scores on the way; 0: not.
        in_seconds: accuracy is in seconds of training.
        device, hardware: see :class:`~hongtu.bench.worker.Order`.
        process: that all systems share, which starts them faster; None: each has one of its own, and its memory is
            measured.
    """

    epochs: int = 5
    checked: int = CHECKED
    again: int = 4
    accuracy: int = 0
    in_seconds: bool = False
    device: str = "cpu"
    hardware: str | None = None
    process: Process | None = None

    def order(self, artifact: str | Path, model: Model, run: Run) -> Order:
        """A run of a model on an artifact."""
        return Order(artifact=str(artifact), model=model, run=run, device=self.device, hardware=self.hardware)


def in_memory_need(artifact: Path, model: Model, settings: Settings) -> int:
    """Bytes of the largest device when ours trains without a limit; what shares of memory are shares of."""
    with closing(Worker(settings.order(artifact, model, Run(strategy="full")), settings.process)) as found:
        found.ready()
        found.epoch()
        return int(found.do("peak")["need"])


def reference_of(model: Model) -> Run:
    """What losses are checked against: torch_geometric, or ours without any saving where it is not installed."""
    from hongtu.bench.baselines import missing

    known = (form for form in EXACT if missing(form, model.name) is None)
    return next((Run(system=form) for form in known), Run(strategy="none"))


def compare(
    orders: Sequence[Order], settings: Settings, progress: Callable[[str], None] = lambda what: None
) -> list[dict[str, Any]]:
    """One row each, in the same sequence; all are timed in turns, so that a machine that slows down slows all.

    Args:
        progress: called after each step of ``steps``, with what was done.
    """
    with ExitStack() as stack:
        workers = _started(orders, settings, stack, progress)
        for found in workers:
            _train_checked(found, settings)
            progress(f"{found.run.label}: loss checked")
        references = _references(workers, settings)
        agree = [_agrees(found, references[_what(found)]) for found in workers]
        for _ in range(settings.epochs):
            for found, fine in zip(workers, agree, strict=True):
                if fine:
                    found.epochs.append(found.epoch())
                progress(f"{found.run.label}: timed")
        for _ in range(settings.again):
            for found in workers:
                if any(epoch["others"] > BUSY for epoch in found.epochs):
                    _replace_worst(found)
        peaks = [found.do("peak") for found in workers]
    curves = []
    for found in workers:
        wanted = settings.accuracy and found.run.system != "dense"
        curves.append(_curve(found.order, settings) if wanted else [])
        progress(f"{found.run.label}: accuracy")
    return [
        _row(found, references[_what(found)], fine, peak, curve)
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
        "accuracy": f"{settings.accuracy}s" if settings.in_seconds else settings.accuracy,
    }


def steps(runs: Sequence[Run], settings: Settings) -> int:
    """How often ``compare`` calls its ``progress``."""
    return len(runs) * (3 + settings.epochs)


def _started(
    orders: Sequence[Order], settings: Settings, stack: ExitStack, progress: Callable[[str], None]
) -> list[Worker]:
    """A worker for each, which the stack ends; some start at the same time, for that is one core's work."""
    workers: list[Worker] = []
    for first in range(0, len(orders), STARTING):
        started = [Worker(order, settings.process) for order in orders[first : first + STARTING]]
        for found in started:
            stack.callback(found.close)
        for found in started:
            found.ready()
            progress(f"{found.run.label}: ready")
        workers += started
    return workers


def _what(found: Worker) -> tuple[str, Model]:
    """What a worker trains: one loss is right for all that train the same."""
    return found.order.artifact, found.order.model


def _train_checked(found: Worker, settings: Settings) -> None:
    """The worker's first epochs, whose losses it keeps."""
    if found.run.system in SAMPLED:  # its steps are others: the same model, before it has learned
        found.losses = [found.do("loss")["loss"]]
        found.epoch()
    else:
        found.losses = [found.epoch()["loss"] for _ in range(settings.checked)]


def _references(workers: Sequence[Worker], settings: Settings) -> dict[tuple[str, Model], Reference]:
    """By what is trained, the reference and the losses of its first epochs."""
    known: dict[tuple[str, Model], Reference] = {
        _what(found): (found.run.label, found.losses)
        for found in workers
        if found.run == reference_of(found.order.model)
    }
    wanted = dict.fromkeys(_what(found) for found in workers if _what(found) not in known)
    orders = [settings.order(artifact, model, reference_of(model)) for artifact, model in wanted]
    for first in range(0, len(orders), STARTING):  # each may take much memory, so no more at the same time
        with ExitStack() as stack:
            for found in _started(orders[first : first + STARTING], settings, stack, lambda what: None):
                known[_what(found)] = found.run.label, _losses(found, settings.checked)
    return known


def _losses(found: Worker, checked: int) -> list[float | None]:
    """Of a reference that trains for nothing else."""
    if checked == 1 and found.run.system != OURS:
        return [found.do("loss")["loss"]]
    return [found.epoch()["loss"] for _ in range(checked)]


def _agrees(found: Worker, reference: Reference) -> bool:
    """Whether every loss is the reference's; "dense" has none."""
    pairs = zip(found.losses, reference[1], strict=False)
    return found.run.system == "dense" or all(
        own is not None and other is not None and abs(own - other) <= TOLERANCE * max(abs(other), 1e-3)
        for own, other in pairs
    )


def _replace_worst(found: Worker) -> None:
    """Time one more epoch in place of the one that others disturbed most, if that was quieter."""
    worst = max(range(len(found.epochs)), key=lambda k: found.epochs[k]["others"])
    fresh = found.epoch()
    if fresh["others"] < found.epochs[worst]["others"]:
        found.epochs[worst] = fresh


def _curve(order: Order, settings: Settings) -> list[dict[str, Any]]:
    """Seconds trained and scores on the way, about ``SCORED`` of them, of a system that begins again."""
    points: list[dict[str, Any]] = []
    length, trained, epoch, done, scored = settings.accuracy, 0.0, 0, 0.0, 0.0
    with closing(Worker(order, settings.process)) as found:
        found.ready()
        while done < length:
            trained += found.epoch()["seconds"]
            epoch += 1
            done = trained if settings.in_seconds else epoch
            if done >= min(scored + length / SCORED, length):
                scored = done
                points.append({"epoch": epoch, "seconds": trained, **found.do("scores")})
    return points


def _row(
    found: Worker, reference: Reference, fine: bool, peak: dict[str, Any], curve: list[dict[str, Any]]
) -> dict[str, Any]:
    label, losses = reference
    agrees = None if found.run.system == "dense" else fine  # which has no loss
    row = found.run.to_dict() | {"label": found.run.label, "reference": label, "loss_agrees": agrees}
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

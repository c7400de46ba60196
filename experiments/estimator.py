"""Predicted against measured seconds of an epoch, on configurations that the machine's profile has not seen.

    python -m experiments.estimator --work DIR [--hardware FILE | --profile FILE.json] [--out FILE.jsonl]

The profile is measured as `hongtu doctor --measure` does, or read with --hardware; the configurations train in turns,
and the faster half of their epochs counts that nothing else on the machine disturbed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.options import make_parser
from experiments.prepare import generated, prepared
from hongtu.bench.compare import TOLERANCE, Settings, describe, reference_of
from hongtu.bench.profile import measure_cpu
from hongtu.bench.records import BUSY, append, machine
from hongtu.bench.spec import Model, Run
from hongtu.bench.worker import Order, epoch, make_system
from hongtu.hardware import Hardware, load_hardware
from hongtu.plan.cost.seconds import predict_seconds

LIMIT = 0.15
EPOCHS = 6  # of every configuration, in turns
CHECKED = 2  # epochs whose losses are the reference's: the second follows from gradients
# graph, order, partitions, model, hidden, layers, then a strategy with a share of the memory that is needed in memory:
# two of every model, all else drawn at random once (random.Random(10))
HeldOut = tuple[str, str, int, str, int, int, tuple[str, float | None]]
HELD_OUT: tuple[HeldOut, ...] = (
    ("rmat", "input", 1, "gcn", 92, 3, ("full", 0.45)),
    ("citation", "clusters", 2, "gcn", 44, 2, ("paper", None)),
    ("citation", "clusters", 1, "sage", 80, 3, ("full", None)),
    ("rmat", "input", 2, "sage", 80, 2, ("full", None)),
    ("rmat", "clusters", 1, "gin", 36, 2, ("paper", None)),
    ("rmat", "input", 2, "gin", 104, 3, ("full", None)),
    ("rmat", "input", 1, "gat", 88, 2, ("none", None)),
    ("rmat", "input", 1, "gat", 52, 3, ("full", 0.26)),
    ("citation", "input", 1, "ggcn", 92, 2, ("full", None)),
    ("rmat", "clusters", 2, "ggcn", 92, 2, ("paper", None)),
    ("citation", "input", 2, "commnet", 92, 3, ("paper", None)),
    ("citation", "clusters", 2, "commnet", 76, 3, ("paper", None)),
)


def main() -> None:
    parser = make_parser(__doc__, vertices=60_000)
    parser.add_argument("--work", type=Path, required=True, help="keep graphs and artifacts here")
    parser.add_argument("--hardware", help="a profile that was measured before, or its name")
    parser.add_argument("--profile", type=Path, help="write the machine's profile here")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="of every configuration")
    options = parser.parse_args()
    configurations = [prepare(options, held_out) for held_out in HELD_OUT]
    if options.hardware is not None:
        profile = load_hardware(options.hardware)
    else:
        profile = measure_cpu(f"cpu, {len(os.sched_getaffinity(0))} cores", options.work)
    for _ in range(options.epochs):
        for found in configurations:
            found.train()
    if options.profile is not None:
        options.profile.write_text(json.dumps(profile.to_dict(), indent=1) + "\n")
    errors = []
    for found in configurations:
        row = found.row(profile)
        append(options.out, machine("estimator") | row)
        print(
            f"{row['label']}: {row['seconds']:.3f} s, predicted {row['predicted_seconds']:.3f} s: "
            f"{1 + row['error']:.2f} times",
            flush=True,
        )
        errors.append(abs(row["error"]))
    within = sum(error <= LIMIT for error in errors)
    print(f"{within} of {len(errors)} within {LIMIT:.0%}; median {statistics.median(errors):.1%}", end=", ")
    print(f"largest {max(errors):.1%}")


class Epoch(NamedTuple):
    """How many seconds it took, the share of the cores that others had, and the seconds of its passes."""

    seconds: float
    others: float
    passes: dict[str, float]


def settled(epochs: Sequence[Epoch]) -> list[Epoch]:
    """The faster half of those that nothing else on the machine disturbed: models that train in turn take one
    another's places in memory, and in some epochs fresh pages have to be found."""
    quiet = [epoch for epoch in epochs if epoch.others <= BUSY] or list(epochs)
    return sorted(quiet, key=lambda epoch: epoch.seconds)[: (len(quiet) + 1) // 2]


class Configuration:
    """A system whose losses were found to be the reference's, and its timed epochs."""

    def __init__(self, label: str, about: dict[str, Any], order: Order, reference: tuple[str, list[float]]) -> None:
        self.label, self._about, self._order, self._reference = f"{label}: {order.run.label}", about, order, reference
        self._system = make_system(order)
        self._losses = [self._system.step() for _ in range(CHECKED)]
        self._epochs: list[Epoch] = []
        if any(abs(a - b) > TOLERANCE * abs(b) for a, b in zip(self._losses, reference[1], strict=True)):
            raise SystemExit(f"{self.label}: losses {self._losses}, expected {reference[1]}")

    def train(self) -> None:
        """One timed epoch."""
        found = epoch(self._system, "cpu")
        self._epochs.append(Epoch(found["seconds"], found["others"], found["passes"]))
        self._bytes = found["bytes"]

    def row(self, profile: Hardware) -> dict[str, Any]:
        """What was measured, in the median of the settled epochs, beside what a profile predicts."""
        epochs = settled(self._epochs)
        middle, seconds = epochs[len(epochs) // 2], [epoch.seconds for epoch in self._epochs]
        predicted = predict_seconds(self._system.trainer.plan, profile).total
        return (
            self._about
            | self._order.model.to_dict()
            | self._order.run.to_dict()
            | {"reference": self._reference[0], "losses": self._losses, "reference_losses": self._reference[1]}
            | {"loss_agrees": True, **self._system.about(), "passes": middle.passes, "bytes": self._bytes}
            | {"label": self.label, "seconds": middle.seconds, "spread": [min(seconds), max(seconds)]}
            | {"others": max(epoch.others for epoch in epochs), "epochs": len(epochs)}
            | {"predicted_seconds": predicted, "error": predicted / middle.seconds - 1}
        )


def prepare(options: argparse.Namespace, held_out: HeldOut) -> Configuration:
    """One of ``HELD_OUT``, checked."""
    kind, order, partitions, name, hidden, layers, (saving, share) = held_out
    graph = generated(options.work, kind, options.vertices)
    path = options.work / f"{kind}-{options.vertices}-{partitions}-{order}"
    artifact = prepared(graph, path, partitions=partitions, chunks=64, order=order)
    model = Model(name=name, hidden=hidden, layers=layers)
    label = f"{kind} by {order}, {partitions} devices, {name} {layers} x {hidden}"

    def ordered(run: Run) -> Order:
        return Order(artifact=str(path), model=model, run=run)

    right = reference_of(model)
    system = make_system(ordered(right))
    reference = right.label, [system.step() for _ in range(CHECKED)]
    budget = None
    if share is not None:
        whole = make_system(ordered(Run(strategy="full")))
        whole.step()
        budget = int(int(whole.about()["need"]) * share)
    run = Run(strategy=saving, budget=budget, share=share)
    return Configuration(label, describe(artifact, Settings()), ordered(run), reference)


if __name__ == "__main__":
    main()

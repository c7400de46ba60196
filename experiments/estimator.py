"""Predicted against measured seconds of an epoch, on configurations that the machine's profile has not seen.

    python -m experiments.estimator --work DIR [--profile FILE.json] [--out FILE.jsonl]

The profile is measured as `hongtu doctor --measure` does, from models of its own; the configurations are timed in turns
with these, for a machine whose speed changes from minute to minute would be compared with itself at another time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any

from experiments.prepare import generated, prepared
from hongtu.bench.compare import TOLERANCE, Settings, describe, reference_of
from hongtu.bench.records import append, machine
from hongtu.bench.spec import Model, Run
from hongtu.bench.worker import Order, epoch, make_system
from hongtu.measure import Epoch, measure_cpu, settled
from hongtu.plan.cost import predict_seconds
from hongtu.plan.hardware import Hardware

LIMIT = 0.15
CHECKED = 2  # epochs whose losses are the reference's: the second follows from gradients
# graph, partitions, model, hidden, layers, then strategies with shares of the memory that is needed in memory: two of
# every model, all else drawn at random once
HELD_OUT = (
    ("rmat", 1, "gcn", 80, 3, (("none", None),)),
    ("citation", 2, "gcn", 104, 2, (("full", None),)),
    ("citation", 1, "sage", 84, 2, (("full", None),)),
    ("rmat", 1, "sage", 104, 2, (("none", None),)),
    ("citation", 2, "gin", 36, 2, (("full", None),)),
    ("rmat", 2, "gin", 48, 3, (("full", 0.29),)),
    ("citation", 1, "gat", 68, 3, (("full", 0.47),)),
    ("citation", 1, "gat", 68, 2, (("paper", None),)),
    ("rmat", 2, "ggcn", 48, 3, (("full", 0.57),)),
    ("rmat", 1, "ggcn", 68, 2, (("full", None),)),
    ("citation", 2, "commnet", 96, 2, (("paper", None),)),
    ("rmat", 1, "commnet", 44, 3, (("full", 0.4),)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="keep graphs and artifacts here")
    parser.add_argument("--profile", type=Path, help="write the machine's profile here")
    parser.add_argument("--vertices", type=int, default=60_000)
    parser.add_argument("--out", type=Path, help="append JSON lines here")
    options = parser.parse_args()
    configurations = [found for held_out in HELD_OUT for found in prepare(options, *held_out)]
    profile = measure_cpu(
        f"cpu, {len(os.sched_getaffinity(0))} cores", lambda: [found.train() for found in configurations]
    )
    if options.profile is not None:
        options.profile.write_text(json.dumps(profile.to_dict(), indent=1) + "\n")
    errors = []
    for found in configurations:
        row = found.row(profile)
        append(options.out, machine("estimator") | row)
        print(
            f"{row['label']}: {row['seconds']:.3f} s, predicted {row['predicted_seconds']:.3f}: {row['error']:+.1%}",
            flush=True,
        )
        errors.append(abs(row["error"]))
    within = sum(error <= LIMIT for error in errors)
    print(f"{within} of {len(errors)} within {LIMIT:.0%}; median {statistics.median(errors):.1%}", end=", ")
    print(f"largest {max(errors):.1%}")


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


def prepare(
    options: argparse.Namespace, kind: str, partitions: int, name: str, hidden: int, layers: int, strategies: Any
) -> list[Configuration]:
    """All configurations of one model on one graph, checked."""
    graph = generated(options.work, kind, options.vertices)
    path = options.work / f"{kind}-{options.vertices}-{partitions}"
    artifact = prepared(graph, path, partitions=partitions, chunks=64, order="input")
    model = Model(name=name, hidden=hidden, layers=layers)
    label, about = f"{kind}, {partitions} devices, {name} {layers} x {hidden}", describe(artifact, Settings())

    def order(run: Run) -> Order:
        return Order(artifact=str(path), model=model, run=run)

    right = reference_of(model)
    system = make_system(order(right))
    reference = right.label, [system.step() for _ in range(CHECKED)]
    need = 0
    if any(share for _, share in strategies):
        whole = make_system(order(Run(strategy="full")))
        whole.step()
        need = int(whole.about()["need"])
    runs = [Run(strategy=name, budget=int(need * share) if share else None, share=share) for name, share in strategies]
    return [Configuration(label, about, order(run), reference) for run in runs]


if __name__ == "__main__":
    main()

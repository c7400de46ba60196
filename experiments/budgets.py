"""Epoch time in ever smaller device memory, as shares of what hongtu needs when nothing limits it.

python -m experiments.budgets ARTIFACT [--models gcn sage] [--shares 1 0.5 0.25 0.1 0.05] [--out FILE.jsonl]
"""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path

import hongtu
from experiments.page import largest_step
from hongtu.bench.compare import Settings, compare, describe, in_memory_need
from hongtu.bench.process import Process
from hongtu.bench.records import append, machine
from hongtu.bench.spec import Model, Run
from hongtu.errors import BudgetError
from hongtu.model.named import build_layers
from hongtu.train.planning import plan_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--models", nargs="+", default=["gcn"])
    parser.add_argument("--shares", type=float, nargs="+", default=[1, 0.5, 0.25, 0.1, 0.05])
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--hardware", help="profile by which is planned")
    parser.add_argument("--out", type=Path, help="append JSON lines here")
    options = parser.parse_args()
    with closing(Process()) as process:
        measure(options, Settings(epochs=options.epochs, hardware=options.hardware, process=process))


def measure(options: argparse.Namespace, settings: Settings) -> None:
    """Time every model in every share of memory."""
    artifact = hongtu.open_artifact(options.artifact)
    for name in options.models:
        model = Model(name=name, hidden=options.hidden, layers=options.layers)
        need = in_memory_need(artifact.path, model, settings)
        runs = [Run(strategy="full", budget=int(need * share), share=share) for share in options.shares]
        runs = [run for run in runs if fits(artifact, model, run)]
        rows = compare(artifact.path, model, runs, settings)
        for row in rows:
            append(options.out, machine("budgets") | describe(artifact, settings) | model.to_dict() | row)
            print(f"{name}, {row['label']}: {row['seconds']:.3f} s", flush=True)
        print(f"{name}: largest step {largest_step([row['seconds'] for row in rows]):.2f}x")


def fits(artifact: hongtu.Artifact, model: Model, run: Run) -> bool:
    """Whether a budget works; where one vertex needs more, none does."""
    layers = build_layers(model.name, artifact.feature_width, model.hidden, artifact.num_classes, model.layers)
    try:
        plan_model(artifact, layers, device_memory=run.budget)
    except BudgetError as refused:
        print(f"{model.name}, {run.label}: left out: {refused}")
        return False
    return True


if __name__ == "__main__":
    main()

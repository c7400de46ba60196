"""Predicted against measured seconds of an epoch, on configurations that the machine's profile has not seen.

    python -m experiments.estimator --work DIR --hardware PROFILE.json [--out FILE.jsonl]

The profile is what `hongtu doctor --measure PROFILE.json` wrote on this machine; nothing is fitted here. All are timed
in turns.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from experiments.prepare import generated, prepared
from hongtu.bench.compare import Case, Settings, compare_cases, describe, in_memory_need
from hongtu.bench.process import shared_process
from hongtu.bench.records import append, machine
from hongtu.bench.spec import Model, Run
from hongtu.plan.hardware import load_hardware

LIMIT = 0.15
# graph, partitions, model, hidden, layers, then strategies with shares of the memory that is needed in memory
HELD_OUT = (
    ("citation", 1, "gcn", 96, 2, (("full", None), ("full", 0.2))),
    ("citation", 1, "sage", 56, 3, (("full", None),)),
    ("citation", 1, "gin", 104, 2, (("full", None),)),
    ("citation", 1, "gat", 80, 2, (("full", None), ("full", 0.5))),
    ("citation", 1, "commnet", 44, 3, (("full", 0.3),)),
    ("rmat", 2, "commnet", 64, 2, (("full", None),)),
    ("rmat", 2, "gcn", 112, 3, (("full", 0.35),)),
    ("rmat", 2, "sage", 88, 2, (("paper", None),)),
    ("rmat", 2, "gin", 44, 2, (("none", None),)),
    ("rmat", 1, "ggcn", 36, 2, (("full", None),)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="keep graphs and artifacts here")
    parser.add_argument("--hardware", required=True, help="the profile of this machine")
    parser.add_argument("--vertices", type=int, default=200_000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--out", type=Path, help="append JSON lines here")
    options = parser.parse_args()
    load_hardware(options.hardware)
    with shared_process() as process:
        measure(options, Settings(epochs=options.epochs, hardware=options.hardware, process=process))


def measure(options: argparse.Namespace, settings: Settings) -> None:
    """Time all configurations, and print how far off each prediction is."""
    cases, about = [], []
    for kind, partitions, name, hidden, layers, strategies in HELD_OUT:
        graph = generated(options.work, kind, options.vertices)
        path = options.work / f"{kind}-{options.vertices}-{partitions}"
        artifact = prepared(graph, path, partitions=partitions, chunks=128, order="input")
        model = Model(name=name, hidden=hidden, layers=layers)
        need = in_memory_need(path, model, settings) if any(share for _, share in strategies) else 0
        for strategy, share in strategies:
            run = Run(strategy=strategy, budget=int(need * share) if share else None, share=share)
            cases.append(Case(artifact=path, model=model, run=run))
            about.append((f"{kind}, {partitions} devices, {name} {layers} x {hidden}", describe(artifact, settings)))
    errors = []
    for (label, graph_row), case, row in zip(about, cases, compare_cases(cases, settings), strict=True):
        if not row["loss_agrees"]:
            raise SystemExit(f"{label}: {row['label']}: losses {row['losses']}, expected {row['reference_losses']}")
        error = row["predicted_seconds"] / row["seconds"] - 1
        row |= {"label": f"{label}: {row['label']}", "error": error}
        append(options.out, machine("estimator") | graph_row | case.model.to_dict() | row)
        print(
            f"{row['label']}: {row['seconds']:.3f} s, predicted {row['predicted_seconds']:.3f}: {error:+.1%}",
            flush=True,
        )
        errors.append(abs(error))
    within = sum(error <= LIMIT for error in errors)
    print(f"{within} of {len(errors)} within {LIMIT:.0%}; median {statistics.median(errors):.1%}", end=", ")
    print(f"largest {max(errors):.1%}")


if __name__ == "__main__":
    main()

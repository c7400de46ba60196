"""Predicted against measured seconds of an epoch, on configurations that the machine's profile has not seen.

    python -m experiments.estimator --work DIR --hardware PROFILE.json [--out FILE.jsonl]

The profile is what `hongtu doctor --measure PROFILE.json` wrote on this machine; nothing is fitted here.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.prepare import generated, prepared
from hongtu.bench.compare import Settings, compare, describe, in_memory_need
from hongtu.bench.records import append, machine
from hongtu.bench.spec import Model, Run
from hongtu.plan.hardware import load_hardware

LIMIT = 0.15
# graph, partitions, model, hidden, layers, strategy, share of the memory that is needed in memory
HELD_OUT = (
    ("citation", 1, "gcn", 64, 2, "full", None),
    ("citation", 1, "gcn", 64, 2, "full", 0.25),
    ("citation", 1, "gcn", 64, 2, "none", None),
    ("citation", 1, "sage", 96, 3, "full", None),
    ("citation", 1, "sage", 96, 3, "full", 0.3),
    ("citation", 1, "gat", 64, 2, "full", None),
    ("rmat", 2, "gcn", 128, 2, "full", None),
    ("rmat", 2, "gcn", 128, 2, "full", 0.5),
    ("rmat", 2, "gcn", 128, 2, "paper", None),
    ("rmat", 2, "gin", 64, 2, "full", None),
    ("rmat", 2, "gat", 64, 2, "full", 0.4),
    ("rmat", 2, "commnet", 64, 2, "full", 0.3),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="keep graphs and artifacts here")
    parser.add_argument("--hardware", required=True, help="the profile of this machine")
    parser.add_argument("--vertices", type=int, default=200_000)
    parser.add_argument("--only", type=int, nargs="+", help="numbers of configurations, from 0")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", type=Path, help="append JSON lines here")
    options = parser.parse_args()
    load_hardware(options.hardware)
    settings = Settings(epochs=options.epochs, hardware=options.hardware)
    worst = 0.0
    for number, (kind, partitions, name, hidden, layers, strategy, share) in enumerate(HELD_OUT):
        if options.only is not None and number not in options.only:
            continue
        graph = generated(options.work, kind, options.vertices)
        artifact = prepared(
            graph, options.work / f"{kind}-{partitions}", partitions=partitions, chunks=128, order="input"
        )  # fmt: skip
        model = Model(name=name, hidden=hidden, layers=layers)
        need = in_memory_need(artifact.path, model, settings) if share else 0
        run = Run(strategy=strategy, budget=int(need * share) if share else None, share=share)
        (row,) = compare(artifact.path, model, [run], settings)
        error = row["predicted_seconds"] / row["seconds"] - 1
        about = f"{kind}, {partitions} devices, {name} {layers} x {hidden}"
        row |= {"label": f"{about}: {row['label']}", "error": error}
        append(options.out, machine("estimator") | describe(artifact, settings) | model.to_dict() | row)
        print(f"{row['label']}: {row['seconds']:.3f} s, predicted {row['predicted_seconds']:.3f}: {error:+.1%}",
              flush=True)  # fmt: skip
        worst = max(worst, abs(error))
    print(f"largest error {worst:.1%} (at most {LIMIT:.0%} is wanted)")


if __name__ == "__main__":
    main()

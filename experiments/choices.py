"""What the planner chooses for a grid of models, widths, budgets and partitions, beside what another version chose.

    python -m experiments.choices --work DIR --out new.jsonl [--against old.jsonl] [--hardware cpu h200]

Planning needs no quiet machine. A row names its configuration, what was chosen and the predicted seconds.
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path
from typing import Any

from experiments.prepare import generated, prepared
from hongtu.errors import BudgetError
from hongtu.hardware import load_hardware
from hongtu.model.named import build_layers
from hongtu.plan.cost.seconds import predict_seconds
from hongtu.plan.execution import ExecutionPlan
from hongtu.train.planning import plan_model

MODELS = ("gcn", "sage", "gin", "gat")
WIDTHS = (16, 64, 256)
BUDGETS = (None, "60%", "25%")  # of what a run without one takes
GRAPHS = (("citation", "clusters"), ("rmat", "input"))
VERTICES, CHUNKS, CLASSES = 40_000, 32, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="keep graphs and artifacts here")
    parser.add_argument("--out", type=Path, required=True, help="write JSON lines here")
    parser.add_argument("--against", type=Path, help="what another version wrote")
    parser.add_argument("--hardware", nargs="+", default=["cpu"], help="profiles to plan for")
    parser.add_argument("--vertices", type=int, default=VERTICES)
    options = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    for hardware in options.hardware:
        for number, (partitions, model, width, budget) in enumerate(grid()):
            kind, order = GRAPHS[number % len(GRAPHS)]
            graph = generated(options.work, kind, options.vertices, classes=CLASSES)
            path = options.work / f"{graph.name}-{partitions}-{order}-{CHUNKS}"
            artifact = prepared(
                graph, path, partitions=partitions, chunks=CHUNKS, partitioner="range", order=order
            )  # fmt: skip
            layers = build_layers(model, artifact.feature_width, width, artifact.num_classes, 2)
            label = f"{hardware}: {kind}, m {partitions}, {model} {width}, {budget or 'no limit'}"
            try:
                plan = plan_model(artifact, layers, device_memory=budget, hardware=hardware)
            except BudgetError:
                rows[label] = {"choice": "refused"}
                continue
            sides = [bool(getattr(layer, "transform_first", False)) for layer in layers]
            seconds = predict_seconds(plan, load_hardware(hardware)).total
            rows[label] = {"choice": chosen(plan) | {"transform_first": sides}, "seconds": seconds}
    options.out.write_text("".join(json.dumps({"label": label} | row) + "\n" for label, row in rows.items()))
    if options.against is not None:
        print("\n".join(compare(rows, options.against)))


def grid() -> list[tuple[int, str, int, str | None]]:
    """Partitions, model, width and budget of every configuration; every pair of graph and another appears."""
    return [(m, model, width, budget) for m, width, model, budget in product((1, 4), WIDTHS, MODELS, BUDGETS)]


def chosen(plan: ExecutionPlan) -> dict[str, Any]:
    """What was decided, as numbers and names."""
    choice = plan.choice
    return {
        **{name: getattr(choice, name) for name in ("fuse", "save", "structure", "ordered", "staging", "slab")},
        "chunks": plan.topology.chunks,
        "resident": sorted(choice.resident),
        "prunes": bool(choice.fields),
        "setup": [p.name for p in plan.passes.setup],
        "passes": [p.name for p in plan.passes.train],
        "rows": plan.rows,
    }


def compare(rows: dict[str, dict[str, Any]], path: Path) -> list[str]:
    """A line for every configuration whose choice differs, then how many are the same."""
    lines, same = [], 0
    others = {row["label"]: row for row in map(json.loads, path.read_text().splitlines())}
    for label, row in rows.items():
        mine, other = (json.loads(json.dumps(each["choice"])) for each in (row, others[label]))
        if mine == other:
            same += 1
        elif isinstance(mine, str) or isinstance(other, str):
            lines.append(f"{label}: {other} -> {mine}")
        else:
            differ = ", ".join(f"{k} {other[k]} -> {mine[k]}" for k in mine if mine[k] != other[k])
            lines.append(f"{label}: {differ}; predicted {others[label]['seconds']:.3g} s -> {row['seconds']:.3g} s")
    return [*lines, f"{same} of {len(rows)} choose the same"]


if __name__ == "__main__":
    main()

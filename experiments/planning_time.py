"""How long planning takes, beside preprocessing: the whole planner, from artifact and layers to a plan that runs.

    python -m experiments.planning_time GRAPH [--partitions 4] [--chunks 512] [--out FILE.jsonl]

Per budget: seconds in all, per 10M rows that the plan's passes request, and as a share of preprocessing. The planner
runs on one thread.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import hongtu
from hongtu.bench.records import append, machine
from hongtu.config import PreprocessConfig
from hongtu.errors import BudgetError
from hongtu.model.named import build_layers
from hongtu.preprocess.entry import preprocess_directory
from hongtu.train.planning import plan_model

TIMES_SMALLEST = (1.5, 3, 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=Path, help="neutral input directory")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--chunks", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--out", type=Path, help="append JSON lines here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        config = PreprocessConfig(partitions=options.partitions, chunks=options.chunks)
        artifact = preprocess_directory(options.graph, Path(folder) / "artifact", config)
        preprocess = time.perf_counter() - start
        least = smallest(artifact, options.hidden)
        for times in TIMES_SMALLEST:
            row = machine("planning_time") | {
                "graph": options.graph.name,
                "preprocess_seconds": preprocess,
            }
            row |= measure(artifact, options.hidden, int(least * times), preprocess)
            print(
                f"{options.graph.name}, m = {options.partitions}, {row['budget'] / 2**20:.1f} MiB: "
                f"{row['seconds']:.2f} s, "
                f"{row['seconds_per_10M_requests']:.2f} s per 10M requests, {row['share']:.1%} of preprocessing",
                flush=True,
            )
            append(options.out, row)


def smallest(artifact: hongtu.Artifact, hidden: int) -> int:
    """The smallest budget that works; asking for it also compiles everything."""
    try:
        plan(artifact, hidden, 1)
    except BudgetError as refused:
        plan(artifact, hidden, refused.smallest)
        return refused.smallest
    raise AssertionError("one byte is enough")


def plan(artifact: hongtu.Artifact, hidden: int, budget: int) -> hongtu.plan.execution.ExecutionPlan:
    layers = build_layers("gcn", artifact.feature_width, hidden, artifact.num_classes, 2)
    return plan_model(artifact, layers, device_memory=budget)


def measure(artifact: hongtu.Artifact, hidden: int, budget: int, preprocess: float) -> dict:
    start = time.perf_counter()
    found = plan(artifact, hidden, budget)
    seconds = time.perf_counter() - start
    requests = sum(len(found.view(p).sources) for p in found.passes.every if p.exchange or p.flush)
    return {
        "budget": budget,
        "seconds": seconds,
        "requests": requests,
        "seconds_per_10M_requests": seconds / max(requests, 1) * 1e7,
        "requests_at_the_finest_grain": len(artifact.topology.sources),
        "share": seconds / preprocess,
    }


if __name__ == "__main__":
    main()

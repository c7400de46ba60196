"""Epoch time with few labelled vertices, with and without ``prune``.

    python -m experiments.prune GRAPH [--share 0.01] [--features random:128] [--out FILE.jsonl]

The labelled vertices are one of ``1 / share`` parts of a partition, so that their receptive fields overlap. Both runs
are otherwise the same, without a memory limit, and their losses must agree.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import hongtu
from experiments.options import make_parser
from experiments.rows_loaded import partitioned, read
from hongtu.bench.records import append, machine
from hongtu.model.named import build_layers
from hongtu.plan.passes.strategy import STRATEGIES


def main() -> None:
    parser = make_parser(__doc__, features="random:128", hidden=256, layers=2, epochs=5)
    parser.add_argument("graph", type=Path, help="neutral input directory")
    parser.add_argument("--share", type=float, default=0.01, help="of the vertices that carry a label")
    parser.add_argument("--undirected", action="store_true")
    options = parser.parse_args()
    row = machine("prune") | compare(options)
    print(
        f"{options.graph.name}, {options.share:.1%} labelled: {row['pruned']:.3f} s pruned, {row['whole']:.3f} s not: "
        f"{row['pruned'] / row['whole']:.2f}x; vertices by layer {row['vertices']}"
    )
    append(options.out, row)


def compare(options: argparse.Namespace) -> dict:
    edges = np.load(options.graph / "edges.npy")
    labels = np.load(options.graph / "labels.npy")
    part = partitioned(read(options.graph, options.undirected), max(2, round(1 / options.share)), seed=0)
    train = np.isin(np.arange(len(labels)), np.flatnonzero(part == 0))
    with tempfile.TemporaryDirectory() as folder:
        artifact = hongtu.preprocess_graph(
            edges, len(labels), Path(folder) / "artifact", features=options.features, labels=labels,
            masks={"train": train}, partitions=1, chunks=64, undirected=options.undirected, order="input",
        )  # fmt: skip
        runs = {}
        for name, prune in (("pruned", True), ("whole", False)):
            torch.manual_seed(0)
            widths = artifact.feature_width, options.hidden, artifact.num_classes, options.layers
            strategy = replace(STRATEGIES["full"], prune=prune)
            runs[name] = hongtu.Trainer(artifact, build_layers("gcn", *widths), strategy=strategy)
        records: dict[str, list] = {name: [] for name in runs}
        for _ in range(options.epochs):
            for name, trainer in runs.items():  # taking turns
                records[name].append(trainer.train_epoch())
    for one, other in zip(*records.values(), strict=True):
        assert abs(one.loss - other.loss) < 1e-4 * abs(other.loss), (one.loss, other.loss)
    plan = runs["pruned"].plan
    return {
        "graph": options.graph.name,
        "share": options.share,
        "vertices": [int(plan.view(p).num_dst.sum()) for p in plan.passes.train],
        **{name: statistics.median(record.seconds for record in found[1:]) for name, found in records.items()},
    }


if __name__ == "__main__":
    main()

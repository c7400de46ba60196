"""Test accuracy where rows lie on the host in bfloat16, beside the same runs in float32.

    python -m experiments.narrow_rows [--data FOLDER] [--graphs cora citeseer physics arxiv] [--seeds 10] [--out FILE]

FOLDER (default: HONGTU_DATA) holds the graphs in the neutral input format. A GCN trains within so small a share of the
device memory that it takes without a limit that features and activations lie on the host: a row that is not there is
not rounded, and a run in memory would show nothing. Features are dense, and random where a graph comes without;
vertices without a split get one at random. What is in FILE already is not trained again.
"""

from __future__ import annotations

import os
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import numpy as np
import torch

import hongtu
from experiments.options import make_parser
from hongtu.bench.records import append, machine, read
from hongtu.errors import BudgetError
from hongtu.nn import GCNConv

SHARE = "25%"  # of the device memory without a limit
COLUMNS, CHUNKS, SPLIT = 128, 8, (0.6, 0.2, 0.2)
BF16 = "bfloat16"
FORMS: dict[str, dict[str, Any]] = {
    "float32": {},
    "values": {"host_dtype": BF16},
    "values and gradients": {"host_dtype": BF16, "gradient_dtype": BF16},
}


class Graph(NamedTuple):
    """Where it is, and its recipe; hidden columns and epochs."""

    folder: str
    hidden: int
    epochs: int
    dropout: float
    undirected: bool = False


GRAPHS = {
    "cora": Graph("planetoid-cora", 16, 200, 0.5),
    "citeseer": Graph("planetoid-citeseer", 16, 200, 0.5),
    "physics": Graph("coauthor-physics", 16, 50, 0.5),
    "arxiv": Graph("ogbn-arxiv", 64, 50, 0.2, undirected=True),
}


def prepare(folder: Path, into: Path, undirected: bool) -> hongtu.Artifact:
    """Dense features, and a split where there is none."""
    labels, beside = np.load(folder / "labels.npy"), {}
    rows: Any = f"random:{COLUMNS}"
    if (sparse := folder / "features.npz").exists():
        from scipy.sparse import load_npz

        rows = np.asarray(load_npz(sparse).todense(), dtype=np.float32)
        rows /= np.maximum(rows.sum(1, keepdims=True), 1)
    masks = {split: folder / f"{split}_mask.npy" for split in ("train", "val", "test")}
    if all(file.exists() for file in masks.values()):
        beside["masks"] = {split: np.load(file) for split, file in masks.items()}
    else:
        beside["random_split"] = SPLIT
    edges = np.load(folder / "edges.npy")
    return hongtu.preprocess_graph(
        edges, len(labels), into, features=rows, labels=labels, undirected=undirected, partitions=1, chunks=CHUNKS,
        order="input", **beside,
    )  # fmt: skip


def trained(artifact: hongtu.Artifact, graph: Graph, epochs: int, seed: int, options: dict[str, Any]) -> dict[str, Any]:
    """What one seed gives."""

    def trainer(device_memory: int | str) -> hongtu.Trainer:
        torch.manual_seed(seed)
        layers = [
            GCNConv(artifact.feature_width, graph.hidden, activation="relu", input_dropout=graph.dropout),
            GCNConv(graph.hidden, artifact.num_classes, input_dropout=graph.dropout),
        ]
        adam = partial(torch.optim.Adam, lr=0.01, weight_decay=5e-4)
        return hongtu.Trainer(artifact, layers, optimizer=adam, seed=seed, device_memory=device_memory, **options)

    try:
        made = trainer(SHARE)
    except BudgetError as refused:
        made = trainer(refused.smallest)
    start = time.perf_counter()
    record = made.fit(epochs)[-1]
    assert record.bytes == made.plan.bytes, "counted is predicted"
    on_host = {name: made.plan.host_dtype(name) for p in made.plan.passes.train for name in (*p.inputs, *p.creates)}
    return {
        "accuracy": made.evaluate()["test"], "seconds": (time.perf_counter() - start) / epochs,
        "bytes": {link: count for link, count in record.bytes.items() if count},
        "host_bytes": made.plan.host_bytes["pinned host"], "device_memory": made.plan.peak_bytes["device 0"],
        "rows": {name: dtype for name, dtype in on_host.items() if name not in made.plan.resident},
    }  # fmt: skip


def main() -> None:
    parser = make_parser(__doc__, seeds=10)
    parser.add_argument("--data", type=Path, default=os.environ.get("HONGTU_DATA"))
    parser.add_argument("--graphs", nargs="+", choices=GRAPHS, default=list(GRAPHS))
    parser.add_argument("--epochs", type=int, help="instead of each graph's")
    options = parser.parse_args()
    rows = read(options.out) if options.out is not None and options.out.exists() else []
    about = machine("narrow_rows")
    for name in options.graphs:
        graph, epochs = GRAPHS[name], options.epochs or GRAPHS[name].epochs
        with tempfile.TemporaryDirectory() as folder:
            artifact = prepare(Path(options.data) / graph.folder, Path(folder) / "artifact", graph.undirected)
            for seed in range(options.seeds):
                for form, dtypes in FORMS.items():
                    case = {"graph": name, "form": form, "seed": seed, "epochs": epochs}
                    if any(case.items() <= row.items() for row in rows):
                        continue
                    row = about | case | trained(artifact, graph, epochs, seed, dtypes)
                    append(options.out, row)
                    rows.append(row)
        print(table(name, [row for row in rows if (row["graph"], row["epochs"]) == (name, epochs)]), flush=True)


def table(name: str, rows: list[dict[str, Any]]) -> str:
    """Of one graph: mean and deviation of the seeds, bytes on host links against float32's."""
    lines, whole = [], 0
    for form in FORMS:
        own = [row for row in rows if row["form"] == form]
        accuracy = [row["accuracy"] for row in own]
        links = sum(own[0]["bytes"].get(link, 0) for link in ("read", "load", "write", "flush"))
        whole = whole or links
        spread = stdev(accuracy) if len(accuracy) > 1 else 0.0
        lines.append(f"{name:10}{form:22}{mean(accuracy):.4f} +- {spread:.4f}  host links {links / whole:.2f}x")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

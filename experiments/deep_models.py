"""GCNII with many layers, and GraphSAGE with BatchNorm and jumping knowledge, in a share of their in-memory need.

    python -m experiments.deep_models GRAPH [--share 0.1] [--hidden 64] [--epochs 3] [--out FILE.jsonl]

The need is the highest number of bytes that a run without a limit has on its one device. Every epoch's counters must be
the plan's, the losses those of the run without a limit, and the peak within the budget.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import hongtu
from hongtu.bench.records import append, machine
from hongtu.config import PreprocessConfig
from hongtu.model.wiring import Entry
from hongtu.nn import BatchNorm, GCN2Conv, JumpingKnowledge, SAGEConv
from hongtu.preprocess.entry import preprocess_directory


def gcnii(features: int, hidden: int, classes: int, layers: int = 16) -> list[Entry]:
    """As in torch_geometric's examples: alpha 0.1, theta 0.5."""
    entries: list[Entry] = [(nn.Linear(features, hidden), "x -> x0"), nn.ReLU(), (nn.Identity(), "x0 -> x")]
    for layer in range(1, layers + 1):
        entries += [(GCN2Conv(hidden, 0.1, 0.5, layer), "x, x0 -> x"), nn.ReLU()]
    return [*entries, nn.Linear(hidden, classes)]


def jumping_sage(features: int, hidden: int, classes: int) -> list[Entry]:
    """Three layers, each with BatchNorm, joined by concatenation."""
    entries: list[Entry] = []
    for layer, columns in enumerate((features, hidden, hidden), start=1):
        takes = f"x{layer - 1}" if layer > 1 else "x"
        entries += [(SAGEConv(columns, hidden), f"{takes} -> x{layer}"), BatchNorm(hidden), nn.ReLU()]
    return [*entries, (JumpingKnowledge("cat"), "x1, x2, x3 -> x"), nn.Linear(3 * hidden, classes)]


MODELS: dict[str, Callable[[int, int, int], list[Entry]]] = {"gcnii-16": gcnii, "sage-bn-jk": jumping_sage}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=Path, help="neutral input directory")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--share", type=float, default=0.1, help="of the in-memory need")
    parser.add_argument("--features", default="random:128")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--chunks", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", type=Path, help="append JSON lines here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = PreprocessConfig(
            partitions=1, chunks=options.chunks, features=options.features, undirected=True, order="input"
        )
        artifact = preprocess_directory(options.graph, Path(folder) / "artifact", config)
        for model in options.models:
            row = machine("deep_models") | compare(artifact, model, options)
            print(
                f"{model}: {row['budget'] / 2**20:.0f} of {row['need'] / 2**20:.0f} MiB, {row['seconds']:.2f} s an "
                f"epoch, {row['seconds_without_limit']:.2f} s without a limit; losses {row['losses']}"
            )
            append(options.out, row)


def compare(artifact: hongtu.Artifact, model: str, options: argparse.Namespace) -> dict:
    """Train without a limit and in the budget, and check what the docstring says."""

    def train(budget: int | None) -> tuple[hongtu.Trainer, list[hongtu.EpochRecord]]:
        torch.manual_seed(0)
        layers = MODELS[model](artifact.feature_width, options.hidden, artifact.num_classes)
        trainer = hongtu.Trainer(artifact, layers, device_memory=budget)
        return trainer, [trainer.train_epoch() for _ in range(options.epochs)]

    def middle(records: list[hongtu.EpochRecord]) -> float:
        return statistics.median(record.seconds for record in records[1:] or records)

    trainer, whole = train(None)
    need = trainer.peak_bytes["device 0"]
    del trainer
    budget = int(options.share * need)
    trainer, records = train(budget)
    for record, expected in zip(records, whole, strict=True):
        assert (record.rows, record.bytes) == (trainer.plan.rows, trainer.plan.bytes)
        assert record.arena_bytes == trainer.plan.arena_bytes
        assert abs(record.loss - expected.loss) < 1e-3 * abs(expected.loss), (record.loss, expected.loss)
    assert trainer.peak_bytes["device 0"] <= trainer.plan.peak_bytes["device 0"] <= budget
    return {
        "graph": str(options.graph.name),
        "model": model,
        "hidden": options.hidden,
        "need": need,
        "budget": budget,
        "peak": trainer.peak_bytes["device 0"],
        "bytes": records[-1].bytes,
        "groups": trainer.plan.topology.chunks,
        "losses": [record.loss for record in records],
        "seconds": middle(records),
        "seconds_without_limit": middle(whole),
    }


if __name__ == "__main__":
    main()

"""``make demo``: train a whole graph inside a device budget far below what in-memory training needs.

Generates a citation-like graph (or takes yours), preprocesses it, measures what in-memory training needs, trains in a
quarter of that (all devices together), and shows that the losses are the same.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

import torch

import hongtu
from hongtu.artifact import Artifact
from hongtu.cli.main import main as command
from hongtu.errors import InputError
from hongtu.metrics import EpochRecord
from hongtu.models import build_layers

DEVICES = 2
HIDDEN = 128
FOLDER = Path(".demo")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", type=Path, help="directory in the neutral format (default: a generated graph)")
    parser.add_argument("--vertices", type=int, default=200_000)
    parser.add_argument("--edges", type=int, default=3_000_000)
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()
    artifact = prepare(options)
    whole = train(artifact, None, epochs=2, title="in memory, no limit, for comparison")
    needed = sum(size for name, size in whole[0].peak_bytes.items() if name != "host")
    budget = needed // 4 // DEVICES
    try:
        records = train(artifact, budget, options.epochs, f"{DEVICES} devices with {mib(budget)} each")
    except InputError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    return report(needed, budget, whole, records)


def prepare(options: argparse.Namespace) -> Artifact:
    """The artifact of the user's graph or of a generated one."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    graph = options.graph
    if graph is None:
        graph = FOLDER / "graph"
        size = ["--vertices", str(options.vertices), "--edges", str(options.edges)]
        run("generate", "citation", str(graph), *size, "--features", "64", "--classes", "16")
    run("preprocess", str(graph), str(FOLDER / "artifact"), "--partitions", str(DEVICES), "--chunks", "64")
    return hongtu.open_artifact(FOLDER / "artifact")


def run(*arguments: str) -> None:
    print(f"\n$ hongtu {' '.join(arguments)}", flush=True)
    start = time.perf_counter()
    if code := command(list(arguments)):
        sys.exit(code)
    print(f"  ({time.perf_counter() - start:.1f} s)")


def train(artifact: Artifact, budget: int | None, epochs: int, title: str) -> list[EpochRecord]:
    """Train a 2-layer GCN from the same start, printing loss and accuracy as they come."""
    print(f"\n2-layer GCN, {HIDDEN} hidden: {title}", flush=True)
    torch.manual_seed(0)
    trainer = hongtu.Trainer(
        artifact,
        build_layers("gcn", artifact.feature_width, HIDDEN, artifact.num_classes, 2, dropout=0.2),
        loss="bce_with_logits" if artifact.multi_label else "cross_entropy",
        device_memory=budget,
    )

    def show(record: EpochRecord) -> None:
        scores = "".join(f"  {split} {score:.4f}" for split, score in record.metrics.items())
        print(f"  epoch {record.epoch + 1:3d}  loss {record.loss:.6f}{scores}  {record.seconds:.2f} s", flush=True)

    return trainer.fit(epochs, eval_every=max(epochs // 2, 1), progress=False, on_epoch=show)


def report(needed: int, budget: int, whole: list[EpochRecord], records: list[EpochRecord]) -> int:
    """Peak bytes against the budget, and losses against those of the unlimited run."""
    peaks = {name: max(r.peak_bytes[name] for r in records) for name in records[0].peak_bytes}
    print(f"\nin-memory training needs {mib(needed)}; the budget was {mib(budget)} per device")
    for name, peak in peaks.items():
        share = "" if name == "host" else f"  ({peak / budget:.0%} of the budget)"
        print(f"  peak {name:9s} {mib(peak)}{share}")
    difference = max(abs(a.loss - b.loss) / abs(b.loss) for a, b in zip(records, whole, strict=False))
    print(f"losses differ from the unlimited run's by at most {difference:.1e} (relative, float32)")
    within = all(peak <= budget for name, peak in peaks.items() if name != "host")
    if not within or difference > 1e-4:
        print("demo: the run broke its budget or its losses differ; please report this", file=sys.stderr)
        return 1
    return 0


def mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


if __name__ == "__main__":
    sys.exit(main())

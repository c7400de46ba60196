"""``make demo``: train a whole graph inside a device budget far below what in-memory training needs.

Generates a citation-like graph (or takes yours), preprocesses it, measures what in-memory training needs, trains in a
quarter of that (all devices together), and shows that the losses are the same. ``make demo RANKS=K``: in K processes
that torchrun starts here, beside one.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch

import hongtu
from experiments.options import make_parser
from hongtu.cli.main import main as command
from hongtu.errors import BudgetError, InputError
from hongtu.graph.artifact import Artifact
from hongtu.metrics import EpochRecord
from hongtu.model.loss_terms import DEFAULT
from hongtu.model.named import build_layers

DEVICES = 2
HIDDEN = 128
TOLERANCE = 1e-4  # relative, between losses in float32
FOLDER = Path(".demo")  # holds the generated graph and the artifact; nothing else in it is touched

# what a graph may lack: its files, any of which is enough to let `preprocess` judge, and the option that stands in
STAND_INS = {
    "features": (("features.npy", "features.npz"), ("--features", "random:64")),
    "labels": (("labels.npy",), ("--labels", "random:8")),
    "masks": (("train_mask.npy", "val_mask.npy", "test_mask.npy"), ("--random-split", "0.6,0.2,0.2")),
}


def main() -> int:
    parser = make_parser(__doc__, out=False, vertices=200_000, edges=3_000_000, epochs=6)
    parser.add_argument("--graph", type=Path, help="directory in the neutral format (default: a generated graph)")
    parser.add_argument("--ranks", type=int, default=1, metavar="K", help="train in K processes, beside one")
    options = parser.parse_args()
    if options.ranks < 1:
        parser.error(f"--ranks {options.ranks}: expected at least 1")
    if options.epochs < 1:
        parser.error(f"--epochs {options.epochs}: expected at least 1")
    try:
        artifact = prepare(options)
        if options.ranks > 1:
            return compare_ranks(artifact, options.ranks, options.epochs)
        return compare(artifact, options.epochs)
    except InputError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2


def prepare(options: argparse.Namespace) -> Artifact:
    """The artifact of the user's graph or of a generated one; ``--force`` replaces only what an earlier demo made."""
    if options.graph is None:
        graph, chunks = FOLDER / "graph", "64"
        size = ["--vertices", str(options.vertices), "--edges", str(options.edges)]
        run("generate", "citation", str(graph), *size, "--features", "64", "--classes", "16", "--force")
    else:
        graph, chunks = options.graph.expanduser(), "auto"
    grain = ["--partitions", str(max(DEVICES, options.ranks)), "--chunks", chunks]
    run("preprocess", str(graph), str(FOLDER / "artifact"), *grain, *stand_ins(graph), "--force")
    return hongtu.open_artifact(FOLDER / "artifact")


def stand_ins(graph: Path) -> list[str]:
    """Options of ``hongtu preprocess`` for the pieces that a graph lacks."""
    options: list[str] = []
    if (graph / "edges.npy").is_file():
        for piece, (files, option) in STAND_INS.items():
            if not any((graph / file).is_file() for file in files):
                print(f"\n{graph} has no {piece}: the demo uses {' '.join(option)}", flush=True)
                options += option
    return options


def run(*arguments: str) -> None:
    print(f"\n$ hongtu {shlex.join(arguments)}", flush=True)
    start = time.perf_counter()
    if code := command(list(arguments)):
        sys.exit(code)
    print(f"  ({time.perf_counter() - start:.1f} s)")


def compare(artifact: Artifact, epochs: int) -> int:
    """Train without a limit and in a quarter of what that takes; 0 when budget and losses are kept."""
    whole = train(make_trainer(artifact, None), epochs, "in memory, no limit, for comparison")
    needed = sum(size for name, size in whole[0].peak_bytes.items() if name.startswith("device"))
    budget = needed // 4 // DEVICES
    try:
        trainer = make_trainer(artifact, budget)
    except BudgetError as error:
        if not error.smallest:
            raise
        budget = error.smallest
        print(f"\nthis graph is too small for the demo's budget, a quarter of what in-memory training needs ({error})")
        print(f"the demo takes the smallest budget that works instead: {mib(budget)} per device")
        trainer = make_trainer(artifact, budget)
    records = train(trainer, epochs, f"{DEVICES} devices with {mib(budget)} each")
    return report(needed, budget, whole, records)


def compare_ranks(artifact: Artifact, ranks: int, epochs: int) -> int:
    """Train in one process and in several; 0 when the losses are the same."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m", "--"]
    one, several = (losses(artifact, launch, epochs) for launch in (["-m"], torchrun))
    differences = [relative(a, b) for a, b in zip(several, one, strict=True)]
    print(f"\n  epoch  loss, one process  loss, {ranks} ranks")
    for epoch, pair in enumerate(zip(one, several, strict=True), 1):
        print(f"  {epoch:5d}  {pair[0]:17.6f}  {pair[1]:13.6f}")
    print(f"losses differ by at most {max(differences):.1e} (relative, float32)")
    if not all(difference <= TOLERANCE for difference in differences):  # NaN fails too
        print("demo: the losses of ranks differ; please report this", file=sys.stderr)
        return 1
    return 0


def losses(artifact: Artifact, launch: list[str], epochs: int) -> list[float]:
    """Of `hongtu train`, started by a Python with these arguments."""
    directory = FOLDER / "run"
    shutil.rmtree(directory, ignore_errors=True)
    model = ["--model", "gcn", "--hidden", str(HIDDEN), "--dropout", "0.2", "--epochs", str(epochs)]
    arguments = [*launch, "hongtu", "train", str(artifact.path), *model, "--run", str(directory), "--save-every", "0"]
    print(f"\n$ python {shlex.join(arguments)}", flush=True)
    if code := subprocess.run([sys.executable, *arguments], check=False).returncode:
        sys.exit(code)
    return [json.loads(line)["loss"] for line in (directory / "epochs.jsonl").read_text().splitlines()]


def make_trainer(artifact: Artifact, budget: int | None) -> hongtu.Trainer:
    """A 2-layer GCN, always from the same start."""
    torch.manual_seed(0)
    return hongtu.Trainer(
        artifact,
        build_layers("gcn", artifact.feature_width, HIDDEN, artifact.num_classes, 2, dropout=0.2),
        loss=DEFAULT[artifact.task],
        device_memory=budget,
    )


def train(trainer: hongtu.Trainer, epochs: int, title: str) -> list[EpochRecord]:
    """Train, printing loss and accuracy as they come."""
    print(f"\n2-layer GCN, {HIDDEN} hidden: {title}", flush=True)

    def show(record: EpochRecord) -> None:
        scores = "".join(f"  {split} {score:.4f}" for split, score in record.metrics.items())
        print(f"  epoch {record.epoch:3d}  loss {record.loss:.6f}{scores}  {record.seconds:.2f} s", flush=True)

    return trainer.fit(epochs, eval_every=max(epochs // 2, 1), progress=False, on_epoch=show)


def report(needed: int, budget: int, whole: list[EpochRecord], records: list[EpochRecord]) -> int:
    """Peak bytes against the budget, and every loss against that of the unlimited run."""
    peaks = {name: max(r.peak_bytes[name] for r in records) for name in records[0].peak_bytes}
    print(f"\nin-memory training needs {mib(needed)}; the budget was {mib(budget)} per device")
    for name, peak in peaks.items():
        share = "" if name.endswith("host") else f"  ({peak / budget:.0%} of the budget)"
        print(f"  peak {name:13s} {mib(peak)}{share}")
    differences = [relative(a.loss, b.loss) for a, b in zip(records, whole, strict=True)]
    print(
        f"losses of all {len(records)} epochs differ from the unlimited run's by at most {max(differences):.1e} "
        "(relative, float32)"
    )
    within = all(peak <= budget for name, peak in peaks.items() if name.startswith("device"))
    if not within or not all(difference <= TOLERANCE for difference in differences):  # NaN fails too
        print("demo: the run broke its budget or its losses differ; please report this", file=sys.stderr)
        return 1
    return 0


def relative(value: float, expected: float) -> float:
    return abs(value - expected) / max(abs(expected), 1e-3)  # one class only: both losses are 0


def mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


if __name__ == "__main__":
    sys.exit(main())

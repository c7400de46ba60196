"""Has anything become slower? This tree beside an earlier revision of it, in turns, on one generated graph.

    python -m experiments.releases REVISION [--vertices 100000] [--rounds 3] [--models gcn sage gat] [--out FILE.jsonl]

Both train by the public command (``hongtu train --json``), each in processes of its own, so that any revision can be
measured. The fastest epoch of each counts, for what disturbs an epoch only adds to it. Exits with 1 where something
takes more than a tenth longer than it did.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from hongtu.bench.records import append, machine
from hongtu.cli.stopping import stoppable

ROOT = Path(__file__).resolve().parents[1]
SLOWER = 1.1
BUDGETS = (None, "25%")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="a commit or a tag of this repository")
    parser.add_argument("--vertices", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=["gcn", "sage", "gat"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with stoppable(), tempfile.TemporaryDirectory() as work:
        rows = measured(options, Path(work))
    for row in rows:
        print(f"{row['what']:<14} {row['before']:8.3f} s  {row['now']:8.3f} s  {row['ratio']:5.2f}x")
        append(options.out, machine("releases") | {"revision": options.revision} | row)
    slower = [row["what"] for row in rows if row["ratio"] > SLOWER]
    if slower:
        sys.exit(f"slower than {options.revision}: {', '.join(slower)}")


def measured(options: argparse.Namespace, work: Path) -> list[dict[str, Any]]:
    """Seconds of the revision and of this tree, for preprocessing and for each model with and without a budget."""
    subprocess.run(["git", "archive", "-o", work / "old.tar", options.revision], cwd=ROOT, check=True)
    with tarfile.open(work / "old.tar") as archive:
        archive.extractall(work / "old", filter="data")
    trees = {"before": work / "old", "now": ROOT}
    sizes = ["--vertices", options.vertices, "--edges", 10 * options.vertices, "--features", 64, "--classes", 16]
    command(ROOT, work, "generate", "citation", "graph", *sizes)
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(options.rounds):
        for name, tree in trees.items():
            began = time.perf_counter()
            command(tree, work, "preprocess", "graph", name, "--force")
            seconds["preprocess", name].append(time.perf_counter() - began)
            for model in options.models:
                for budget in BUDGETS:
                    limit = [] if budget is None else ["--device-memory", budget]
                    words = ["train", name, "--model", model, "--epochs", options.epochs, "--json", *limit]
                    found = json.loads(command(tree, work, *words))
                    seconds[f"{model} {budget or 'no limit'}", name].append(found["seconds_per_epoch"])
    rows = []
    for what in dict.fromkeys(what for what, _ in seconds):
        before, now = (min(seconds[what, name]) for name in trees)
        rows.append({"what": what, "before": before, "now": now, "ratio": now / before})
    return rows


def command(tree: Path, work: Path, *words: object) -> str:
    """What ``hongtu`` of a tree prints."""
    line = [sys.executable, "-m", "hongtu", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    return subprocess.run(line, cwd=work, env=environment, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()

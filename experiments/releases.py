"""Has anything become slower? This tree beside an earlier revision of it, in turns, on one generated graph.

    python -m experiments.releases REVISION [--vertices 100000] [--rounds 3] [--models gcn sage gat] [--out FILE.jsonl]

Both train by the public command (``hongtu train --json``), each in processes of its own, so that any revision can be
measured. Of each two numbers: seconds of an epoch by the clock (of preprocessing: of the command), and processor
seconds of the whole command, with its imports and its plan. The least of all rounds counts: what disturbs a run only
adds to it. Exits with 1 where an epoch takes more than a tenth longer than it did; with ``--busy``, where others use
the machine, too, judges by the processor seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from experiments.options import make_parser
from hongtu.bench.records import append, machine
from hongtu.cli.stopping import stoppable

ROOT = Path(__file__).resolve().parents[1]
SLOWER = 1.1
BUDGETS = (None, "25%")


def main() -> None:
    parser = make_parser(__doc__, vertices=100_000, epochs=5, rounds=3, models=["gcn", "sage", "gat"])
    parser.add_argument("revision", help="a commit or a tag of this repository")
    parser.add_argument("--busy", action="store_true", help="judge by processor seconds")
    options = parser.parse_args()
    with stoppable(), tempfile.TemporaryDirectory() as work:
        rows = measured(options, Path(work))
    print(f"{'':<14} {'seconds, then and now':>30} {'processor seconds, then and now':>40}")
    for row in rows:
        print(f"{row['what']:<14} {_beside(row, '')}    {_beside(row, 'processor_')}")
        append(options.out, machine("releases") | {"revision": options.revision, "load": os.getloadavg()[0]} | row)
    slower = [row["what"] for row in rows if row["processor_ratio" if options.busy else "ratio"] > SLOWER]
    if slower:
        sys.exit(f"slower than {options.revision}: {', '.join(slower)}")


def _beside(row: dict[str, Any], kind: str) -> str:
    return f"{row[f'{kind}before']:8.3f} s  {row[f'{kind}now']:8.3f} s  {row[f'{kind}ratio']:5.2f}x"


def measured(options: argparse.Namespace, work: Path) -> list[dict[str, Any]]:
    """Both seconds of the revision and of this tree, for preprocessing and each model with and without a budget."""
    subprocess.run(["git", "archive", "-o", work / "old.tar", options.revision], cwd=ROOT, check=True)
    with tarfile.open(work / "old.tar") as archive:
        archive.extractall(work / "old", filter="data")
    trees = {"before": work / "old", "now": ROOT}
    sizes = ["--vertices", options.vertices, "--edges", 10 * options.vertices, "--features", 64, "--classes", 16]
    command(ROOT, work, "generate", "citation", "graph", *sizes)
    seconds: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)  # (by the clock, of the processor)
    for _ in range(options.rounds):
        for name, tree in trees.items():
            _, *both = command(tree, work, "preprocess", "graph", name, "--force")
            seconds["preprocess", name].append(tuple(both))
            for model in options.models:
                for budget in BUDGETS:
                    limit = [] if budget is None else ["--device-memory", budget]
                    words = ["train", name, "--model", model, "--epochs", options.epochs, "--json", *limit]
                    said, _, processor = command(tree, work, *words)
                    epoch = json.loads(said)["seconds_per_epoch"]
                    seconds[f"{model} {budget or 'no limit'}", name].append((epoch, processor))
    rows = []
    for what in dict.fromkeys(what for what, _ in seconds):
        row = {"what": what}
        for kind, of in (("", 0), ("processor_", 1)):
            before, now = (min(each[of] for each in seconds[what, name]) for name in trees)
            row |= {f"{kind}before": before, f"{kind}now": now, f"{kind}ratio": now / before}
        rows.append(row)
    return rows


def command(tree: Path, work: Path, *words: object) -> tuple[str, float, float]:
    """What ``hongtu`` of a tree prints, the seconds that it takes by the clock, and those of the processor."""
    line = [sys.executable, "-m", "hongtu", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    began, used = time.perf_counter(), _processor_seconds()
    said = subprocess.run(line, cwd=work, env=environment, check=True, capture_output=True, text=True).stdout
    return said, time.perf_counter() - began, _processor_seconds() - used


def _processor_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


if __name__ == "__main__":
    main()

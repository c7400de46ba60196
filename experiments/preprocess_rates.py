"""How long preprocessing a large graph takes, and how much memory, stage by stage.

    hongtu generate citation GRAPH --vertices 7000000 --edges 100000000 --features 64 --classes 16 --seed 1
    python -m experiments.preprocess_rates GRAPH [--partitioner streaming] [--order input ...] [--out FILE.jsonl]

Per order: the whole command in a process of its own, its stages, and its peak of anonymous memory.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from experiments.options import make_parser
from hongtu.bench.records import append, machine

APART = ("partition", "order")  # most of the time of some settings


def main() -> None:
    parser = make_parser(__doc__, partitioner="streaming")
    parser.add_argument("graph", type=Path, help="neutral input directory")
    parser.add_argument("--order", nargs="*", default=["input", "auto"])
    parser.add_argument("--embedding", action="store_true", help="without features")
    parser.add_argument("--scratch", type=Path, help="directory for artifacts (default: the system's)")
    options = parser.parse_args()
    edges = np.load(options.graph / "edges.npy", mmap_mode="r")
    vertices = len(np.load(options.graph / "labels.npy", mmap_mode="r"))
    about = machine("preprocess_rates") | {"graph": options.graph.name, "vertices": vertices, "edges": edges.shape[1]}
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        for order in options.order:
            flags = ["--partitioner", options.partitioner, "--order", order]
            more = ["--features", "embedding:64"] if options.embedding else []
            row = about | command(options.graph, Path(folder), flags + more)
            print(f"{' '.join(flags)}: {row['seconds']:.1f} s ({row['processor_seconds']:.1f} s on the processor), "
                  f"{row['peak_bytes'] / 2**30:.2f} GiB, {row['seconds_apart']:.1f} s without {' and '.join(APART)}",
                  flush=True)  # fmt: skip
            append(options.out, row)


def command(graph: Path, folder: Path, flags: list[str]) -> dict[str, Any]:
    """One run of ``hongtu preprocess``; its summary, printed after the artifact is there, is timed too."""
    words = [sys.executable, "-m", "hongtu", "preprocess", str(graph), str(folder / "artifact"), "--force", *flags]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    stages = [json.loads(line) for line in (folder / "artifact" / "stages.jsonl").read_text().splitlines()]
    apart = sum(line["seconds"] for line in stages if line["stage"] not in APART)
    return {
        "flags": flags,
        "seconds": round(seconds, 2),
        "processor_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2),
        "seconds_apart": round(apart, 2),
        "peak_bytes": max(line["peak_bytes"] for line in stages),
        "predicted_bytes": stages[-1]["predicted_bytes"],
        "stages": {line["stage"]: line["seconds"] for line in stages},
        "load": [round(value, 1) for value in os.getloadavg()],
    }


if __name__ == "__main__":
    main()

"""How long preprocessing a large graph takes, and how much memory, stage by stage.

    hongtu generate citation GRAPH --vertices 7000000 --edges 100000000 --features 64 --classes 16 --seed 1
    python -m experiments.preprocess_rates GRAPH [--partitioner streaming] [--order input ...] [--out FILE.jsonl]

Per order: the whole command in a process of its own, its stages, and its peak of anonymous memory. With --kernels also
the counting sort and the neighbour sets alone (best of three), and a plain two-pass counting sort of the same edges to
disk, to compare the stages other than partitioner and order with.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numba
import numpy as np

from hongtu.bench.records import append, machine
from hongtu.graph.neighbour_sets import neighbour_sets
from hongtu.preprocess.csc import build_csc, even_blocks

APART = ("partition", "order")  # what the comparison with a counting sort leaves out
CHUNKS = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=Path, help="neutral input directory")
    parser.add_argument("--partitioner", default="streaming")
    parser.add_argument("--order", nargs="*", default=["input", "auto"])
    parser.add_argument("--embedding", action="store_true", help="without features, which a counting sort has none of")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--scratch", type=Path, help="directory for artifacts (default: the system's)")
    parser.add_argument("--out", type=Path, help="append JSON lines here")
    options = parser.parse_args()
    edges = np.load(options.graph / "edges.npy", mmap_mode="r")
    vertices = len(np.load(options.graph / "labels.npy", mmap_mode="r"))
    about = machine("preprocess_rates") | {
        "graph": options.graph.name,
        "vertices": vertices,
        "edges": edges.shape[1],
    }
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        if options.kernels:
            row = about | kernels(edges, vertices, Path(folder))
            print(json.dumps({key: row[key] for key in ("csc_per_second", "sets_per_second", "plain_sort_seconds")}))
            append(options.out, row)
        for order in options.order:
            flags = ["--partitioner", options.partitioner, "--order", order]
            row = about | command(
                options.graph, Path(folder), flags + ["--features", "embedding:64"] * options.embedding
            )
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


def kernels(edges: np.ndarray, vertices: int, folder: Path) -> dict[str, Any]:
    """Edges per second of the two stages alone, and the seconds of the plain counting sort."""
    graph = build_csc(edges[0], edges[1], vertices)
    chunk_start = even_blocks(graph.in_edge_start, CHUNKS)
    plain_sort(edges[:, :1000], vertices, folder)
    sort = best(lambda: build_csc(edges[0], edges[1], vertices))
    sets = best(lambda: neighbour_sets(chunk_start, graph.in_edge_start, graph.source))
    plain = best(lambda: plain_sort(edges, vertices, folder), 2)
    count = edges.shape[1]
    return {
        "csc_per_second": round(count / sort),
        "sets_per_second": round(count / sets),
        "plain_sort_seconds": round(plain, 2),
        "load": [round(value, 1) for value in os.getloadavg()],
    }


def best(call: Any, times: int = 3) -> float:
    """Seconds of the fastest of some calls, after one that compiles."""
    call()
    found = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return min(found)


def plain_sort(edges: np.ndarray, vertices: int, folder: Path) -> None:
    """Count, then place: one core, no buckets, the result on disk when it returns."""
    source = np.lib.format.open_memmap(folder / "plain.npy", "w+", np.int32, (edges.shape[1],))
    start = np.lib.format.open_memmap(folder / "plain_start.npy", "w+", np.int64, (vertices + 1,))
    _plain_sort(np.ascontiguousarray(edges[0]), np.ascontiguousarray(edges[1]), start, source)
    source.flush()
    start.flush()


@numba.njit
def _plain_sort(source, destination, start, into):
    at = np.zeros(len(start), dtype=np.int64)
    for e in range(len(destination)):
        at[destination[e] + 1] += 1
    for v in range(len(start) - 1):
        at[v + 1] += at[v]
    start[:] = at
    for e in range(len(destination)):
        into[at[destination[e]]] = source[e]
        at[destination[e]] += 1


if __name__ == "__main__":
    main()

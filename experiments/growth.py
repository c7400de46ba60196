"""How epoch time and memory grow with the graph: V vertices, 15 V edges, the same vertices per chunk (no groups).

    python -m experiments.growth --work DIR [--sizes 250000 500000 1000000 2000000] [--out FILE.jsonl]

In memory, without a limit, all sizes in turns; the first loss is checked against torch_geometric's where it is
installed. The exponents are the slopes of straight lines through the logarithms. Memory is what the run counts on
device and host, which is what was planned; that of the process, above what its imports take, is beside it: it has a
constant part (threads, compiled kernels, allocators), which bends its slope at sizes as small as these.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import hongtu
from experiments.options import make_parser
from experiments.prepare import generated, prepared
from experiments.readme import exponent
from hongtu.bench.compare import Settings, compare, describe
from hongtu.bench.records import append, machine
from hongtu.bench.spec import UNGROUPED, Model, Run

VERTICES_PER_CHUNK = 8192
PREPARING = 2  # at the same time: each is mostly one core's work
MEMORY = {"counted_bytes": "counted", "process_bytes": "of the process"}


def main() -> None:
    parser = make_parser(
        __doc__, sizes=[250_000, 500_000, 1_000_000, 2_000_000], model="gcn", features=32, hidden=32, layers=2, epochs=3
    )
    parser.add_argument("--work", type=Path, required=True, help="keep graphs and artifacts here")
    options = parser.parse_args()
    model = Model(name=options.model, hidden=options.hidden, layers=options.layers)
    settings = Settings(epochs=options.epochs, checked=1)
    with ProcessPoolExecutor(PREPARING, mp_context=get_context("spawn")) as pool:
        list(pool.map(partial(prepare, options.work, options.features), sorted(options.sizes, reverse=True)))
    artifacts = [hongtu.open_artifact(artifact_of(options.work, vertices)) for vertices in options.sizes]
    orders = [settings.order(artifact.path, model, Run(strategy=UNGROUPED)) for artifact in artifacts]
    rows = compare(orders, settings)
    for artifact, row in zip(artifacts, rows, strict=True):
        row["counted_bytes"] = sum(row["memory"].values())
        append(options.out, machine("growth") | describe(artifact, settings) | model.to_dict() | row)
        sizes = " and ".join(f"{row[key] / 2**20:.0f} MiB {where}" for key, where in MEMORY.items())
        print(f"{artifact.num_vertices:,} vertices: {row['seconds']:.3f} s, {sizes}", flush=True)
    for name in ("seconds", *MEMORY):
        print(f"{name}: exponent {exponent(options.sizes, [row[name] for row in rows]):.3f}")


def artifact_of(work: Path, vertices: int) -> Path:
    return work / f"growth-{vertices}"


def prepare(work: Path, features: int, vertices: int) -> None:
    """Make the graph and the artifact of one size, unless they are there."""
    graph = generated(work / "growth", "citation", vertices, features=features)
    chunks = max(1, vertices // VERTICES_PER_CHUNK)
    prepared(graph, artifact_of(work, vertices), partitions=1, chunks=chunks, order="clusters")


if __name__ == "__main__":
    main()

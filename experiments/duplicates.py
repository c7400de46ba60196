"""The forms of the HongTu paper's Tables 3 and 8 on graphs of yours.

    python -m experiments.duplicates GRAPH... [--undirected] [--out FILE.jsonl]

Table 3: replication factor alpha against the number of parts, in two levels: METIS partitions, one per device, then
chunks of them; at P = m n it is Table 8's V_ori. Table 8: the two kinds of duplicate
accesses that deduplication removes with m = 4 devices and n = 32 chunks each: between devices (V_ori - V_+p2p) and
between adjacent batches (V_+p2p - V_+ru), in input order and in Algorithm 4's, as shares of V_ori.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from experiments.rows_loaded import input_schedule, read, topology
from hongtu.bench.records import append, machine
from hongtu.preprocess import csc, order, partition, reorganize

PARTS = (2, 4, 8, 16, 32, 64, 128, 256, 512)
DEVICES, CHUNKS = 4, 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", nargs="+", type=Path, help="directories with edges.npy")
    parser.add_argument("--undirected", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="append JSON lines here")
    options = parser.parse_args()
    for path in options.graphs:
        graph = read(path, options.undirected)
        row = machine("duplicates") | {
            "graph": path.name,
            "undirected": options.undirected,
            "alpha": replication(graph, options.seed),
        }
        row |= duplicates(graph, options.seed)
        print(table(row), flush=True)
        append(options.out, row)


def replication(graph: csc.Csc, seed: int) -> dict[int, float]:
    """alpha for each number of chunks on ``DEVICES`` devices, or on fewer where there are fewer chunks."""
    alphas = {}
    for parts in PARTS:
        devices = min(parts, DEVICES)
        chunks = chunked(graph, devices, parts // devices, seed)
        alphas[parts] = len(chunks.sources) / chunks.num_vertices
    return alphas


def duplicates(graph: csc.Csc, seed: int) -> dict[str, dict[str, float]]:
    """V_ori over |V| and the shares of it that each step removes, by schedule."""
    chunks = chunked(graph, DEVICES, CHUNKS, seed)
    sets = (chunks.source_start, chunks.sources)
    schedules = {
        "input": input_schedule(DEVICES, CHUNKS),
        "Algorithm 4": reorganize.reorganize(*sets, DEVICES, chunks.num_vertices),
    }
    shares = {}
    for name, schedule in schedules.items():
        counted = reorganize.count_volume(*sets, chunks.partition_start, schedule)
        shares[name] = {
            "v_ori": counted.v_ori / chunks.num_vertices,
            "between_devices": (counted.v_ori - counted.v_p2p) / counted.v_ori,
            "between_batches": (counted.v_p2p - counted.v_ru) / counted.v_ori,
        }
    return shares


def chunked(graph: csc.Csc, m: int, n: int, seed: int):
    edges = (graph.in_edge_start, graph.source)
    everyone = np.ones(len(graph.in_edge_start) - 1, dtype=bool)
    part = partition.partition_vertices("metis", *edges, m, train_mask=everyone, seed=seed)
    return topology(graph, *order.order_vertices("input", *edges, part, m, n, seed)[:2], m)


def table(row: dict) -> str:
    title = f"{row['graph']}{' undirected' if row['undirected'] else ''}"
    alphas = "  ".join(f"{parts}: {alpha:.2f}" for parts, alpha in row["alpha"].items())
    lines = [f"{title}: alpha by parts  {alphas}"]
    for name in ("input", "Algorithm 4"):
        found = row[name]
        lines.append(
            f"  m = {DEVICES}, n = {CHUNKS}, {name:11s}  V_ori {found['v_ori']:.2f} |V|, duplicates between devices "
            f"{found['between_devices']:.1%}, between batches {found['between_batches']:.1%}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()

"""Rows loaded per pass against cache size: lookahead at every capacity, and the paper's reuse at its own.

python -m experiments.traffic ARTIFACT... [--out FILE.jsonl]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import hongtu
from hongtu.bench.records import append, machine
from hongtu.plan.report import LoadCounter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifacts", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, help="append JSON lines here")
    options = parser.parse_args()
    for path in options.artifacts:
        topology = hongtu.open_artifact(path).topology
        counter, v = LoadCounter(topology, topology.input_order), topology.num_vertices
        row = machine("traffic") | {
            "graph": path.name,
            "chunks": topology.partitions * topology.chunks,
            "curve": [[slots / v, rows / v] for slots, rows in counter.curve()],
            "paper": [sum(counter.smallest) / v, counter.paper_rows / v],
            "lookahead": counter.lookahead_rows(counter.smallest) / v,
            "floor": counter.floor / v,
        }
        append(options.out, row)
        print(f"{path.name}: paper {row['paper'][1]:.2f} |V|, lookahead there {row['lookahead']:.2f} |V|", flush=True)


if __name__ == "__main__":
    main()

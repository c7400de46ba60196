"""Published epochs of GriNNder on one RTX A5000 beside what ``hongtu plan`` predicts from the same counts.

python -m experiments.storage_rivals
"""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

from hongtu.cli.main import main as hongtu_main

GRINNDER = (  # its paper's graph, model, layers, what it says of the run, seconds of an epoch
    ("ogbn-products", "gcn", 2, "1 part", 1.55),
    ("ogbn-products", "gcn", 2, "2 parts", 5.13),
    ("ogbn-products", "gcn", 2, "4 parts", 6.73),
    ("igb-medium", "gcn", 3, "", 102.4),
    ("igb-medium", "gat", 3, "", 103.6),
)


def planned(*options: object) -> dict[str, Any]:
    """By kind of graph."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = hongtu_main(["plan", *map(str, options), "--json"])
    if code:
        raise SystemExit(code)
    return json.loads(out.getvalue())["kinds"]


def grinnder() -> None:
    print("| graph | model | published, GriNNder | planned, a5000, by kind of graph |\n|---|---|---|---|")
    known: dict[tuple[str, str], str] = {}
    for graph, model, layers, run, seconds in GRINNDER:
        if (graph, model) not in known:
            kinds = planned(
                "--like", graph, "--model", model, "--layers", layers, "--hidden", 256, "--hardware", "a5000"
            )
            known[graph, model] = ", ".join(
                f"{kind} {found['seconds_per_epoch']:.2g} s" for kind, found in kinds.items()
            )
        part = f", {run}" if run else ""
        print(f"| {graph} | {layers}-layer {model}{part} | {seconds} s | {known[graph, model]} |", flush=True)


if __name__ == "__main__":
    grinnder()

"""What each saving removes: the ladder none, +p2p, +reuse (the paper), then one saving after the other.

    python -m experiments.ladder GRAPH [--partitions 4] [--layers 2] [--measure EPOCHS] [--out FILE]

The rungs of the paper run on an artifact with 32 chunks per partition in input order, ours on one with 16 times that in
the best order, within the device memory that the paper's plan takes. Bytes per link are planned, and with ``--measure``
counted in every epoch, which must be the same; seconds are of the fastest epoch. "host" is what crosses the
host link in both directions; structure and plan arrays are apart.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import hongtu
from experiments.options import make_parser
from experiments.prepare import prepared
from hongtu.bench.records import append, host_bytes, machine
from hongtu.model.named import build_layers
from hongtu.plan.passes.strategy import SAVINGS, STRATEGIES, Strategy, with_saving
from hongtu.train.planning import plan_model

PAPER_CHUNKS, FINER = 32, 16
PARTS = {  # phases of an epoch, as in the paper's Figure 9
    "host to device": ("load", "read", "topology"),
    "device to host": ("write",),
    "peer": ("pull", "push"),
    "compute": ("compute",),
    "CPU accumulation": ("flush",),
}


def main() -> None:
    parser = make_parser(__doc__, partitions=4, model="gcn", hidden=256, layers=2)
    parser.add_argument("graph", type=Path, help="neutral input directory")
    parser.add_argument("--undirected", action="store_true")
    parser.add_argument("--features", help="replace the input's features, for example random:128")
    parser.add_argument("--classes", type=int, help="replace the labels by random ones of so many classes")
    parser.add_argument("--measure", type=int, default=0, metavar="EPOCHS", help="train so many epochs of every rung")
    parser.add_argument("--work", type=Path, help="keep the artifacts here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = climb(options, options.work or Path(folder))
    print(table(options, rows))
    for row in rows:
        append(options.out, machine("ladder") | {"graph": options.graph.name} | row)


def rungs() -> list[tuple[str, Strategy]]:
    """Name and strategy of every step, each with all savings of those before it."""
    paper = STRATEGIES["paper"]
    steps = [("none", STRATEGIES["none"]), ("+ p2p", replace(paper, reuse="p2p")), ("+ reuse (paper)", paper)]
    for name in SAVINGS:
        steps.append((name if name == "lookahead" else f"+ {name}", with_saving(steps[-1][1], name)))
    return steps


def climb(options: argparse.Namespace, work: Path) -> list[dict[str, Any]]:
    """One row per rung."""
    coarse = prepare(options, work / "coarse", PAPER_CHUNKS, "input")
    fine = prepare(options, work / "fine", PAPER_CHUNKS * FINER, "auto")
    rows: list[dict[str, Any]] = []
    budget = None
    for name, strategy in rungs():
        papers = strategy.reuse != "lookahead"
        artifact, limit = (coarse, None) if papers else (fine, budget)
        plan = plan_model(artifact, layers(options, artifact), device_memory=limit, strategy=strategy)
        if strategy == STRATEGIES["paper"]:
            budget = smallest(options, artifact)
        row = {
            "rung": name,
            "threads": torch.get_num_threads(),
            "budget": limit,
            "bytes": plan.bytes,
            "rows": plan.rows,
            "setup_bytes": plan.setup_traffic.bytes,
            "host_bytes": host_bytes(plan.bytes),
            "chunks": plan.topology.chunks,
            "fused": plan.choice.fuse,
            "resident": sorted(plan.resident),
        }
        if options.measure:
            row |= measure(options, artifact, limit, strategy, plan.bytes)
        rows.append(row)
        print(line(rows, row), flush=True)
    return rows


def prepare(options: argparse.Namespace, path: Path, chunks: int, order: str) -> hongtu.Artifact:
    labels = None if options.classes is None else f"random:{options.classes}"
    return prepared(
        options.graph, path, partitions=options.partitions, chunks=chunks, order=order, undirected=options.undirected,
        features=options.features, labels=labels,
    )  # fmt: skip


def layers(options: argparse.Namespace, artifact: hongtu.Artifact) -> list[torch.nn.Module]:
    torch.manual_seed(0)
    return build_layers(options.model, artifact.feature_width, options.hidden, artifact.num_classes, options.layers)


def smallest(options: argparse.Namespace, artifact: hongtu.Artifact) -> int:
    """The device memory of the paper's plan, its layers included."""
    try:
        plan_model(artifact, layers(options, artifact), device_memory=1, strategy="paper")
    except hongtu.errors.BudgetError as refused:
        return refused.smallest
    raise AssertionError("one byte is enough")


def measure(
    options: argparse.Namespace, artifact: hongtu.Artifact, budget: int | None, strategy: Strategy, planned: dict
) -> dict[str, Any]:
    """Seconds by part of the fastest epoch; the bytes must be those of the plan."""
    trainer = hongtu.Trainer(artifact, layers(options, artifact), device_memory=budget, strategy=strategy)
    records = [trainer.train_epoch() for _ in range(options.measure)]
    assert all(record.bytes == planned for record in records)
    best = min(records, key=lambda record: record.seconds)
    parts = {part: sum(best.phases.get(name, 0.0) for name in names) for part, names in PARTS.items()}
    return {"seconds": best.seconds, "parts": parts, "loss": best.loss, "last_loss": records[-1].loss}


def line(rows: list[dict[str, Any]], row: dict[str, Any]) -> str:
    first = rows[0]["host_bytes"]
    paper = next((r["host_bytes"] for r in rows if "paper" in r["rung"]), None)
    text = f"  {row['rung']:24s} {row['host_bytes'] / 2**20:9.0f} MiB host  {row['host_bytes'] / first:5.2f}x none"
    text += f"  {row['host_bytes'] / paper:5.2f}x paper" if paper else " " * 13
    peer, structure = row["bytes"]["pull"] + row["bytes"]["push"], row["bytes"]["topology"]
    text += f"  {peer / 2**20:7.0f} MiB peer  {structure / 2**20:6.0f} MiB structure"
    return text + (f"  {row['seconds']:7.2f} s" if "seconds" in row else "")


def table(options: argparse.Namespace, rows: list[dict[str, Any]]) -> str:
    head = f"{options.graph.name}: {options.model}, {options.layers} layers, hidden {options.hidden}, "
    budget = next(row["budget"] for row in reversed(rows))
    head += f"m = {options.partitions}, {budget / 2**20:.1f} MiB per device"
    return "\n".join([head, *(line(rows, row) for row in rows)])


if __name__ == "__main__":
    main()

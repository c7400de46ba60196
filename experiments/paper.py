"""The forms of the HongTu paper's tables and figures on our graphs, beside the numbers it published.

    python -m experiments.paper --work DIR --results DIR [--only "Table 5"] [--out FILE.jsonl]

One function per table or figure; rows are text, for the page. ``--results`` holds what the other experiments wrote
(bench, budgets, growth). The paper (Wang et al., SIGMOD 2023, arXiv 2311.14898) was not at hand when this was written:
a published number stands here only where its abstract or this project's design document quotes it, everything else is
left empty. Which form belongs to which number follows the issue that asked for them.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

import hongtu
from experiments.duplicates import duplicates, replication
from experiments.prepare import generated, real_graph
from experiments.rows_loaded import read as read_graph
from hongtu.bench.host_load import BUSY
from hongtu.bench.records import append, machine, read
from hongtu.hardware import A100X4, Hardware
from hongtu.model.named import build_layers
from hongtu.plan.cost.seconds import predict_seconds
from hongtu.train.planning import plan_model

UNKNOWN = "the paper's table was not at hand"
ABSTRACT = "the paper's abstract"
DESIGN = "quoted in this project's design document"


@dataclass(frozen=True)
class BigGraph:
    """A billion-scale graph of the paper; sizes as its publisher gives them.

    Attributes:
        widths: columns before, between and after two layers; None in ``source`` says where they come from.
        published: seconds of an epoch in the paper, where known.
    """

    name: str
    vertices: int
    edges: int
    widths: tuple[int, int, int]
    source: str
    published: float | None = None


BIG = (
    BigGraph("it-2004", 41_291_594, 1_150_725_436, (256, 128, 64), "sizes: LAW; widths assumed"),
    BigGraph(
        "ogbn-papers100M", 111_059_956, 1_615_685_872, (128, 128, 172), "sizes and widths: OGB, hidden assumed", 25.1
    ),
    BigGraph("com-Friendster", 65_608_366, 1_806_067_135, (256, 128, 64), "sizes: SNAP; widths assumed"),
)
ALPHAS = (1, 2, 4, 8)
TABLES = (*(f"Table {k}" for k in (1, 3, 5, 6, 8, 9)), *(f"Figure {k}" for k in (8, 9, 10, 11)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="keep generated graphs here")
    parser.add_argument("--results", type=Path, required=True, help="directory with the other experiments' JSON lines")
    parser.add_argument("--vertices", type=int, default=50_000, help="of the graphs that are partitioned")
    parser.add_argument("--only", choices=TABLES, action="append", help="this table or figure (repeatable)")
    parser.add_argument("--out", type=Path, help="append JSON lines here")
    options = parser.parse_args()
    wanted = options.only or TABLES
    found: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(options.results.glob("*.jsonl")):
        for row in read(file):
            if row.get("others", 0) <= BUSY:  # a disturbed timing shows nothing
                found.setdefault(row["experiment"], []).append(row)
    rows: Iterable[dict[str, str]] = from_results(found)
    rows = chain(rows, partitioned(options) if {"Table 3", "Table 8"} & set(wanted) else ())
    rows = chain(rows, predicted(A100X4) if "Table 6" in wanted else ())
    for row in rows:
        if row["table"] in wanted:
            append(options.out, machine("paper") | row)
            print(f"{row['table']}: {row['what']}, {row['graph']}: {row['ours']}  [{row['published'] or 'not known'}]")


def cell(table: str, what: str, graph: str, ours: str, published: str = "", remark: str = UNKNOWN) -> dict[str, str]:
    return {"table": table, "what": what, "graph": graph, "ours": ours, "published": published, "remark": remark}


def from_results(found: dict[str, list[dict[str, Any]]]) -> Iterator[dict[str, str]]:
    yield from table_1(found.get("bench", []))
    yield from table_5(found.get("bench", []))
    yield from table_9(found.get("preprocess", []))
    yield from figure_8(found.get("bench", []))
    yield from figure_9(found.get("bench", []))
    yield from figure_10(found.get("growth", []))
    yield from figure_11(found.get("bench", []))


def table_1(rows: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
    """Memory of full-graph training, by kind of memory."""
    for row in rows:
        if row["system"] == "hongtu" and row["strategy"] == "paper" and "memory" in row and row["share"] is None:
            parts = ", ".join(f"{name} {size / 2**20:.0f} MiB" for name, size in row["memory"].items())
            yield cell("Table 1", f"memory of {row['model']}, {row['layers']} layers", row["graph"], parts)


def table_5(rows: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
    """Epoch time in memory, against another in-memory system."""
    for row in rows:
        if "seconds" in row and (row["system"].startswith("pyg") or (row["strategy"] == "full" and not row["budget"])):
            yield cell("Table 5", f"epoch in memory, {row['model']}: {row['label']}", row["graph"],
                       f"{row['seconds']:.3f} s")  # fmt: skip


def table_9(rows: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
    """What preprocessing costs."""
    for row in rows:
        stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in row["stages"].items() if seconds >= 0.05)
        yield cell("Table 9", "preprocessing, by stage", row["graph"], stages)


def figure_8(rows: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
    """Epoch time of the published system over that of its baseline, and of ours over both."""
    for model, graph in dict.fromkeys((row["model"], row["graph"]) for row in rows):
        own = {
            row["strategy"]: row
            for row in rows
            if (row["model"], row["graph"]) == (model, graph)
            and row["system"] == "hongtu"
            and row["share"] is None
            and "seconds" in row
            and not row.get("curve")
        }
        if {"none", "paper", "full"} <= own.keys():
            base = own["none"]["seconds"]
            for name in ("paper", "full"):
                yield cell("Figure 8", f"epoch of {name} over none, {model}", own[name]["graph"],
                           f"{own[name]['seconds'] / base:.2f}x")  # fmt: skip
                moved = 1 - own[name]["bytes"]["load"] / max(own["none"]["bytes"]["load"], 1)
                yield cell("Figure 8", f"host-device rows that {name} saves, {model}", own[name]["graph"],
                           f"{moved:.0%}", "25% to 71%" if name == "paper" else "", ABSTRACT)  # fmt: skip


def figure_9(rows: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
    """Where an epoch goes, by phase."""
    for row in rows:
        if row["system"] == "hongtu" and row.get("strategy") in ("none", "paper", "full") and "phases" in row:
            total = sum(row["phases"].values())
            parts = ", ".join(
                f"{name} {part / total:.0%}" for name, part in row["phases"].items() if part > total / 100
            )
            yield cell("Figure 9", f"phases of {row['model']}: {row['label']}", row["graph"], parts)


def figure_10(rows: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
    """Epoch time as the graph grows."""
    for row in rows:
        yield cell("Figure 10", f"epoch of {row['model']}, {row['vertices']:,} vertices", row["graph"],
                   f"{row['seconds']:.3f} s")  # fmt: skip


def figure_11(rows: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
    """Accuracy against time."""
    for row in rows:
        if row.get("curve"):
            last = row["curve"][-1]
            yield cell("Figure 11", f"test accuracy of {row['model']}: {row['label']}", row["graph"],
                       f"{last['test']:.3f} after {last['epoch']} epochs, {last['seconds']:.1f} s")  # fmt: skip


def partitioned(options: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Table 3: alpha by number of partitions; Table 8: duplicate accesses by kind, m = 4, n = 32."""
    graphs = [(generated(options.work, kind, options.vertices), False) for kind in ("citation", "rmat", "web")]
    arxiv = real_graph("ogbn-arxiv")
    for path, undirected in [*graphs, *([(arxiv, True)] if arxiv is not None else [])]:
        graph = read_graph(path, undirected)
        alphas = "  ".join(f"{parts}: {alpha:.2f}" for parts, alpha in replication(graph, 0).items())
        yield cell("Table 3", "alpha by partitions", path.name, alphas)
        for order, shares in duplicates(graph, 0).items():
            yield cell("Table 8", f"duplicates between devices, between batches, {order} order", path.name,
                       f"{shares['between_devices']:.1%}, {shares['between_batches']:.1%}")  # fmt: skip


def predicted(hardware: Hardware) -> Iterator[dict[str, str]]:
    """Table 6: the cost model's epoch on the paper's machine, two-layer GCN, by the rows that a pass loads over |V|.

    A small generated graph is planned for that machine with the paper's strategy, and every term of its seconds is
    taken to the size of the big one: rows and flops grow with V, sums with E, loads with alpha V.
    """
    for big in BIG:
        for alpha in ALPHAS:
            seconds = scaled_seconds(big, alpha, hardware)
            ours, published = f"{seconds:.1f} s", ""
            remark = f"{big.source}; alpha of the paper's partitions not at hand"
            if big.published is None:
                remark += ", nor its seconds: no error can be stated"
            else:
                ours, published = f"{ours}: {seconds / big.published - 1:+.0%}", f"{big.published} s"
                remark += f"; published: {DESIGN}"
            what = f"epoch predicted on {hardware.name} if a pass loads {alpha} |V|"
            yield cell("Table 6", what, big.name, ours, published, remark)


def scaled_seconds(big: BigGraph, alpha: float, hardware: Hardware) -> float:
    """Seconds of an epoch of the paper's strategy on a graph of which only sizes are known: a tiny plan's, term by
    term. Fixed costs of chunks are left out."""
    features, hidden, classes = big.widths
    rng, small = np.random.default_rng(0), 256
    with tempfile.TemporaryDirectory() as folder:
        artifact = hongtu.preprocess_graph(
            rng.integers(0, small, (2, 8 * small)), small, Path(folder) / "tiny", features=f"random:{features}",
            labels=f"random:{classes}", masks={"train": np.ones(small, bool)}, partitions=1, chunks=1, order="input",
            partitioner="range",
        )  # fmt: skip
        layers = build_layers("gcn", features, hidden, classes, 2)
        seconds = predict_seconds(plan_model(artifact, layers, strategy="paper", hardware=hardware), hardware)
        topology = artifact.topology
        rows = alpha * big.vertices / len(topology.sources)
    vertices, edges = big.vertices / small, big.edges / topology.num_edges
    on_device = (seconds.load + seconds.flush) * rows + (seconds.contiguous + seconds.rowwise) * vertices
    return (on_device + seconds.aggregate * edges) / hardware.devices + seconds.accumulate * rows


if __name__ == "__main__":
    main()

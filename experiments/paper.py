"""The HongTu paper's tables and figures: what it published, what is predicted at its sizes, what ours show in shape.

    python -m experiments.paper --work DIR --results DIR [--only "Table 5"] [--out FILE.jsonl]

One function per table or figure (Wang et al., SIGMOD 2023, arXiv 2311.14898); rows are text, for the page. The kind of
a row says what its number is: ``published``, ``predicted for the published system`` or ``predicted for full`` on the
paper's machine at the paper's sizes (``experiments/published.py``), ``measured here`` on graphs of ours, which shows
the shape alone. ``--results`` holds what the other experiments wrote. Published numbers are read from the data
directory (``HONGTU_DATA``); without it only what was measured here has rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from experiments import mg_gcn
from experiments.cells import FULL, HERE, SYSTEM, Cells, beside, cell
from experiments.prepare import generated, real_graph
from experiments.published import (
    LARGE,
    Epoch,
    Rows,
    epochs,
    held_out,
    memory,
    predict,
    predict_epoch,
    predict_full,
    tables,
    tiny_plan,
    widths_of,
)
from experiments.rows_loaded import duplicates, replication
from experiments.rows_loaded import read as read_graph
from hongtu.bench.records import BUSY, append, machine, read
from hongtu.hardware import A100X4

TABLES = (*(f"Table {k}" for k in (1, 3, 5, 6, 7, 8, 9)), *(f"Figure {k}" for k in (8, 9, 10, 11)), "MG-GCN")
UNPUBLISHED = "its chunks and volumes were not published"
Found = dict[str, list[dict[str, Any]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="keep generated graphs here")
    parser.add_argument("--results", type=Path, required=True, help="directory with the other experiments' JSON lines")
    parser.add_argument("--vertices", type=int, default=50_000, help="of the graphs that are partitioned")
    parser.add_argument("--only", choices=TABLES, action="append", help="this table or figure (repeatable)")
    parser.add_argument("--out", type=Path, help="append JSON lines here")
    options = parser.parse_args()
    wanted = options.only or TABLES
    found: Found = {}
    for file in sorted(options.results.glob("*.jsonl")):
        for row in read(file):
            if row.get("others", 0) <= BUSY:  # a disturbed timing shows nothing
                found.setdefault(row["experiment"], []).append(row)
    rows: Iterable[dict[str, str]] = from_results(found)
    rows = chain(rows, partitioned(options) if {"Table 3", "Table 8"} & set(wanted) else ())
    rows = chain(rows, mg_gcn.here() if "MG-GCN" in wanted else ())
    rows = chain(rows, at_published_sizes() if tables() else ())
    for row in sorted((row for row in rows if row["table"] in wanted), key=lambda row: TABLES.index(row["table"])):
        append(options.out, machine("paper") | row)
        print(f"{row['table']}: {row['what']}, {row['graph']}: {row['ours']}  [{row['published']}] {row['remark']}")


# --------------------------------------------------------------------------------- predicted at the published sizes


def at_published_sizes() -> Cells:
    yield from table_1()
    yield from published_alphas()
    yield from table_5_published()
    yield from tables_6_and_7()
    yield from table_9()
    yield from figures()
    yield from mg_gcn.at_published_sizes()


def table_1() -> Cells:
    """Memory of full-graph training of a GCN of three layers: topology, vertex data, intermediate data."""
    for graph, row in tables()["hongtu"]["table_1_memory_gb_3_layer_gcn"].items():
        for what, nbytes in memory(graph, "gcn", 3).items():
            published = f"{row[what]:g} GB"
            yield cell("Table 1", f"{what} memory, GCN, 3 layers", graph, f"{nbytes / 1e9:.1f} GB", SYSTEM, published)


def published_alphas() -> Cells:
    """Table 3: alpha in 2 to 512 parts; Table 8: rows of a pass by kind."""
    alpha, rows = (tables()["hongtu"][name] for name in (
        "table_3_replication_factor", "table_8_host_rows_per_pass_over_vertices"))  # fmt: skip
    why = "the graph is not at hand; ours are in other rows"
    for graph in LARGE:
        text = "  ".join(f"{parts}: {value:g}" for parts, value in zip(alpha["parts"], alpha[graph], strict=True))
        yield cell("Table 3", "alpha by parts", graph, "", "published", text, why)
        row = rows[graph]
        text = ", ".join(f"{row[part]:g}" for part in ("ori", "saved_between_gpus", "saved_by_reuse"))
        yield cell("Table 8", f"V_ori, saved between GPUs, saved by reuse (over V), {row['chunks']} chunks", graph, "",
                   "published", text, why)  # fmt: skip


def table_5_published() -> Cells:
    """Epochs of 2, 4 and 8 layers on one GPU, in memory and out of it."""
    table = tables()["hongtu"]["table_5_one_gpu_epoch_seconds"]
    one = replace(A100X4, devices=1)
    for layers, model in ((layers, model) for layers in ("2", "4", "8") for model in ("gcn", "gat")):
        for k, graph in enumerate(table["columns"]):
            published = table[layers][model]["HongTu-IM"][k]
            sizes = tables()["hongtu"]["graphs"][graph]
            plan = tiny_plan(model, widths_of(graph, int(layers)), "full")
            seconds = predict(plan, one, sizes["vertices"], sizes["edges"], Rows(1, 1, 1), resident=1).total
            what = f"epoch in memory, {model}, {layers} layers"
            kind = f"{FULL}, the published of HongTu-IM"
            if published is None:
                yield cell("Table 5", what, graph, f"{seconds:.2f} s", kind, "out of memory")
            else:
                yield beside("Table 5", what, graph, seconds, published, kind)
            published = f"{table[layers][model]['HongTu'][k]:g} s"
            what = f"epoch out of memory, {model}, {layers} layers"
            yield cell("Table 5", what, graph, "", "published", published, UNPUBLISHED)


def tables_6_and_7() -> Cells:
    """Epochs on four GPUs; Table 6 has 2/2, 4/3 and 8/4 layers of GCN on small and large graphs, Table 7 GAT, too."""
    small = tables()["hongtu"]["table_6_four_gpus_gcn_epoch_seconds"]["layers_small_large"]
    for name, systems in small.items():
        for graph, seconds in zip(("reddit", "ogbn-products"), systems["HongTu"], strict=False):
            what = f"epoch, gcn, {name.split('/')[0]} layers"
            yield cell("Table 6", what, graph, "", "published", f"{seconds:g} s", UNPUBLISHED)
    for epoch in (epoch for epoch in epochs() if epoch.table == "Table 7"):
        for table in ("Table 6", "Table 7")[epoch.model == "gat" :]:
            what = f"epoch, {epoch.model}, {epoch.layers} layers"
            half = "held out of the fit" if held_out(epoch) else "fitted"
            yield beside(
                table, what, epoch.graph, predict_epoch(epoch, A100X4).total, epoch.seconds, f"{SYSTEM}, {half}"
            )
            full, part = predict_full(epoch.graph, epoch.model, epoch.layers, A100X4)
            kind = f"{FULL}, {part:.0%} of its vertex tensors on the devices, without prune"
            yield cell(table, what, epoch.graph, f"{full.total:.2f} s", kind, f"{epoch.seconds:g} s")


def table_9() -> Cells:
    """100 epochs of a GCN of two layers with and without deduplication."""
    for epoch in (epoch for epoch in epochs() if epoch.table == "Table 9"):
        what = f"100 epochs {'without' if epoch.strategy == 'none' else 'with'} deduplication"
        yield beside("Table 9", what, epoch.graph, 100 * predict_epoch(epoch, A100X4).total, 100 * epoch.seconds)
    for graph, row in tables()["hongtu"]["table_9_seconds_of_100_epochs_2_layer_gcn"].items():
        yield cell(
            "Table 9", "preprocessing", graph, "", "published", f"{row['preprocessing']:g} s", "ours are in other rows"
        )


def figures() -> Cells:
    """Figure 9: where an epoch goes, and what each step of deduplication saves; the others as far as the text quotes
    them."""
    text = tables()["hongtu"]["text"]
    for epoch in (epoch for epoch in epochs() if epoch.table == "Table 7" and epoch.layers == 2):
        s = predict_epoch(epoch, A100X4)
        shares = {"GPU computation": s.aggregate + s.rowwise, "transfers": s.load + s.flush + s.peer + s.contiguous,
                  "host accumulation": s.accumulate}  # fmt: skip
        ours = ", ".join(f"{name} {part / s.total:.0%}" for name, part in shares.items())
        yield cell("Figure 9", f"shares of an epoch, {epoch.model}, 2 layers", epoch.graph, ours, SYSTEM,
                   text["figure_9_shares_of_an_epoch"])  # fmt: skip
        steps = [predict_epoch(replace(epoch, strategy=name), A100X4) for name in ("none", "p2p", "paper")]
        moved = [step.load + step.flush + step.peer + step.contiguous for step in steps]
        cuts = [(before - after) / before for before, after in pairwise(moved)]
        for what, ours, published in (
            ("speedup over the baseline", f"{steps[0].total / steps[-1].total:.1f}x", "speedup_over_baseline"),
            ("sharing between GPUs cuts transfers", f"{cuts[0]:.0%}", "peer_sharing_cuts_transfer_time"),
            ("reuse cuts them further", f"{cuts[1]:.0%}", "reuse_cuts_it_further"),
        ):
            what = f"{what}, {epoch.model}, 2 layers"
            yield cell("Figure 9", what, epoch.graph, ours, SYSTEM, text[f"figure_9_{published}"])
    why = "no curve is in the tables at hand; ours are in other rows"
    yield cell("Figure 8", "accuracy over time", "all", "", "published", "", why)
    alpha = tables()["hongtu"]["table_3_replication_factor"]
    for graph in LARGE:
        few = Epoch("Figure 10", graph, "gcn", 2, "paper", 1.0)
        times = [predict_epoch(few, A100X4, parts).total for parts in (32, 128)]
        loads = [alpha[graph][alpha["parts"].index(parts)] for parts in (32, 128)]
        ours = f"{times[1] / times[0]:.2f}x, V_ori {loads[0]:g} to {loads[1]:g}"
        what = "time of 4x the chunks (32 to 128 in all), gcn"
        yield cell("Figure 10", what, graph, ours, SYSTEM, text["figure_10"])
    why = "every device gets an even part here, so that the prediction could only be 4x"
    yield cell("Figure 11", "1 to 4 GPUs", "all", "", "published", text["figure_11"], why)


# ----------------------------------------------------------------------------------------------- measured here


def from_results(found: Found) -> Cells:
    bench = found.get("bench", [])
    yield from table_5(bench)
    yield from preprocessing(found.get("preprocess", []))
    yield from figure_8(bench)
    yield from figure_9(bench)


def table_5(rows: list[dict[str, Any]]) -> Cells:
    """Epoch time in memory, against another in-memory system."""
    for row in rows:
        if "seconds" in row and (row["system"].startswith("pyg") or (row["strategy"] == "full" and not row["budget"])):
            what = f"epoch in memory, {row['model']}, {row['layers']} layers: {row['label']}"
            yield cell("Table 5", what, row["graph"], f"{row['seconds']:.3f} s", HERE)


def preprocessing(rows: list[dict[str, Any]]) -> Cells:
    """What preprocessing costs."""
    for row in rows:
        stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in row["stages"].items() if seconds >= 0.05)
        yield cell("Table 9", "preprocessing, by stage", row["graph"], stages, HERE)


def figure_8(rows: list[dict[str, Any]]) -> Cells:
    """Accuracy against time."""
    for row in rows:
        if row.get("curve"):
            last = row["curve"][-1]
            ours = f"{last['test']:.3f} after {last['epoch']} epochs, {last['seconds']:.1f} s"
            yield cell("Figure 8", f"test accuracy of {row['model']}: {row['label']}", row["graph"], ours, HERE)


def figure_9(rows: list[dict[str, Any]]) -> Cells:
    """Where an epoch goes, by phase."""
    for row in rows:
        if row["system"] == "hongtu" and row.get("strategy") in ("none", "p2p", "paper", "full") and "phases" in row:
            total = sum(row["phases"].values())
            parts = ", ".join(
                f"{name} {part / total:.0%}" for name, part in row["phases"].items() if part > total / 100
            )
            yield cell("Figure 9", f"phases of {row['model']}: {row['label']}", row["graph"], parts, HERE)


def partitioned(options: argparse.Namespace) -> Cells:
    """Table 3: alpha by number of parts; Table 8: duplicate accesses by kind, m = 4, n = 32; both in two levels."""
    graphs = [(generated(options.work, kind, options.vertices), False) for kind in ("citation", "rmat", "web")]
    arxiv = real_graph("ogbn-arxiv")
    for path, undirected in [*graphs, *([(arxiv, True)] if arxiv is not None else [])]:
        graph = read_graph(path, undirected)
        alphas = "  ".join(f"{parts}: {alpha:.2f}" for parts, alpha in replication(graph, 0).items())
        yield cell("Table 3", "alpha by parts", path.name, alphas, HERE)
        for order, shares in duplicates(graph, 0).items():
            saved = (shares["v_ori"] * shares[kind] for kind in ("between_devices", "between_batches"))
            ours = ", ".join(f"{rows:.2f}" for rows in (shares["v_ori"], *saved))
            what = f"V_ori, saved between GPUs, saved by reuse (over V), 128 chunks, {order} order"
            yield cell("Table 8", what, path.name, ours, HERE)


if __name__ == "__main__":
    main()

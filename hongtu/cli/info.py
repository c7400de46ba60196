"""``hongtu info ARTIFACT``: describe an artifact."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hongtu.errors import InputError
from hongtu.hardware import A100X4

if TYPE_CHECKING:
    from hongtu.graph.artifact import Artifact
    from hongtu.plan.execution import ExecutionPlan


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of the command."""
    parser.add_argument("artifact", metavar="ARTIFACT")
    parser.add_argument("--verify", action="store_true", help="read every array and compare its hash")
    parser.add_argument("--plot", metavar="FILE.svg", help="draw rows loaded against cache size")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> None:
    """Print the summary of an artifact."""
    from hongtu.graph.artifact import open_artifact

    if arguments.plot is not None:
        check_plot(arguments.plot)
    artifact = open_artifact(arguments.artifact, verify=arguments.verify)
    artifact.check_bounds()
    result = summary(artifact)
    if arguments.plot is not None:
        write_plot(arguments.plot, artifact)
    print(json.dumps(result) if arguments.json else table(result))


def summary(artifact: Artifact) -> dict[str, Any]:
    """The manifest without its array table, the bytes on disk, the rows that lookahead loads, and the seconds of a pass
    over rows as wide as the features, by the paper's Equation 4."""
    from hongtu.plan.report import lookahead_summary

    header = {key: value for key, value in artifact.manifest.items() if key != "arrays"}
    nbytes = sum(entry["bytes"] for entry in artifact.manifest["arrays"].values())
    beside = {"edge_features": artifact.edge_feature_width, "edge_types": artifact.num_edge_types}
    lookahead = lookahead_summary(artifact.topology)
    row, m = 4 * artifact.feature_width, artifact.topology.partitions
    seconds = {
        order: A100X4.equation4(rows["v_ori"], rows["v_p2p"], rows["v_ru"], row, m)
        for order, rows in artifact.manifest["volume"].items()
    }
    equation4 = {"hardware": A100X4.name, "row_bytes": row, "seconds": seconds}
    return {
        "path": str(artifact.path), **header, **beside, "bytes": nbytes, "lookahead": lookahead, "equation4": equation4
    }  # fmt: skip


def brief(info: dict[str, Any]) -> str:
    """What was written, and what comes next."""
    path, trains = info["path"], info["statistics"]["train"] or info["task"] == "links"
    use = f"Train it: `hongtu train {path}`" if trains else "Predict on it in Python: Trainer.load_weights, predict"
    following = f"{use}; what moves meanwhile: `hongtu info {path}`."
    return "\n".join([*_graph(info), "", following])


def table(info: dict[str, Any]) -> str:
    """The summary for people."""
    statistics, volumes = info.get("statistics", {}), info.get("volume", {})
    lines = [
        *_graph(info),
        f"  partition   {info.get('settings', {}).get('partitioner', '?')}: edge cut {statistics.get('edge_cut', 0):,} "
        f"({statistics.get('edge_cut', 0) / max(info['edges'], 1):.1%}), alpha {info.get('alpha', 0):.2f}, balance "
        + ", ".join(f"{k} {x:.3f}" for k, x in statistics.get("balance", {}).items())
        + "  (max/mean)",
        "",
        f"  {'rows per pass':<34}{'input order':>24}{'Algorithm 4':>24}",
    ]
    for key, label in (
        ("v_ori", "V_ori    every chunk brings all"),
        ("v_p2p", "V_+p2p   shared in a batch"),
        ("v_ru", "V_+ru    and kept for the next"),
        ("pulled", "pulled   from peers"),
    ):
        lines.append(f"  {label:<34}" + "".join(_rows(volumes, name, key, info["vertices"]) for name in _SCHEDULES))
    equation4 = info["equation4"]
    label = f"Equation 4, features, {equation4['hardware']}"
    lines.append(f"  {label:<34}" + "".join(f"{equation4['seconds'].get(name, 0):>22.4f} s" for name in _SCHEDULES))
    rows = info["lookahead"]
    lines += [
        f"  {label:<34}{_cell(rows[key], info['vertices'])}"
        for key, label in (
            ("rows", "lookahead, in input order's memory"),
            ("pulled", "pulled   from peers, by lookahead"),
            ("floor", "floor    every row read, once"),
        )
    ]
    return "\n".join(lines)


def _graph(info: dict[str, Any]) -> list[str]:
    """Lines on the graph and its chunks."""
    statistics = info.get("statistics", {})
    return [
        f"{info['path']}  ({info['bytes'] / 2**20:.1f} MiB, format version {info['version']})",
        f"  graph       {info['vertices']:,} vertices, {info['edges']:,} edges{_beside_edges(info)}",
        f"  data        {info['feature_width']} features{_sparse(info)}, {info['classes']} classes "
        f"({info.get('task', '?')}); "
        + ", ".join(f"{split} {statistics.get(split, 0):,}" for split in ("train", "val", "test")),
        f"  chunks      {info['partitions']} partitions x {info['chunks']} chunks",
        "  counted     "
        + ", ".join(
            f"{key.replace('_', ' ')} {statistics.get(key, 0):,}"
            for key in ("duplicate_edges", "self_loops", "isolated_vertices", "max_in_degree")
        ),
    ]


_SCHEDULES = ("input", "paper")


def _sparse(info: dict[str, Any]) -> str:
    numbers = info.get("sparse_numbers")
    return "" if numbers is None else f" (sparse, {numbers:,} numbers)"


def _beside_edges(info: dict[str, Any]) -> str:
    found = {
        "weighted": info.get("weighted"),
        f"{info['edge_features']} features": info["edge_features"],
        f"{info['edge_types']} types": info["edge_types"],
    }
    return "".join(f", {what}" for what, there in found.items() if there)


def _rows(volumes: dict[str, Any], schedule: str, key: str, vertices: int) -> str:
    rows = volumes.get(schedule, {}).get(key)
    return f"{'?':>24}" if rows is None else _cell(rows, vertices)


def _cell(rows: int, vertices: int) -> str:
    return f"{f'{rows:,} ({rows / vertices:.2f} |V|)':>24}"


def check_plot(file: str) -> None:
    """Refuse a plot file that cannot be written or would be no SVG."""
    from hongtu.plan.plot import require_matplotlib

    require_matplotlib()
    if not file.endswith(".svg") or not Path(file).parent.is_dir() or Path(file).is_dir():
        raise InputError(f"--plot {file}: expected a file ending in .svg, in a directory that exists")


def write_plot(file: str, artifact: Artifact, plan: ExecutionPlan | None = None) -> None:
    """Draw the rows that the artifact's schedules load, and those of a plan."""
    from hongtu.plan.report import traffic_chart

    title = f"{artifact.path.name}: rows loaded from the host"
    Path(file).write_text(traffic_chart(artifact.topology, title, plan), "utf-8")

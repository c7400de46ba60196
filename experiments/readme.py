"""Writes the README's measured numbers from the results that are committed; nobody types them.

    python -m experiments.readme [--check]

What stands between ``<!-- measured -->`` and ``<!-- /measured -->`` is replaced, and so is the ``table``.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hongtu.bench.records import BUSY, read
from hongtu.plan.passes.strategy import SAVINGS

ROOT = Path(__file__).resolve().parents[1]
README, RESULTS = ROOT / "README.md", ROOT / "experiments" / "results"
HELD_OUT = 12  # configurations, the fewest that say something
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 where the README differs")
    options = parser.parse_args()
    before = README.read_text()
    after = written(before, RESULTS)
    if options.check:
        sys.exit(before != after)
    README.write_text(after)


def written(text: str, results: Path) -> str:
    """A README with the numbers of some results."""
    bench = read(results / "bench" / "bench.jsonl")
    return _between(_between(text, "table", table(bench)), "measured", list(map(_item, lines(results))))


def _between(text: str, name: str, found: list[str]) -> str:
    head, begin, rest = text.partition(f"<!-- {name} -->\n")
    _, end, tail = rest.partition(f"<!-- /{name} -->\n")
    assert begin and end, f"README.md has no marker {name!r}"
    return head + begin + "\n".join(found) + "\n" + end + tail


def table(rows: list[Row]) -> list[str]:
    """Of the graph whose processes' memory was measured: the fastest epoch of each system, a model a line."""
    rows = [row for row in rows if "process_bytes" in row and row["others"] <= BUSY]
    found = ["| model | torch_geometric | DGL | hongtu | hongtu in a budget |", "|---|---|---|---|---|"]
    for what in dict.fromkeys((row["model"], row["layers"], row["hidden"]) for row in rows):
        own = [row for row in rows if (row["model"], row["layers"], row["hidden"]) == what]
        full = [row for row in own if row["strategy"] == "full"]
        cells = [
            *([row for row in own if row["system"] in names] for names in (("pyg", "pyg-csr"), ("dgl",))),
            *([row for row in full if (row["share"] is None) is free] for free in (True, False)),
        ]
        found.append(f"| {what[0]}, {what[1]} layers of {what[2]} | {' | '.join(map(_cell, cells))} |")
    return found


def _cell(rows: list[Row]) -> str:
    """Seconds, and the memory of the process or, in a budget, of the device."""
    if not rows:
        return "-"
    row = min(rows, key=_fastest)
    memory = f"{row['process_bytes'] / 2**30:.2f} GiB"
    if row["share"] is not None:
        memory = f"device {row['budget'] / 2**20:.0f} MiB ({row['share']:.0%})"
    return f"{_fastest(row):.2f} s, {memory}"


def _item(line: str) -> str:
    return textwrap.fill(line, 120, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of a straight line through the logarithms, by least squares.

    >>> round(exponent([1, 2, 4], [3, 6, 12]), 6)
    1.0
    """
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def largest_step(values: Sequence[float]) -> float:
    """The most that one value is over the one before it.

    >>> largest_step([1.0, 1.5, 1.2, 1.8])
    1.5
    """
    return max((after / before for before, after in itertools.pairwise(values)), default=1.0)


def lines(results: Path) -> list[str]:
    """One line per claim, each from the rows that show it."""
    claims = (
        ("bench/bench", systems), ("bench/budgets", budgets), ("bench/growth", growth), ("bench/estimator", estimator),
        ("ladder", ladder), ("rows_loaded", rows_loaded), ("bench/paper", paper), ("prune", prune),
        ("preprocess_rates", preprocess_rates),
    )  # fmt: skip
    return [line for name, say in claims if (rows := read(results / f"{name}.jsonl")) for line in say(rows)]


def systems(rows: list[Row]) -> list[str]:
    """In memory: ours over the fastest of torch_geometric's full-batch forms, and over DGL, by the fastest epoch of
    each, for what disturbs an epoch only adds to it; nothing where others took part of the machine."""
    found = []
    rows = [row for row in rows if "seconds" in row and row["others"] <= BUSY]
    for what in dict.fromkeys((row["graph"], row["model"], row["layers"], row["hidden"]) for row in rows):
        own = [row for row in rows if (row["graph"], row["model"], row["layers"], row["hidden"]) == what]
        ours = [row for row in own if row["strategy"] == "full" and row["budget"] is None]
        others = [row for row in own if row["system"] in ("pyg", "pyg-csr", "pyg-sparse")]
        if not ours or not others:
            continue
        best, seconds = min(others, key=_fastest), _fastest(ours[0])
        memory = ""
        if "process_bytes" in ours[0]:  # where each had a process of its own
            memory = f" and {ours[0]['process_bytes'] / best['process_bytes']:.2f}x the memory"
        form = "torch_geometric's fastest form" if len({row["system"] for row in others}) > 1 else "torch_geometric"
        text = (
            f"{what[0].removesuffix('.artifact')}, {what[1]}, {what[2]} layers of {what[3]}, no budget: "
            f"{seconds:.3f} s an epoch (the fastest). That is {seconds / _fastest(best):.2f}x the time{memory} of "
            f"{form} ({best['system']})"
        )
        by_system = {row["system"]: row for row in own}
        for system, other in (("dgl", "DGL"), ("dense", "the model's matrix products alone in torch")):
            if system in by_system:
                text += f", {seconds / _fastest(by_system[system]):.2f}x the time of {other}"
        for row in own:
            if row["strategy"] == "full" and row["share"] is not None:
                slower = _fastest(row) / seconds
                text += f". In {row['share']:.0%} of that device memory an epoch takes {slower:.2f}x as long"
        found.append(text + ".")
    return found


def _fastest(row: Row) -> float:
    return float(row["spread"][0])


def budgets(rows: list[Row]) -> list[str]:
    steps = []
    if any(row["others"] > BUSY for row in rows):
        return []
    for model in dict.fromkeys(row["model"] for row in rows):
        own = sorted((row for row in rows if row["model"] == model), key=lambda row: -row["share"])
        seconds = [row["seconds"] for row in own]
        steps.append(
            f"{seconds[-1] / seconds[0]:.2f}x with {model} (at most {largest_step(seconds):.2f}x from one to the next)"
        )
    shares = [f"{row['share']:.0%}" for row in rows if row["model"] == rows[0]["model"]]
    return [
        f"Budgets of {', '.join(shares)} of the device memory that a run takes without a limit: from the first to the "
        f"last the time of an epoch grows {', '.join(steps)}."
    ]


def growth(rows: list[Row]) -> list[str]:
    sizes = [row["vertices"] for row in rows]
    seconds, memory = (exponent(sizes, [row[key] for row in rows]) for key in ("seconds", "counted_bytes"))
    if any(row["others"] > BUSY for row in rows):
        return []
    return [
        f"From {sizes[0]:,} to {sizes[-1]:,} vertices (15 edges each), the time of an epoch grows with |V| to the "
        f"power of {seconds:.2f}, memory to the power of {memory:.2f}."
    ]


def estimator(rows: list[Row]) -> list[str]:
    """What was measured while other work took part of the machine says nothing about the prediction."""
    errors = sorted(abs(row["error"]) for row in rows if row["others"] <= BUSY)
    return [
        f"Seconds that `hongtu plan` predicts with a measured profile, for {len(errors)} random configurations that "
        f"the profile was not fitted to: median error {statistics.median(errors):.0%}, largest error {errors[-1]:.0%}."
    ] if len(errors) >= HELD_OUT else []  # fmt: skip


def ladder(rows: list[Row]) -> list[str]:
    """The last climb on ogbn-arxiv, two layers."""
    host = {row["rung"]: row["host_bytes"] for row in rows if row["graph"] == "ogbn-arxiv"}
    last, papers = host[f"+ {SAVINGS[-1]}"], host["+ reuse (paper)"]
    return [
        "Traffic between host and devices (ogbn-arxiv, undirected, gcn, 2 layers, 4 devices, the memory of the paper's "
        f"plan): {last / papers:.2f}x the bytes of the HongTu paper's method (`--strategy paper`), "
        f"{last / host['none']:.2f}x those of its baseline (`none`)."
    ]


def rows_loaded(rows: list[Row]) -> list[str]:
    ratios = [row["chosen"]["cpu"]["rows_ratio"] for row in rows]
    graphs = ", ".join(dict.fromkeys(row["graph"] for row in rows))
    return [
        f"Rows that a pass loads from the host with the planned cache: {min(ratios):.2f}x to {max(ratios):.2f}x those "
        f"of the paper's method ({graphs}; 1 and 4 devices)."
    ]


def paper(rows: list[Row]) -> list[str]:
    """The published seconds of a GCN of two layers on three large graphs, beside the predicted ones."""
    wanted = [row for row in rows if (row["table"], row["what"]) == ("Table 6", "epoch, gcn, 2 layers")]
    system, full = (
        [row for row in wanted if row["remark"].startswith(f"predicted for {name}")]
        for name in ("the published system", "full")
    )

    def listed(rows: list[Row], key: str) -> str:
        return " / ".join(row[key].split(" s")[0] for row in rows)

    return [
        f"Seconds per epoch of a 2-layer GCN on {listed(full, 'graph')} with the paper's four A100 GPUs: the paper "
        f"published {listed(full, 'published')}. `hongtu plan` predicts {listed(system, 'ours')} for the paper's "
        f"method and {listed(full, 'ours')} for hongtu's; neither was measured."
    ] if full else []  # fmt: skip


def prune(rows: list[Row]) -> list[str]:
    latest = {row["graph"]: row["pruned"] / row["whole"] for row in rows}
    each = ", ".join(f"{ratio:.2f}x ({graph})" for graph, ratio in latest.items())
    return [
        f"When {rows[0]['share']:.0%} of the vertices have labels, hongtu leaves out what the loss does not depend on "
        f"(`prune`): an epoch takes {each} of the time without that."
    ]


def preprocess_rates(rows: list[Row]) -> list[str]:
    """The whole command, of each partitioner and order the run that other work disturbed least."""
    quietest: dict[tuple[str, str], Row] = {}
    for row in rows:
        flags = row.get("flags", ["--features"])
        if "--features" not in flags:
            case = flags[flags.index("--partitioner") + 1], flags[flags.index("--order") + 1]
            quietest[case] = min(quietest.get(case, row), row, key=lambda found: found["load"][0])
    each = "; ".join(
        f"{partitioner}, {order} order {row['seconds']:.0f} s and {row['peak_bytes'] / 2**30:.1f} GiB"
        for (partitioner, order), row in quietest.items()
    )
    return [
        f"`hongtu preprocess` of {rows[0]['edges'] / 1e6:.0f}M edges and 64 features, by partitioner and order: {each}."
    ] if each else []  # fmt: skip


if __name__ == "__main__":
    main()

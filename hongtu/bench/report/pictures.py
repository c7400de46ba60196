"""Pictures of results, as SVG text: one function per picture. Needs matplotlib (``pip install 'hongtu[report]'``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hongtu.plan.plot import COLOURS, add_legend, make_figure, to_svg

Rows = Sequence[dict[str, Any]]
PHASES = ("load", "read", "topology", "pull", "compute", "push", "write", "flush", "idle")
PHASE_COLOURS = ("#0b62a4", "#5a9fd4", "#a8cbe8", "#7a3f9d", "#c4500b", "#b58bd0", "#8fbf9a", "#2a7d3f", "#9a9a9a")


def phases(rows: Rows) -> str:
    """Stacked bars: seconds of an epoch by phase, one bar per system that counts them."""
    rows = [row for row in rows if "phases" in row]
    figure, axes = make_figure(height=0.6 + 0.32 * len(rows))
    left = [0.0] * len(rows)
    for phase, colour in zip(PHASES, PHASE_COLOURS, strict=True):
        part = [row["phases"].get(phase, 0.0) for row in rows]
        axes.barh(range(len(rows)), part, left=left, color=colour, label=phase)
        left = [a + b for a, b in zip(left, part, strict=True)]
    axes.set_yticks(range(len(rows)), _names(rows))
    axes.invert_yaxis()
    axes.set_xlabel("seconds of one epoch")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), fontsize=8, ncols=5, frameon=False)
    return to_svg(figure)


def systems(rows: Rows) -> str:
    """Bars with their spread: seconds of an epoch of every system."""
    rows = [row for row in rows if "seconds" in row]
    seconds = [row["seconds"] for row in rows]
    around = [[s - row["spread"][0] for s, row in zip(seconds, rows)],
              [row["spread"][1] - s for s, row in zip(seconds, rows)]]  # fmt: skip
    return _bars(rows, seconds, "{:.3f}", "seconds of one epoch (median; whiskers: fastest and slowest)", around)


def memory(rows: Rows) -> str:
    """Bars: the highest resident set of every system that had a process of its own."""
    rows = [row for row in rows if row.get("process_bytes")]
    return _bars(rows, [row["process_bytes"] / 2**20 for row in rows], "{:,.0f}", "MiB of the process")


def _bars(rows: Rows, values: Sequence[float], form: str, what: str, around: Any = None) -> str:
    """A bar from zero for each row, with its number; ours in colour."""
    figure, axes = make_figure(height=0.6 + 0.3 * len(rows))
    colours = [COLOURS[0] if row["system"] == "hongtu" else "#8a8a8a" for row in rows]
    bars = axes.barh(range(len(rows)), values, xerr=around, color=colours, ecolor="#444444", capsize=2)
    axes.bar_label(bars, [form.format(value) for value in values], padding=4, fontsize=8)
    axes.set_yticks(range(len(rows)), _names(rows))
    axes.margins(x=0.12)
    axes.invert_yaxis()
    axes.set_xlabel(what)
    return to_svg(figure)


def _names(rows: Rows) -> list[str]:
    """What tells rows apart: the model and the system, and the graph where there are several."""
    graphs = {row["graph"] for row in rows}
    where = [f"{row['graph'].removesuffix('.artifact')}, " if len(graphs) > 1 else "" for row in rows]
    return [f"{place}{row['model']}: {row['label']}" for place, row in zip(where, rows, strict=True)]


def accuracy(rows: Rows) -> str:
    """Lines: validation accuracy against seconds trained."""
    figure, axes = make_figure()
    rows = [row for row in rows if row.get("curve")]
    for k, (row, name) in enumerate(zip(rows, _names(rows), strict=True)):
        points = [(point["seconds"], point.get("val")) for point in row["curve"]]
        points = [point for point in points if point[1] is not None]
        style = "-" if row["system"] == "hongtu" else "--"
        axes.plot(*zip(*points), style, marker=".", color=COLOURS[k % len(COLOURS)], label=name)
    axes.set(xlabel="seconds trained", ylabel="accuracy on the validation vertices")
    logarithmic(axes, "x")
    add_legend(axes)
    return to_svg(figure)


def run(rows: Rows) -> str:
    """Loss and, where a run was evaluated, accuracy against epochs."""
    figure, axes = make_figure()
    epochs = [row["epoch"] for row in rows]
    axes.plot(epochs, [row["loss"] for row in rows], color=COLOURS[0], label="loss")
    axes.set(xlabel="epoch", ylabel="loss")
    axes.xaxis.get_major_locator().set_params(integer=True)
    right = None
    for k, split in enumerate(("train", "val", "test"), start=1):
        points = [(row["epoch"], row["metrics"][split]) for row in rows if row["metrics"].get(split) is not None]
        if points:
            right = right or axes.twinx()
            right.plot(*zip(*points, strict=True), "--", marker=".", color=COLOURS[k], label=f"{split} (right)")
    if right is not None:
        right.set_ylabel("accuracy")
        add_legend(right)
    add_legend(axes)
    return to_svg(figure)


def logarithmic(axes: Any, which: str) -> None:
    """A logarithmic axis with plain numbers at 1, 2, 5, 10, ..."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set(**{f"{which}scale": "log"})
    axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(lambda number, _: f"{number:g}")
    axis.set_minor_formatter(NullFormatter())

"""Pictures of results, as SVG text: one function per picture. Needs matplotlib (``pip install 'hongtu[report]'``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hongtu.bench.report.growth import exponent
from hongtu.plan import plot
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


def ladder(rows: Rows) -> str:
    """Bars: bytes over the host link, rung by rung."""
    figure, axes = make_figure(height=3.6)
    axes.bar([row["rung"] for row in rows], [row["host_bytes"] / 2**20 for row in rows], color=COLOURS[0])
    axes.tick_params(axis="x", rotation=35)
    for label in axes.get_xticklabels():
        label.set_horizontalalignment("right")
    axes.set_ylabel("MiB over the host link per epoch")
    return to_svg(figure)


def traffic(rows: Rows) -> str:
    """Lines: rows loaded per pass against cache size."""
    return plot.traffic([row | {"label": f"{row['graph']}, {row['chunks']} chunks"} for row in rows])


def budgets(rows: Rows) -> str:
    """A line per model: seconds of an epoch against the share of memory that it was given."""
    figure, axes = make_figure()
    for k, model in enumerate(dict.fromkeys(row["model"] for row in rows)):
        own = sorted((row for row in rows if row["model"] == model), key=lambda row: -row["share"])
        shares, seconds = [100 * row["share"] for row in own], [row["seconds"] for row in own]
        axes.plot(shares, seconds, "o-", color=COLOURS[k], label=f"{model}, {own[0]['graph']}")
    axes.set_xscale("log")
    axes.set_xticks(shares, [f"{share:g}%" for share in shares])
    axes.minorticks_off()
    axes.invert_xaxis()
    axes.set(xlabel="device memory, of what is needed in memory", ylabel="seconds of one epoch", ylim=(0, None))
    add_legend(axes)
    return to_svg(figure)


def growth(rows: Rows) -> str:
    """Two log-log plots: seconds and bytes against the number of vertices, with their exponents."""
    figure, both = make_figure(height=3.4, panels=2)
    vertices = [row["vertices"] for row in rows]
    for axes, key, unit, scale in zip(both, ("seconds", "counted_bytes"), ("seconds", "GiB"), (1, 2**30), strict=True):
        values = [row[key] / scale for row in rows]
        slope = exponent(vertices, values)
        axes.loglog(vertices, values, "o", color=COLOURS[0])
        fitted = [values[0] * (v / vertices[0]) ** slope for v in vertices]
        axes.loglog(vertices, fitted, "-", color="#8a8a8a", label=f"exponent {slope:.3f}")
        axes.set_xticks(vertices, [f"{v / 1e6:g}M" for v in vertices])
        axes.minorticks_off()
        _logarithmic(axes, "y")
        what = f"{unit} of one epoch" if key == "seconds" else f"{unit}, peak"
        axes.set(xlabel="vertices (15 edges each)", ylabel=what)
        add_legend(axes)
    return to_svg(figure)


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
    _logarithmic(axes, "x")
    add_legend(axes)
    return to_svg(figure)


def estimates(rows: Rows) -> str:
    """Predicted against measured seconds, with the 15% band."""
    figure, axes = make_figure()
    measured, predicted = [row["seconds"] for row in rows], [row["predicted_seconds"] for row in rows]
    ends = [min(measured + predicted) / 1.3, max(measured + predicted) * 1.3]
    axes.fill_between(ends, [0.85 * x for x in ends], [1.15 * x for x in ends], color="#8a8a8a", alpha=0.3, label="15%")
    axes.loglog(ends, ends, color="#8a8a8a", linewidth=1)
    _logarithmic(axes, "x")
    _logarithmic(axes, "y")
    axes.loglog(measured, predicted, "o", color=COLOURS[0], label="held-out configurations")
    axes.set(xlabel="measured seconds of one epoch", ylabel="predicted", xlim=ends, ylim=ends)
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


def _logarithmic(axes: Any, which: str) -> None:
    """A logarithmic axis with plain numbers at 1, 2, 5, 10, ..."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set(**{f"{which}scale": "log"})
    axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(lambda number, _: f"{number:g}")
    axis.set_minor_formatter(NullFormatter())

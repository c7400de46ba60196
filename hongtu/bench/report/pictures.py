"""Pictures of results, as SVG text: one function per picture. Needs matplotlib (``pip install 'hongtu[report]'``)."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from typing import Any

from hongtu.bench.report.growth import exponent
from hongtu.errors import InputError
from hongtu.plan.plot import COLOURS

Rows = Sequence[dict[str, Any]]
PHASES = ("load", "read", "topology", "pull", "compute", "push", "write", "flush", "idle")
PHASE_COLOURS = ("#0b62a4", "#5a9fd4", "#a8cbe8", "#7a3f9d", "#c4500b", "#b58bd0", "#8fbf9a", "#2a7d3f", "#9a9a9a")


def require_matplotlib() -> None:
    """Refuse where there is none.

    Raises:
        InputError: with the pip line.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InputError("pictures need matplotlib: pip install 'hongtu[report]'") from None


def phases(rows: Rows) -> str:
    """Stacked bars: seconds of an epoch by phase, one bar per system that counts them."""
    rows = [row for row in rows if "phases" in row]
    figure, axes = _figure(height=0.6 + 0.32 * len(rows))
    left = [0.0] * len(rows)
    for phase, colour in zip(PHASES, PHASE_COLOURS, strict=True):
        part = [row["phases"].get(phase, 0.0) for row in rows]
        axes.barh(range(len(rows)), part, left=left, color=colour, label=phase)
        left = [a + b for a, b in zip(left, part, strict=True)]
    axes.set_yticks(range(len(rows)), _names(rows))
    axes.invert_yaxis()
    axes.set_xlabel("seconds of one epoch")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), fontsize=8, ncols=5, frameon=False)
    return _svg(figure)


def systems(rows: Rows) -> str:
    """Bars with their spread: seconds of an epoch of every system, on a logarithmic axis."""
    rows = [row for row in rows if "seconds" in row]
    figure, axes = _figure(height=0.6 + 0.3 * len(rows))
    seconds = [row["seconds"] for row in rows]
    around = [[s - row["spread"][0] for s, row in zip(seconds, rows)],
              [row["spread"][1] - s for s, row in zip(seconds, rows)]]  # fmt: skip
    colours = [COLOURS[0] if row["system"] == "hongtu" else "#8a8a8a" for row in rows]
    axes.barh(range(len(rows)), seconds, xerr=around, color=colours, ecolor="#444444", capsize=2)
    axes.set_yticks(range(len(rows)), _names(rows))
    _logarithmic(axes, "x")
    axes.invert_yaxis()
    axes.set_xlabel("seconds of one epoch (median; whiskers: fastest and slowest)")
    return _svg(figure)


def _names(rows: Rows) -> list[str]:
    """What tells rows apart: the model and the system, and the graph where there are several."""
    graphs = {row["graph"] for row in rows}
    where = [f"{row['graph'].removesuffix('.artifact')}, " if len(graphs) > 1 else "" for row in rows]
    return [f"{place}{row['model']}: {row['label']}" for place, row in zip(where, rows, strict=True)]


def ladder(rows: Rows) -> str:
    """Bars: bytes over the host link, rung by rung."""
    figure, axes = _figure(height=3.6)
    axes.bar([row["rung"] for row in rows], [row["host_bytes"] / 2**20 for row in rows], color=COLOURS[0])
    axes.tick_params(axis="x", rotation=35)
    for label in axes.get_xticklabels():
        label.set_horizontalalignment("right")
    axes.set_ylabel("MiB over the host link per epoch")
    return _svg(figure)


def traffic(rows: Rows) -> str:
    """Lines: rows loaded per pass against cache size; the paper's reuse as a mark."""
    figure, axes = _figure()
    for k, row in enumerate(rows):
        slots, loaded = zip(*row["curve"], strict=True)
        colour = COLOURS[k % len(COLOURS)]
        axes.plot(slots, loaded, color=colour, label=f"{row['graph']}, {row['chunks']} chunks: lookahead")
        axes.plot(*row["paper"], "o", color=colour, label="the paper's reuse")
        axes.axhline(row["floor"], color=colour, linestyle=":", linewidth=1)
    axes.set(xlabel="cache slots / |V|", ylabel="rows loaded per pass / |V|", ylim=(0, None))
    _legend(axes)
    return _svg(figure)


def budgets(rows: Rows) -> str:
    """A line per model: seconds of an epoch against the share of memory that it was given."""
    figure, axes = _figure()
    for k, model in enumerate(dict.fromkeys(row["model"] for row in rows)):
        own = sorted((row for row in rows if row["model"] == model), key=lambda row: -row["share"])
        shares, seconds = [100 * row["share"] for row in own], [row["seconds"] for row in own]
        axes.plot(shares, seconds, "o-", color=COLOURS[k], label=f"{model}, {own[0]['graph']}")
    axes.set_xscale("log")
    axes.set_xticks(shares, [f"{share:g}%" for share in shares])
    axes.minorticks_off()
    axes.invert_xaxis()
    axes.set(xlabel="device memory, of what is needed in memory", ylabel="seconds of one epoch", ylim=(0, None))
    _legend(axes)
    return _svg(figure)


def growth(rows: Rows) -> str:
    """Two log-log plots: seconds and bytes against the number of vertices, with their exponents."""
    import matplotlib.pyplot as plt

    _style()
    figure, both = plt.subplots(1, 2, figsize=(7.6, 3.4), layout="constrained")
    vertices = [row["vertices"] for row in rows]
    for axes, key, unit, scale in zip(both, ("seconds", "counted_bytes"), ("seconds", "GiB"), (1, 2**30), strict=True):
        values = [row[key] / scale for row in rows]
        slope = exponent(vertices, values)
        axes.loglog(vertices, values, "o", color=COLOURS[0])
        fitted = [values[0] * (v / vertices[0]) ** slope for v in vertices]
        axes.loglog(vertices, fitted, "-", color="#8a8a8a", label=f"exponent {slope:.3f}")
        axes.set_xticks(vertices, [f"{v / 1e6:g}M" for v in vertices])
        axes.minorticks_off()
        low = 10 ** math.floor(math.log10(min(values)))
        ticks = [low * f for f in (1, 2, 5, 10, 20, 50, 100) if min(values) / 1.5 <= low * f <= max(values) * 1.5]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set(
            xlabel="vertices (15 edges each)", ylabel=f"{unit} of one epoch" if key == "seconds" else f"{unit}, peak"
        )
        _legend(axes)
    return _svg(figure)


def accuracy(rows: Rows) -> str:
    """Lines: validation accuracy against seconds trained."""
    figure, axes = _figure()
    rows = [row for row in rows if row.get("curve")]
    for k, (row, name) in enumerate(zip(rows, _names(rows), strict=True)):
        points = [(point["seconds"], point.get("val")) for point in row["curve"]]
        points = [point for point in points if point[1] is not None]
        style = "-" if row["system"] == "hongtu" else "--"
        axes.plot(*zip(*points), style, marker=".", color=COLOURS[k % len(COLOURS)], label=name)
    axes.set(xlabel="seconds trained", ylabel="accuracy on the validation vertices")
    _logarithmic(axes, "x")
    _legend(axes)
    return _svg(figure)


def estimates(rows: Rows) -> str:
    """Predicted against measured seconds, with the 15% band."""
    figure, axes = _figure()
    measured, predicted = [row["seconds"] for row in rows], [row["predicted_seconds"] for row in rows]
    ends = [min(measured + predicted) / 1.3, max(measured + predicted) * 1.3]
    axes.fill_between(ends, [0.85 * x for x in ends], [1.15 * x for x in ends], color="#8a8a8a", alpha=0.3, label="15%")
    axes.loglog(ends, ends, color="#8a8a8a", linewidth=1)
    _logarithmic(axes, "x")
    _logarithmic(axes, "y")
    axes.loglog(measured, predicted, "o", color=COLOURS[0], label="held-out configurations")
    axes.set(xlabel="measured seconds of one epoch", ylabel="predicted", xlim=ends, ylim=ends)
    _legend(axes)
    return _svg(figure)


def run(rows: Rows) -> str:
    """Loss and, where a run was evaluated, accuracy against epochs."""
    figure, axes = _figure()
    epochs = [row["epoch"] for row in rows]
    axes.plot(epochs, [row["loss"] for row in rows], color=COLOURS[0], label="loss")
    axes.set(xlabel="epoch", ylabel="loss")
    right = None
    for k, split in enumerate(("train", "val", "test"), start=1):
        points = [(row["epoch"], row["metrics"][split]) for row in rows if row["metrics"].get(split) is not None]
        if points:
            right = right or axes.twinx()
            right.plot(*zip(*points, strict=True), "--", marker=".", color=COLOURS[k], label=f"{split} (right)")
    if right is not None:
        right.set_ylabel("accuracy")
        _legend(right)
    _legend(axes)
    return _svg(figure)


def _style() -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({
        "svg.fonttype": "none", "svg.hashsalt": "hongtu", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3,
        "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    })  # fmt: skip


def _figure(height: float = 3.8) -> tuple[Any, Any]:
    import matplotlib.pyplot as plt

    _style()
    return plt.subplots(figsize=(7.6, max(height, 1.6)), layout="constrained")


def _logarithmic(axes: Any, which: str) -> None:
    """A logarithmic axis with plain numbers at 1, 2, 5, 10, ..."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set(**{f"{which}scale": "log"})
    axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(lambda number, _: f"{number:g}")
    axis.set_minor_formatter(NullFormatter())


def _legend(axes: Any, columns: int = 2) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, ncols=columns, frameon=False)


def _svg(figure: Any) -> str:
    """Without the prologue, so that it can stand inside a page."""
    import matplotlib.pyplot as plt

    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    text = out.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)  # it names hosts
    return text[text.index("<svg") :]

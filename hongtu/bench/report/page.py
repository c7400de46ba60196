"""``report.html``: the results of a directory as one self-contained page. No script, nothing from elsewhere."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hongtu.bench.records import host_bytes, read
from hongtu.errors import InputError
from hongtu.files import read_json
from hongtu.metrics import summary_of
from hongtu.plan.plot import COLOURS, add_legend, make_figure, require_matplotlib, to_svg

Rows = Sequence[dict[str, Any]]
PHASES = ("load", "read", "topology", "pull", "compute", "push", "write", "flush", "idle")
PHASE_COLOURS = ("#0b62a4", "#5a9fd4", "#a8cbe8", "#7a3f9d", "#c4500b", "#b58bd0", "#8fbf9a", "#2a7d3f", "#9a9a9a")
MIB = 2**20
Row = dict[str, Any]
SYSTEM, REACHED = ("system", "{label}"), ("seconds to accuracy", "{reached}")
OTHERS = "taken by others", "{others:.0%}"
SECONDS = ("seconds", "{seconds:.3f}"), ("spread", "{spread[0]:.3f}\u00a0to\u00a0{spread[1]:.3f}"), OTHERS
LOSS, LINK = ("loss is the reference's", "{loss_agrees}"), ("MiB over the host link", "{link_bytes:,.0f}")
PROCESS = "{process_bytes:,.0f}"


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


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page.

    Attributes:
        name: of the experiment whose rows it shows.
        columns: heads of its table, and formats of what is below each, filled in from ``shown``.
        figures: what draws each from the rows, as SVG, and what stands under it.
        summary: a sentence on the rows.
        about: what the rows of one table have in common.
    """

    name: str
    heading: str
    intro: str
    columns: Sequence[tuple[str, str]]
    figures: Sequence[tuple[Callable[[Sequence[Row]], str], str]] = ()
    summary: Callable[[Sequence[Row]], str] | None = None
    about: Callable[[Row], str] = lambda row: ""


def model_of(row: Row) -> str:
    """What rows of one model have in common."""
    return f"{row['model']}, {row['layers']} layers, hidden {row['hidden']}"


def graph_and_model(row: Row) -> str:
    """What rows of one model on one graph have in common."""
    return f"{row['graph'].removesuffix('.artifact')}, {model_of(row)}"


def _systems_summary(rows: Sequence[Row]) -> str:
    found = [bool(row["loss_agrees"]) for row in rows if row["system"] != "dense"]
    return f"Losses equal the reference's for {sum(found)} of {len(found)} systems that have one."


BENCH = Section(
    name="bench",
    heading="Epoch time and memory",
    intro="All systems train from the same parameters; epochs are timed in turns. Before that, the losses of each "
    "one's first epochs must be the reference's. Memory, where a system has a process of its own, is the highest "
    "resident set above that of the imports.",
    columns=(
        SYSTEM, *SECONDS, LOSS, ("MiB", PROCESS), LINK, ("counted = predicted", "{counted_is_predicted}"), REACHED
    ),
    figures=(
        (systems, "Seconds of an epoch by system"),
        (memory, "Memory by system"),
        (phases, "Where ours spends an epoch, by phase; on the CPU a flush is the host's accumulation"),
    ),
    summary=_systems_summary,
    about=graph_and_model,
)  # fmt: skip
ACCURACY = Section(
    name="accuracy",
    heading="Accuracy against time",
    intro="Every system from the same parameters, scored on the way; scoring is not timed.",
    columns=(SYSTEM, REACHED, ("last val", "{last[val]:.4f}"), ("last test", "{last[test]:.4f}")),
    figures=((accuracy, "Accuracy on the validation vertices against seconds trained"),),
    about=graph_and_model,
)
RUN = Section(
    name="run",
    heading="A run",
    intro="Loss and scores of the epochs that were evaluated, and what each took.",
    columns=(
        ("epoch", "{epoch}"), ("loss", "{loss:.4f}"), ("seconds", "{seconds:.3f}"),
        *((split, f"{{metrics[{split}]:.4f}}") for split in ("train", "val", "test")),
        ("MiB of the largest device", "{device_peak:,.1f}"), LINK,
    ),
    figures=((run, "Loss and accuracy against epochs"),),
)  # fmt: skip
SECTIONS = BENCH, ACCURACY, RUN


def collect(path: Path, sections: Sequence[Section] = SECTIONS) -> dict[str, list[Row]]:
    """Rows by experiment, of a file or of every ``*.jsonl`` of a directory; a run's epochs are the experiment "run".

    Args:
        sections: that there are; rows of others are left out.

    Raises:
        InputError: where there are none.
    """
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    found: dict[str, list[Row]] = {}
    for file in files:
        for row in read(file):
            run = {"epoch", "loss", "metrics"} <= row.keys()
            if run and summary_of(row) is None:
                raise InputError(f"{file}: a line is no epoch's of a run ({reprlib.repr(row)}); remove it")
            found.setdefault("run" if run else str(row.get("experiment")), []).append(row)
    found["accuracy"] = [row for row in found.get("bench", ()) if row.get("curve")]
    known = {section.name: rows for section in sections if (rows := found.get(section.name))}
    if not known:
        raise InputError(f"{path}: no results; expected what `hongtu bench --out` or `hongtu train --run` wrote")
    return known


def settings_of(path: Path) -> Row:
    """What a run was told, where it was the command line that began it; settings that are not set are left out, and
    loggers, whose arguments may be secrets."""
    file = path / "options.json"
    found = read_json(file, "restore it, or remove it") if file.is_file() else {}
    if not isinstance(found, dict):
        raise InputError(f"{file}: not the options of a run ({type(found).__name__}); restore it, or remove it")
    return {name: value for name, value in found.items() if value not in (None, "", [], False) and name != "loggers"}


def render(
    results: dict[str, list[Row]], title: str, settings: Row | None = None, sections: Sequence[Section] = SECTIONS
) -> str:
    """The page: ``page.html``, filled in; ``settings`` are those of a run."""
    from jinja2 import Environment, FileSystemLoader

    require_matplotlib()
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True)
    environment.filters |= {"shown": shown, "cell": _cell, "listed": _listed, "tables": _tables}
    return environment.get_template("page.html").render(
        title=title,
        results=results,
        settings=settings,
        about=next((row for rows in results.values() for row in rows if "processor" in row), None),
        sections=sections,
    )


def shown(row: Row) -> Row:
    """A row for its table: without what is not known, bytes in MiB, and what takes more than a format."""
    found = {name: value for name, value in row.items() if value is not None}
    for name in found.keys() & {"budget", "counted_bytes", "process_bytes", "host_bytes"}:
        found[name] /= MIB
    for name in found.keys() & {"loss_agrees", "counted_is_predicted"}:
        found[name] = "yes" if found[name] else "no"
    if "bytes" in found:
        found["link_bytes"] = host_bytes(found["bytes"]) / MIB
    if "peak_bytes" in found:
        devices = [count for memory, count in found["peak_bytes"].items() if memory.startswith("device")]
        found["device_peak"] = max(devices, default=0) / MIB
    curve = found.get("curve")
    if curve and isinstance(curve[-1], dict):
        found |= {"last": curve[-1], "reached": _reached(curve)}
    return found


def _listed(rows: Sequence[Row]) -> Sequence[Row]:
    """Of a run's epochs those that were evaluated, where there are some; of others all."""
    return [row for row in rows if row.get("metrics")] or rows


def _tables(rows: Sequence[Row], about: Callable[[Row], str]) -> list[tuple[str, list[Row]]]:
    """What the rows of each table have in common, and they."""
    tables: dict[str, list[Row]] = {}
    for row in rows:
        tables.setdefault(about(row), []).append(row)
    return list(tables.items())


def _cell(row: Row, form: str) -> str:
    """A format with a row's values; nothing where one is not known."""
    try:
        return form.format(**row)
    except (KeyError, TypeError):
        return ""


def _reached(curve: Sequence[Row]) -> str:
    """Seconds to 99% of the best validation accuracy of the curve."""
    scores = [(point["seconds"], point["val"]) for point in curve if point.get("val") is not None]
    if not scores:
        return ""
    goal = 0.99 * max(score for _, score in scores)
    return f"{next(seconds for seconds, score in scores if score >= goal):.2f} (to {goal:.3f})"

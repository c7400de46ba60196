"""``report.html``: the results of a directory as one self-contained page. No script, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hongtu.bench.host_load import BUSY
from hongtu.bench.records import read
from hongtu.bench.report import pictures
from hongtu.bench.report.growth import exponent, largest_step
from hongtu.bench.report.text import host_bytes
from hongtu.errors import InputError
from hongtu.files import read_json
from hongtu.plan.plot import require_matplotlib

MIB = 2**20
Row = dict[str, Any]
EXPERIMENTS = ("bench", "accuracy", "ladder", "traffic", "budgets", "growth", "estimator", "paper", "run")


def collect(path: Path) -> dict[str, list[Row]]:
    """Rows by experiment, of a file or of every ``*.jsonl`` of a directory; a run's epochs are the experiment "run".

    Raises:
        InputError: where there are none.
    """
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    found: dict[str, list[Row]] = {}
    for file in files:
        for row in read(file):
            run = {"epoch", "loss", "metrics"} <= row.keys()
            found.setdefault("run" if run else str(row.get("experiment")), []).append(row)
    found["accuracy"] = [row for row in found.get("bench", ()) if row.get("curve")]
    known = {name: rows for name, rows in found.items() if rows and name in EXPERIMENTS}
    if not known:
        raise InputError(
            f"{path}: no results; expected what `hongtu bench --out`, `make bench` or `hongtu train --run` wrote"
        )
    return known


def settings_of(path: Path) -> Row:
    """What a run was told, where it was the command line that began it; settings that are not set are left out, and
    loggers, whose arguments may be secrets."""
    file = path / "options.json"
    found = read_json(file, "restore it, or remove it") if file.is_file() else {}
    if not isinstance(found, dict):
        raise InputError(f"{file}: not the options of a run ({type(found).__name__}); restore it, or remove it")
    return {name: value for name, value in found.items() if value not in (None, "", [], False) and name != "loggers"}


def render(results: dict[str, list[Row]], title: str, settings: Row | None = None) -> str:
    """The page: ``page.html``, filled in; ``settings`` are those of a run."""
    from jinja2 import Environment, FileSystemLoader
    from markupsafe import Markup

    require_matplotlib()
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True)
    environment.filters |= {"shown": shown, "cell": _cell, "listed": _listed, "tables": _tables}
    return environment.get_template("page.html").render(
        title=title,
        results=results,
        settings=settings,
        about=next((row for rows in results.values() for row in rows if "processor" in row), None),
        summaries=SUMMARIES,
        draw=lambda picture, rows: Markup(getattr(pictures, picture)(rows)),
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


def _tables(rows: Sequence[Row], experiment: str) -> list[tuple[str, list[Row]]]:
    """Rows of one table each, and what they have in common: the model, and for systems and budgets the graph."""
    tables: dict[str, list[Row]] = {}
    for row in rows:
        about = ""
        if experiment in ("bench", "accuracy", "budgets", "growth"):
            where = "" if experiment == "growth" else f"{row['graph'].removesuffix('.artifact')}, "
            about = f"{where}{row['model']}, {row['layers']} layers, hidden {row['hidden']}"
        tables.setdefault(about, []).append(row)
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


def _growth_summary(rows: Sequence[Row]) -> str:
    vertices = [row["vertices"] for row in rows]
    seconds, memory = (exponent(vertices, [row[key] for row in rows]) for key in ("seconds", "counted_bytes"))
    disturbed = sum(row["others"] > BUSY for row in rows)
    more = f" Other work disturbed {disturbed} of {len(rows)} sizes." if disturbed else ""
    return f"Epoch time grows with |V| to the power of {seconds:.3f}, peak memory to the power of {memory:.3f}.{more}"


def _budget_summary(rows: Sequence[Row]) -> str:
    steps = []
    for model in dict.fromkeys(row["model"] for row in rows):
        own = sorted((row for row in rows if row["model"] == model), key=lambda row: -row["share"])
        steps.append(f"{model} {largest_step([row['seconds'] for row in own]):.2f}x")
    return f"The largest step from one budget to the next smaller one: {', '.join(steps)}."


def _estimate_summary(rows: Sequence[Row]) -> str:
    quiet = [abs(row["error"]) for row in rows if row["others"] <= BUSY]
    if not quiet:
        return "Other work took part of the machine in every measurement: nothing can be said."
    disturbed = f" Other work disturbed {len(rows) - len(quiet)} more." if len(quiet) < len(rows) else ""
    return (
        f"Largest error on {len(quiet)} configurations that the profile has not seen, drawn at random on generated "
        f"graphs: {max(quiet):.1%}.{disturbed}"
    )


def _systems_summary(rows: Sequence[Row]) -> str:
    found = [bool(row["loss_agrees"]) for row in rows if row["system"] != "dense"]
    return f"Losses equal the reference's for {sum(found)} of {len(found)} systems that have one."


SUMMARIES = {
    "bench": _systems_summary,
    "budgets": _budget_summary,
    "growth": _growth_summary,
    "estimator": _estimate_summary,
}

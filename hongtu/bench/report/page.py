"""``report.html``: the results of a directory as one self-contained page. No script, nothing from elsewhere."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hongtu.bench.host_load import BUSY
from hongtu.bench.records import read
from hongtu.bench.report import pictures
from hongtu.bench.report.growth import exponent, largest_step
from hongtu.bench.report.text import host_bytes
from hongtu.errors import InputError

MIB = 2**20
Row = dict[str, Any]
Columns = Sequence[tuple[str, Callable[[Row], str]]]

STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #ffffff; --line: #d0d0d0; --soft: #5a5a5a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --paper: #16181b; --line: #3c4046; --soft: #a8a8a8; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 62rem;
  margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
p, figcaption { max-width: 48rem; } figcaption, .about { color: var(--soft); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding: 0.3rem 0; }
th, td { padding: 0.25rem 0.7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 1rem 0; } figure svg { max-width: 100%; height: auto; background: #ffffff; border-radius: 4px; }
.bad { color: #b3243d; font-weight: bold; } nav a { margin-right: 1rem; }
"""


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        experiment: the rows that it shows: those whose "experiment" this is.
        intro: what was measured, and how to read it.
        columns: of its table.
        picture: of all of its rows, with the text that stands in for it; None: only the table.
        summary: a sentence that the rows decide.
    """

    experiment: str
    title: str
    intro: str
    columns: Columns
    figures: Sequence[tuple[Callable[[Sequence[Row]], str], str]] = ()
    summary: Callable[[Sequence[Row]], str] | None = None


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
    known = {name: rows for name, rows in found.items() if rows and any(s.experiment == name for s in SECTIONS)}
    if not known:
        raise InputError(
            f"{path}: no results; expected what `hongtu bench --out`, `make bench` or `hongtu train --run` wrote"
        )
    return known


def render(results: dict[str, list[Row]], title: str) -> str:
    """The page."""
    pictures.require_matplotlib()
    shown = [section for section in SECTIONS if section.experiment in results]
    links = " ".join(f'<a href="#{s.experiment}">{html.escape(s.title)}</a>' for s in shown)
    parts = [_section(section, results[section.experiment]) for section in shown]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<header>"
        f'<h1>{html.escape(title)}</h1>\n{_about(results)}</header>\n<nav aria-label="Sections">{links}</nav>\n'
        f"<main>\n{''.join(parts)}</main>\n</body>\n</html>\n"
    )


def _about(results: dict[str, list[Row]]) -> str:
    row = next((row for rows in results.values() for row in rows if "processor" in row), None)
    if row is None:
        return ""
    text = f"{row['cores']} cores of {row['processor']}, Python {row['python']}, torch {row['torch']}"
    if row.get("torch_geometric"):
        text += f", torch_geometric {row['torch_geometric']}"
    return f'<p class="about">{html.escape(text)}, hongtu {html.escape(row["hongtu"])}</p>\n'


def _section(section: Section, rows: Sequence[Row]) -> str:
    parts = [f'<section id="{section.experiment}">\n<h2>{html.escape(section.title)}</h2>\n<p>{section.intro}</p>\n']
    if section.summary is not None:
        parts.append(f"<p><strong>{html.escape(section.summary(rows))}</strong></p>\n")
    for draw, caption in section.figures:
        svg = draw(rows).replace("<svg ", f'<svg role="img" aria-label="{html.escape(caption)}" ', 1)
        parts.append(f"<figure>{svg}<figcaption>{html.escape(caption)}</figcaption></figure>\n")
    parts.append(_table(section, rows))
    commands = dict.fromkeys(row["command"] for row in rows if "command" in row)
    if commands:
        listed = "\n".join(html.escape(command) for command in commands)
        parts.append(f"<details><summary>Commands</summary><pre>{listed}</pre></details>\n")
    return "".join([*parts, "</section>\n"])


def _table(section: Section, rows: Sequence[Row]) -> str:
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name, _ in section.columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{_cell(text, row)}</td>' for _, text in section.columns)}</tr>\n" for row in rows
    )
    caption = f"<caption>{html.escape(section.title)}: {len(rows)} rows</caption>"
    return f'<div class="wide"><table>{caption}<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>\n'


def _cell(text: Callable[[Row], str], row: Row) -> str:
    found = html.escape(text(row))
    return f'<span class="bad">{found}</span>' if found == "no" else found


def value(key: str, form: str = "{}", scale: float = 1.0) -> Callable[[Row], str]:
    """How a number of a row is written; nothing where there is none."""

    def text(row: Row) -> str:
        found = row.get(key)
        if found is None:
            return ""
        return form.format(found / scale if isinstance(found, int | float) and scale != 1 else found)

    return text


def _spread(row: Row) -> str:
    return "{:.3f} to {:.3f}".format(*row["spread"]) if "spread" in row else ""


def _yes(key: str) -> Callable[[Row], str]:
    return lambda row: "" if row.get(key) is None else "yes" if row[key] else "no"


def _host(row: Row) -> str:
    return f"{host_bytes(row['bytes']) / MIB:,.0f}" if "bytes" in row else ""


def _reached(row: Row) -> str:
    """Seconds to 99% of the best validation accuracy of its own curve."""
    scores = [(point["seconds"], point["val"]) for point in row.get("curve", ()) if point.get("val") is not None]
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


MODEL: Columns = (("model", value("model")), ("layers", value("layers")), ("hidden", value("hidden")))
SECONDS: Columns = (
    ("seconds", value("seconds", "{:.3f}")),
    ("spread", _spread),
    ("taken by others", value("others", "{:.0%}")),
)
SECTIONS = (
    Section(
        "bench",
        "Epoch time and memory",
        "All systems train from the same parameters; epochs are timed in turns. Before that, the losses of each "
        "one&#39;s first epochs must be the reference&#39;s. Memory, where a system has a process of its own, is the "
        "highest resident set above that of the imports.",
        (("system", lambda row: f"{row['graph']}, {row['model']}: {row['label']}"), *MODEL[1:], *SECONDS,
         ("loss is the reference's", _yes("loss_agrees")), ("MiB", value("process_bytes", "{:,.0f}", MIB)),
         ("MiB over the host link", _host), ("counted = predicted", _yes("counted_is_predicted")),
         ("seconds to accuracy", _reached)),
        ((pictures.systems, "Seconds of an epoch by system"),
         (pictures.phases, "Where ours spends an epoch, by phase; on the CPU a flush is the host's accumulation")),
        _systems_summary,
    ),
    Section(
        "accuracy",
        "Accuracy against time",
        "Every system from the same parameters, scored on the way; scoring is not timed.",
        (("system", lambda row: f"{row['graph']}, {row['model']}: {row['label']}"),
         ("seconds to accuracy", _reached), ("last val", lambda row: f"{row['curve'][-1]['val']:.4f}"),
         ("last test", lambda row: f"{row['curve'][-1]['test']:.4f}")),
        ((pictures.accuracy, "Accuracy on the validation vertices against seconds trained"),),
    ),
    Section(
        "ladder",
        "What each saving removes",
        "Bytes over the host link per epoch, from the paper&#39;s baseline through each saving on top of those before, "
        "in the device memory that the paper&#39;s plan takes.",
        (("rung", value("rung")), ("graph", value("graph")), ("host MiB", value("host_bytes", "{:,.1f}", MIB)),
         ("seconds", value("seconds", "{:.3f}"))),
        ((pictures.ladder, "Bytes over the host link, saving by saving"),),
    ),
    Section(
        "traffic",
        "Rows loaded against cache size",
        "Rows of one pass that come from the host, over the number of vertices, for every cache size; dotted: every "
        "row that is read, once.",
        (("graph", value("graph")), ("chunks", value("chunks")),
         ("paper: slots / |V|, rows / |V|", lambda row: "{:.2f}, {:.2f}".format(*row["paper"])),
         ("lookahead there", value("lookahead", "{:.2f}")), ("floor", value("floor", "{:.2f}"))),
        ((pictures.traffic, "Rows loaded per pass against cache slots"),),
    ),
    Section(
        "budgets",
        "Time against budget",
        "The same training in ever smaller device memory, as shares of what hongtu needs when nothing limits it.",
        (("memory", value("share", "{:.0%}")), *MODEL, *SECONDS, ("MiB", value("budget", "{:,.1f}", MIB)),
         ("MiB over the host link", _host), ("loss is the reference's", _yes("loss_agrees"))),
        ((pictures.budgets, "Seconds of an epoch against device memory"),),
        _budget_summary,
    ),
    Section(
        "growth",
        "Growth",
        "Generated citation graphs with 15 edges a vertex, one chunk per so many vertices, without a limit. Memory is "
        "what the run counts, host and device; the process holds some 200 MiB of compiled code beside it.",
        (("vertices", value("vertices", "{:,}")), ("edges", value("edges", "{:,}")), ("chunks", value("chunks")),
         *MODEL, *SECONDS, ("MiB counted", value("counted_bytes", "{:,.0f}", MIB)),
         ("MiB of the process", value("process_bytes", "{:,.0f}", MIB)),
         ("loss is the reference's", _yes("loss_agrees"))),
        ((pictures.growth, "Seconds of an epoch and peak memory against the number of vertices"),),
        _growth_summary,
    ),
    Section(
        "estimator",
        "Predicted and measured seconds",
        "The profile is measured on this machine (<code>hongtu doctor --measure</code>) and has seen none of these "
        "graphs, models and budgets.",
        (("configuration", value("label")), ("measured", value("seconds", "{:.3f}")),
         ("predicted", value("predicted_seconds", "{:.3f}")), ("error", value("error", "{:+.1%}")),
         ("taken by others", value("others", "{:.0%}"))),
        ((pictures.estimates, "Predicted against measured seconds of an epoch"),),
        _estimate_summary,
    ),
    Section(
        "paper",
        "The paper, table by table",
        "The forms of the HongTu paper&#39;s tables and figures on our graphs. A published number stands beside ours "
        "only where it is known for sure; an empty cell says that it is not at hand.",
        (("table", value("table")), ("what", value("what")), ("graph", value("graph")), ("ours", value("ours")),
         ("published", value("published")), ("source or remark", value("remark"))),
    ),
    Section(
        "run",
        "A run",
        "Loss and scores by epoch.",
        (("epoch", lambda row: str(row["epoch"])), ("loss", value("loss", "{:.4f}")),
         ("seconds", value("seconds", "{:.3f}")),
         ("val", lambda row: "" if row["metrics"].get("val") is None else f"{row['metrics']['val']:.4f}")),
        ((pictures.run, "Loss and accuracy against epochs"),),
    ),
)  # fmt: skip

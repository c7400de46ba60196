"""The page about what ``make bench`` measures: that of ``hongtu report``, with a section for each experiment.

python -m experiments.page DIR -o FILE.html [--title TITLE]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments import readme
from hongtu.bench.report import page as report
from hongtu.plan import plot
from hongtu.plan.plot import COLOURS, add_legend, make_figure, to_svg

Rows = Sequence[dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="directory with JSON lines")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--title", default="hongtu, measured")
    options = parser.parse_args()
    results = with_budgets(report.collect(options.results, SECTIONS))
    options.out.write_text(
        report.render(results, options.title, report.settings_of(options.results), SECTIONS), "utf-8"
    )
    print(f"{options.out}: {', '.join(f'{len(rows)} rows of {name}' for name, rows in results.items())}")


def with_budgets(results: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """Rows of a model that `hongtu bench` ran in shares of its memory alone are those of a section of their own."""
    rows = results.get("bench", [])
    others = {report.graph_and_model(row) for row in rows if row.get("share") is None}
    budgets = [row for row in rows if report.graph_and_model(row) not in others]
    kept = {"bench": [row for row in rows if row not in budgets], "budgets": results.get("budgets", []) + budgets}
    return {name: found for name, found in (results | kept).items() if found}


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
        slope = readme.exponent(vertices, values)
        axes.loglog(vertices, values, "o", color=COLOURS[0])
        fitted = [values[0] * (v / vertices[0]) ** slope for v in vertices]
        axes.loglog(vertices, fitted, "-", color="#8a8a8a", label=f"exponent {slope:.3f}")
        axes.set_xticks(vertices, [f"{v / 1e6:g}M" for v in vertices])
        axes.minorticks_off()
        report.logarithmic(axes, "y")
        what = f"{unit} of one epoch" if key == "seconds" else f"{unit}, peak"
        axes.set(xlabel="vertices (15 edges each)", ylabel=what)
        add_legend(axes)
    return to_svg(figure)


def estimates(rows: Rows) -> str:
    """Predicted against measured seconds, with the 15% band."""
    figure, axes = make_figure()
    measured, predicted = [row["seconds"] for row in rows], [row["predicted_seconds"] for row in rows]
    ends = [min(measured + predicted) / 1.3, max(measured + predicted) * 1.3]
    axes.fill_between(ends, [0.85 * x for x in ends], [1.15 * x for x in ends], color="#8a8a8a", alpha=0.3, label="15%")
    axes.loglog(ends, ends, color="#8a8a8a", linewidth=1)
    report.logarithmic(axes, "x")
    report.logarithmic(axes, "y")
    axes.loglog(measured, predicted, "o", color=COLOURS[0], label="held-out configurations")
    axes.set(xlabel="measured seconds of one epoch", ylabel="predicted", xlim=ends, ylim=ends)
    add_legend(axes)
    return to_svg(figure)


def said(say: Callable[[list[dict[str, Any]]], list[str]]) -> Callable[[Rows], str]:
    """What the README says of the rows, if anything."""
    nothing = "Nothing can be said: other work took part of the machine, or there are too few rows."
    return lambda rows: " ".join(say([*rows])) or nothing


SECTIONS = (
    report.BENCH,
    report.ACCURACY,
    report.Section(
        name="ladder",
        heading="What each saving removes",
        intro="Bytes over the host link per epoch, from the paper's baseline through each saving on top of those "
        "before, in the device memory that the paper's plan takes.",
        columns=(
            ("rung", "{rung}"), ("graph", "{graph}"), ("host MiB", "{host_bytes:,.1f}"), ("seconds", "{seconds:.3f}")
        ),
        figures=((ladder, "Bytes over the host link, saving by saving"),),
    ),
    report.Section(
        name="traffic",
        heading="Rows loaded against cache size",
        intro="Rows of one pass that come from the host, over the number of vertices, for every cache size; dotted: "
        "every row that is read, once.",
        columns=(
            ("graph", "{graph}"), ("chunks", "{chunks}"),
            ("paper: slots / |V|, rows / |V|", "{paper[0]:.2f}, {paper[1]:.2f}"),
            ("lookahead there", "{lookahead:.2f}"), ("floor", "{floor:.2f}"),
        ),
        figures=((traffic, "Rows loaded per pass against cache slots"),),
    ),
    report.Section(
        name="budgets",
        heading="Time against budget",
        intro="The same training in ever smaller device memory, as shares of what hongtu needs when nothing limits it.",
        columns=(("memory", "{share:.0%}"), *report.SECONDS, ("MiB", "{budget:,.1f}"), report.LINK, report.LOSS),
        figures=((budgets, "Seconds of an epoch against device memory"),),
        summary=said(readme.budgets),
        about=report.graph_and_model,
    ),
    report.Section(
        name="growth",
        heading="Growth",
        intro="Generated citation graphs with 15 edges a vertex, one chunk per so many vertices, without a limit. "
        "Memory is what the run counts, host and device; the process holds some 200 MiB of compiled code beside it.",
        columns=(
            ("vertices", "{vertices:,}"), ("edges", "{edges:,}"), ("chunks", "{chunks}"), *report.SECONDS,
            ("MiB counted", "{counted_bytes:,.0f}"), ("MiB of the process", report.PROCESS), report.LOSS,
        ),
        figures=((growth, "Seconds of an epoch and peak memory against the number of vertices"),),
        summary=said(readme.growth),
        about=report.model_of,
    ),
    report.Section(
        name="estimator",
        heading="Predicted and measured seconds",
        intro="The profile is measured on this machine (hongtu doctor --measure) and has seen none of these graphs, "
        "models and budgets.",
        columns=(
            ("configuration", "{label}"), ("measured", "{seconds:.3f}"), ("predicted", "{predicted_seconds:.3f}"),
            ("error", "{error:+.1%}"), report.OTHERS,
        ),
        figures=((estimates, "Predicted against measured seconds of an epoch"),),
        summary=said(readme.estimator),
    ),
    report.Section(
        name="paper",
        heading="The paper, table by table",
        intro="The forms of the HongTu paper's tables and figures on our graphs. A published number stands beside ours "
        "only where it is known for sure; an empty cell says that it is not at hand.",
        columns=(
            ("table", "{table}"), ("what", "{what}"), ("graph", "{graph}"), ("ours", "{ours}"),
            ("published", "{published}"), ("source or remark", "{remark}"),
        ),
    ),
    report.RUN,
)  # fmt: skip


if __name__ == "__main__":
    main()

"""The page about what ``make bench`` measures: that of ``hongtu report``, with a section for each experiment.

python -m experiments.page DIR -o FILE.html [--title TITLE]
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hongtu.bench.records import BUSY
from hongtu.bench.report.page import (
    ACCURACY,
    BENCH,
    LINK,
    LOSS,
    OTHERS,
    PROCESS,
    RUN,
    SECONDS,
    Section,
    collect,
    graph_and_model,
    logarithmic,
    model_of,
    render,
    settings_of,
)
from hongtu.plan import plot
from hongtu.plan.plot import COLOURS, add_legend, make_figure, to_svg

Rows = Sequence[dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="directory with JSON lines")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--title", default="hongtu, measured")
    options = parser.parse_args()
    results = with_budgets(collect(options.results, SECTIONS))
    options.out.write_text(render(results, options.title, settings_of(options.results), SECTIONS), "utf-8")
    print(f"{options.out}: {', '.join(f'{len(rows)} rows of {name}' for name, rows in results.items())}")


def with_budgets(results: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """Rows of a model that `hongtu bench` ran in shares of its memory alone are those of a section of their own."""
    rows = results.get("bench", [])
    others = {graph_and_model(row) for row in rows if row.get("share") is None}
    budgets = [row for row in rows if graph_and_model(row) not in others]
    kept = {"bench": [row for row in rows if row not in budgets], "budgets": results.get("budgets", []) + budgets}
    return {name: found for name, found in (results | kept).items() if found}


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
        logarithmic(axes, "y")
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
    logarithmic(axes, "x")
    logarithmic(axes, "y")
    axes.loglog(measured, predicted, "o", color=COLOURS[0], label="held-out configurations")
    axes.set(xlabel="measured seconds of one epoch", ylabel="predicted", xlim=ends, ylim=ends)
    add_legend(axes)
    return to_svg(figure)


def _growth_summary(rows: Rows) -> str:
    vertices = [row["vertices"] for row in rows]
    seconds, memory = (exponent(vertices, [row[key] for row in rows]) for key in ("seconds", "counted_bytes"))
    disturbed = sum(row["others"] > BUSY for row in rows)
    more = f" Other work disturbed {disturbed} of {len(rows)} sizes." if disturbed else ""
    return f"Epoch time grows with |V| to the power of {seconds:.3f}, peak memory to the power of {memory:.3f}.{more}"


def _budget_summary(rows: Rows) -> str:
    steps = []
    for model in dict.fromkeys(row["model"] for row in rows):
        own = sorted((row for row in rows if row["model"] == model), key=lambda row: -row["share"])
        steps.append(f"{model} {largest_step([row['seconds'] for row in own]):.2f}x")
    return f"The largest step from one budget to the next smaller one: {', '.join(steps)}."


def _estimate_summary(rows: Rows) -> str:
    quiet = [abs(row["error"]) for row in rows if row["others"] <= BUSY]
    if not quiet:
        return "Other work took part of the machine in every measurement: nothing can be said."
    disturbed = f" Other work disturbed {len(rows) - len(quiet)} more." if len(quiet) < len(rows) else ""
    return (
        f"Largest error on {len(quiet)} configurations that the profile has not seen, drawn at random on generated "
        f"graphs: {max(quiet):.1%}.{disturbed}"
    )


SECTIONS = (
    BENCH,
    ACCURACY,
    Section(
        name="ladder",
        heading="What each saving removes",
        intro="Bytes over the host link per epoch, from the paper's baseline through each saving on top of those "
        "before, in the device memory that the paper's plan takes.",
        columns=(
            ("rung", "{rung}"), ("graph", "{graph}"), ("host MiB", "{host_bytes:,.1f}"), ("seconds", "{seconds:.3f}")
        ),
        figures=((ladder, "Bytes over the host link, saving by saving"),),
    ),
    Section(
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
    Section(
        name="budgets",
        heading="Time against budget",
        intro="The same training in ever smaller device memory, as shares of what hongtu needs when nothing limits it.",
        columns=(("memory", "{share:.0%}"), *SECONDS, ("MiB", "{budget:,.1f}"), LINK, LOSS),
        figures=((budgets, "Seconds of an epoch against device memory"),),
        summary=_budget_summary,
        about=graph_and_model,
    ),
    Section(
        name="growth",
        heading="Growth",
        intro="Generated citation graphs with 15 edges a vertex, one chunk per so many vertices, without a limit. "
        "Memory is what the run counts, host and device; the process holds some 200 MiB of compiled code beside it.",
        columns=(
            ("vertices", "{vertices:,}"), ("edges", "{edges:,}"), ("chunks", "{chunks}"), *SECONDS,
            ("MiB counted", "{counted_bytes:,.0f}"), ("MiB of the process", PROCESS), LOSS,
        ),
        figures=((growth, "Seconds of an epoch and peak memory against the number of vertices"),),
        summary=_growth_summary,
        about=model_of,
    ),
    Section(
        name="estimator",
        heading="Predicted and measured seconds",
        intro="The profile is measured on this machine (hongtu doctor --measure) and has seen none of these graphs, "
        "models and budgets.",
        columns=(
            ("configuration", "{label}"), ("measured", "{seconds:.3f}"), ("predicted", "{predicted_seconds:.3f}"),
            ("error", "{error:+.1%}"), OTHERS,
        ),
        figures=((estimates, "Predicted against measured seconds of an epoch"),),
        summary=_estimate_summary,
    ),
    Section(
        name="paper",
        heading="The paper, table by table",
        intro="The forms of the HongTu paper's tables and figures on our graphs. A published number stands beside ours "
        "only where it is known for sure; an empty cell says that it is not at hand.",
        columns=(
            ("table", "{table}"), ("what", "{what}"), ("graph", "{graph}"), ("ours", "{ours}"),
            ("published", "{published}"), ("source or remark", "{remark}"),
        ),
    ),
    RUN,
)  # fmt: skip


if __name__ == "__main__":
    main()

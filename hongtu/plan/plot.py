"""Pictures as SVG text. Needs matplotlib (``pip install 'hongtu[report]'``)."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

from hongtu.errors import InputError

COLOURS = ("#0b62a4", "#c4500b", "#2a7d3f", "#7a3f9d", "#8a6d00", "#b3243d")
STYLE: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "hongtu", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3,
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "axes.titlelocation": "left",
}  # fmt: skip


def require_matplotlib() -> None:
    """Refuse where there is none.

    Raises:
        InputError: with the pip line.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InputError("pictures need matplotlib: pip install 'hongtu[report]'") from None


def make_figure(height: float = 3.8, panels: int = 1) -> tuple[Any, Any]:
    """A matplotlib figure and its axes, or a row of them."""
    import matplotlib
    import matplotlib.pyplot as plt

    matplotlib.use("svg")
    matplotlib.rcParams.update(STYLE)
    return plt.subplots(1, panels, figsize=(7.6, max(height, 1.6)), layout="constrained")


def add_legend(axes: Any) -> None:
    """Names of what is drawn, where anything has one."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, ncols=2, frameon=False)


def to_svg(figure: Any) -> str:
    """Without the prologue, so that it can stand inside a page."""
    import matplotlib.pyplot as plt

    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    text = re.sub(r"<metadata>.*?</metadata>", "", out.getvalue(), flags=re.DOTALL)  # it names hosts
    return text[text.index("<svg") :]


def traffic(
    curves: Sequence[dict[str, Any]], title: str | None = None, plan: Sequence[tuple[float, float]] = ()
) -> str:
    """Lines: rows loaded per pass against cache size, both over |V|; the paper's reuse as a mark, and the floor dotted.

    Args:
        curves: each with a "label", a "curve" of (slots, rows), the point "paper", and the "floor".
        plan: more points: those of a plan's own passes.
    """
    figure, axes = make_figure()
    for k, row in enumerate(curves):
        colour = COLOURS[k % len(COLOURS)]
        axes.plot(*zip(*row["curve"], strict=True), color=colour, label=f"lookahead, {row['label']}")
        axes.plot(*row["paper"], "o", color=colour, label=f"paper's reuse, {row['label']}")
        floor = "floor: every row read, once" if k + 1 == len(curves) else None
        axes.axhline(row["floor"], color=colour, linestyle=":", linewidth=1, label=floor)
    if plan:
        axes.plot(*zip(*plan, strict=True), "s", color=COLOURS[2], label="this plan's passes")
    axes.set(xlabel="cache slots of all devices / |V|", ylabel="rows loaded per pass / |V|", ylim=(0, None))
    axes.set_title(title)
    add_legend(axes)
    return to_svg(figure)

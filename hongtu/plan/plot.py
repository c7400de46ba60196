"""A small line chart, and a chart of stacked bars, as SVG text, without any dependency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 480
LEFT, RIGHT, TOP = 72, 24, 48
PLOT_HEIGHT = 330
COLOURS = ("#0b62a4", "#c4500b", "#2a7d3f", "#7a3f9d", "#8a6d00", "#b3243d")


@dataclass(frozen=True)
class Series:
    """Points with a name.

    Attributes:
        points: (x, y) pairs, joined by a line.
        colour: of ``COLOURS``; series that belong together share one.
        markers: draw each point alone, as a mark, instead of a line.
        level: a dashed horizontal line at the first point's y.
    """

    label: str
    points: Sequence[tuple[float, float]]
    colour: int = 0
    markers: bool = False
    level: bool = False


def ticks(highest: float, count: int = 6) -> list[float]:
    """Round numbers from 0 to the first at or above ``highest`` (0: up to 1).

    >>> ticks(4.7)
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    """
    highest = highest or 1.0
    raw = highest / count
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * scale for factor in (1, 2, 2.5, 5, 10) if factor * scale >= raw * (1 - 1e-9))
    return [k * step for k in range(math.ceil(highest / step - 1e-9) + 1)]


def line_chart(series: Sequence[Series], title: str, x_label: str, y_label: str) -> str:
    """An SVG document; both axes start at 0."""
    x_ticks = ticks(max(x for s in series if not s.level for x, _ in s.points), count=8)
    y_ticks = ticks(max(y for s in series for _, y in s.points))
    scale = _Scale(x_ticks[-1], y_ticks[-1])
    columns = 2
    legend_top = TOP + PLOT_HEIGHT + 58
    height = max(HEIGHT, legend_top + 20 * math.ceil(len(series) / columns) + 8)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        _text(LEFT, 28, title, size=16),
    ]
    parts += _axes(scale, x_ticks, y_ticks, x_label, y_label)
    for index, one in enumerate(series):
        stroke = "#555555" if one.level else COLOURS[one.colour % len(COLOURS)]
        parts.append(_draw(one, scale, stroke))
        x = LEFT + (index % columns) * (WIDTH - LEFT - RIGHT) // columns
        y = legend_top + 20 * (index // columns)
        sample = [(0.5, 0.0)] if one.markers else [(0.0, 0.0), (1.0, 0.0)]
        parts.append(_draw(replace(one, points=sample), _Key(x, y - 4), stroke))
        parts.append(_text(x + 34, y, one.label))
    return "\n".join([*parts, "</svg>"]) + "\n"


def stacked_bars(bars: Sequence[tuple[str, Sequence[float]]], parts: Sequence[str], title: str, y_label: str) -> str:
    """An SVG document with one bar per entry.

    Args:
        bars: name and the height of each part, from the bottom.
        parts: names of the parts.
    """
    y_ticks = ticks(max(sum(heights) for _, heights in bars))
    scale = _Scale(float(len(bars)), y_ticks[-1])
    height = TOP + PLOT_HEIGHT + 190 + 20 * math.ceil(len(parts) / 2)
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        _text(LEFT, 28, title, size=16),
        *_axes(scale, (), y_ticks, "", y_label),
    ]
    bottom = TOP + PLOT_HEIGHT
    for index, (name, heights) in enumerate(bars):
        left, right, base = scale.x(index + 0.15), scale.x(index + 0.85), 0.0
        for part, value in enumerate(heights):
            top = scale.y(base + value)
            box = f'x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{scale.y(base) - top:.1f}"'
            svg.append(f'<rect {box} fill="{COLOURS[part % len(COLOURS)]}"/>')
            base += value
        middle = (left + right) / 2
        svg.append(
            f'<text x="{middle:.1f}" y="{bottom + 14}" text-anchor="end" '
            f'transform="rotate(-50 {middle:.1f} {bottom + 14})">{escape(name)}</text>'
        )
    for part, name in enumerate(parts):
        x, y = LEFT + (part % 2) * (WIDTH - LEFT - RIGHT) // 2, bottom + 180 + 20 * (part // 2)
        svg.append(f'<rect x="{x}" y="{y - 11}" width="13" height="13" fill="{COLOURS[part % len(COLOURS)]}"/>')
        svg.append(_text(x + 20, y, name))
    return "\n".join([*svg, "</svg>"]) + "\n"


@dataclass(frozen=True)
class _Scale:
    """From data to pixels."""

    x_end: float
    y_end: float
    right: float = WIDTH - RIGHT

    def x(self, value: float) -> float:
        return LEFT + value / self.x_end * (self.right - LEFT)

    def y(self, value: float) -> float:
        return TOP + PLOT_HEIGHT * (1 - value / self.y_end)


@dataclass(frozen=True)
class _Key:
    """The place of a sample in the legend: x from 0 to 1."""

    left: float
    top: float

    @property
    def right(self) -> float:
        return self.left + 26

    def x(self, value: float) -> float:
        return self.left + 26 * value

    def y(self, value: float) -> float:
        return self.top


def _draw(series: Series, scale: _Scale | _Key, stroke: str) -> str:
    if series.level:
        start, y = scale.x(0), scale.y(series.points[0][1])
        dashes = 'stroke-width="1.5" stroke-dasharray="6 4"'
        return f'<line x1="{start:.1f}" y1="{y:.1f}" x2="{scale.right:.1f}" y2="{y:.1f}" stroke="{stroke}" {dashes}/>'
    if series.markers:
        return "".join(
            f'<circle cx="{scale.x(x):.1f}" cy="{scale.y(y):.1f}" r="5" fill="{stroke}" stroke="white"/>'
            for x, y in series.points
        )
    points = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in series.points)
    return f'<polyline points="{points}" fill="none" stroke="{stroke}" stroke-width="2"/>'


def _axes(scale: _Scale, x_ticks: Sequence[float], y_ticks: Sequence[float], x_label: str, y_label: str) -> list[str]:
    bottom, right = TOP + PLOT_HEIGHT, scale.right
    parts = []
    for value in x_ticks:
        x = scale.x(value)
        parts.append(_line(x, TOP, x, bottom, "#e6e6e6"))
        parts.append(_text(x, bottom + 18, f"{value:g}", anchor="middle"))
    for value in y_ticks:
        y = scale.y(value)
        parts.append(_line(LEFT, y, right, y, "#e6e6e6"))
        parts.append(_text(LEFT - 8, y + 4, f"{value:g}", anchor="end"))
    parts += [_line(LEFT, bottom, right, bottom, "#333333"), _line(LEFT, TOP, LEFT, bottom, "#333333")]
    parts.append(_text((LEFT + right) / 2, bottom + 38, x_label, anchor="middle"))
    middle = TOP + PLOT_HEIGHT / 2
    turned = f'transform="rotate(-90 20 {middle:.1f})"'
    parts.append(f'<text x="20" y="{middle:.1f}" text-anchor="middle" {turned}>{escape(y_label)}</text>')
    return parts


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 13) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'

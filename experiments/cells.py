"""A row of the page about published tables: a number of ours beside a published one, and what kind of number it is."""

from __future__ import annotations

from collections.abc import Iterator

SYSTEM, FULL, HERE = "predicted for the published system", "predicted for full", "measured here"
Cells = Iterator[dict[str, str]]


def cell(table: str, what: str, graph: str, ours: str, kind: str, published: str = "", why: str = "") -> dict[str, str]:
    """A row of the page; ``why``: nothing stands in one of its columns."""
    remark = f"{kind}; {why}" if why else kind
    return {"table": table, "what": what, "graph": graph, "ours": ours, "published": published, "remark": remark}


def beside(table: str, what: str, graph: str, seconds: float, published: float, kind: str = SYSTEM) -> dict[str, str]:
    """Predicted seconds beside published ones; less than a second with three digits behind the point."""
    digits = 2 if published >= 1 else 3
    return cell(table, what, graph, f"{seconds:.{digits}f} s: {seconds / published - 1:+.0%}", kind, f"{published:g} s")

"""Lines of text that are no edges as they stand: what they are, and what mends them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from hongtu.errors import InputError
from hongtu.preprocess.read.formats import text_kernels
from hongtu.preprocess.read.formats.delimiters import (
    ATTRIBUTES,
    DECIMALS,
    DELIMITERS,
    WHITE_SPACE,
    is_number,
    split_line,
)

if TYPE_CHECKING:
    from hongtu.preprocess.read.formats.text_layout import Columns

COMMENT = (b"#", b"%", b"//")
NODE = r"(?:<[^>]*>|_:\S+)"
# what all lines look like -> what they are, and what mends them
OTHERS = {
    r"\{\s*\".*\},?": "is an object of JSON; write pandas.read_json(path, lines=True).to_csv('edges.csv', index=False)",
    r"(?:\[\[|\(\(|\[\().*|[\[({]+[^][(){}]+[\s,;][^][(){}]*[\])}]+[,;]?":
        "has brackets around edges; write an edge a line without brackets and quotes, such as '0, 1'",
    rf"{NODE}\s+<[^>]*>\s+(?:{NODE}|\".*)\s*\.":
        "is a triple of RDF (N-Triples); leave out '.' at the end of lines and lines with text in quotes, and put the "
        "line 'subject predicate object' before the first",
}  # fmt: skip
GRAPHVIZ = re.compile(r"(?:strict\s+)?(?:di)?graph\b[^,]*\{")
ALONE = re.compile(r"(?<=\s)[^\w\s,;|\"'#%.]+(?=\s)")  # between words
INSIDE = re.compile(r"[^\w\s,;|\"'.]+")


def refuse_other(path: Path, numbered: list[tuple[int, bytes]], delimiter: int) -> None:
    """Refuse lines of another kind than edges with a known delimiter between columns.

    Raises:
        InputError: when all of them look alike so.
    """
    lines = [line.decode(errors="replace").strip() for _, line in numbered]
    for form, what in OTHERS.items():
        if lines and all(re.fullmatch(form, line) for line in lines):
            raise InputError(f"{path}: line {numbered[0][0]}: {lines[0][:40]!r} {what}")
    split = any(len(split_line(line, delimiter)) > 1 for _, line in numbered)
    if not lines or (split and delimiter != WHITE_SPACE):
        return
    if GRAPHVIZ.match(lines[0]):
        what = (
            "Graphviz's language; write an edge a line without arrows and semicolons, such as 'a b', and nothing else"
        )
        raise InputError(f"{path}: line {numbered[0][0]}: {lines[0][:40]!r} is {what}")
    lines = [re.sub(ATTRIBUTES.pattern.decode(), "0", line) for line in lines]
    counts = [Counter((ALONE if split else INSIDE).findall(line)) for line in lines]
    again = [between for between, count in counts[0].items() if all(other[between] == count for other in counts)]
    if again:
        behind = "; leave out ';' at the end of lines" * all(line.endswith(";") for line in lines)
        raise InputError(
            f"{path}: line {numbered[0][0]}: {lines[0][:40]!r}, expected columns between "
            f"{', '.join(DELIMITERS.values())}; if {again[0]!r} separates them, write a tab in its place and name the "
            f"file .tsv{behind}"
        )


def explain(kind: int, found: int, columns: Columns, line: bytes) -> str:
    """What is wrong with one line.

    Args:
        kind, found: the fault, as :func:`~.text_kernels.split` gives it.
        columns: how the lines are read.
        line: it.
    """
    if kind == text_kernels.QUOTED:
        return "a quoted field that holds a delimiter or a quote; write it without, or as Parquet"
    if kind == text_kernels.EMPTY:
        return f"column {found + 1} is empty, expected a value; mend the line"
    if columns.width < 0:
        return f"{found} columns, expected at least {1 + max(columns[:3])}; mend the line"
    expected, row = f"{found} columns, expected {columns.width}", split_line(line, columns.delimiter)
    if found == 1:
        return f"{expected} between {', '.join(DELIMITERS.values())}; mend the line"
    if found > columns.width and not any(row[columns.width :]):
        return f"{expected}, and what is behind them is empty; leave out {chr(columns.delimiter)!r} at the end of lines"
    if any(word.startswith(COMMENT) for word in row[columns.width :]):
        return f"{expected}; leave out comments at the end of lines"
    if columns.header or found < columns.width:
        return f"{expected}; mend the line"
    if row[2][:1] == b"{":
        return f"{expected}; write it with networkx.write_weighted_edgelist, or pass the graph itself as data"
    between, named = chr(columns.delimiter) if columns.delimiter else " ", ["source", "relation", "destination"]
    named += [f"other{k}" for k in range(1, found - 2)]
    more = f"put a line before the first that names the columns in their order, such as {between.join(named)!r}"
    if is_number(row[2]) or DECIMALS.fullmatch(row[2]):
        more = (
            "pass --columns source,destination,weight where the third is a weight, --columns source,destination to "
            f"ignore what follows the ends, or {more}"
        )
    return f"{expected}; {more}"

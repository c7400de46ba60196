"""Lines of text that are no edges as they stand: what they are, and what mends them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from hongtu.errors import InputError
from hongtu.preprocess.read.formats.delimiters import ATTRIBUTES, DELIMITERS, NUMBER, WHITE_SPACE, split_line

TERM = r"(?:<[^>]*>|_:\S+)"
# what all lines look like -> what they are, and what mends them
OTHERS = {
    r"\{\s*\".*\},?": "is an object of JSON; write pandas.read_json(path, lines=True).to_csv('edges.csv', index=False)",
    r"(?:\[\[|\(\(|\[\().*|[\[({]+[^][(){}]+[\s,;][^][(){}]*[\])}]+[,;]?":
        "has brackets around edges; write an edge a line without brackets and quotes, such as '0, 1'",
    rf"{TERM}\s+<[^>]*>\s+(?:{TERM}|\".*)\s*\.":
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
    rows = [split_line(line, delimiter) for _, line in numbered]
    split = any(len(row) > 1 for row in rows)
    if not lines or (split and (delimiter != WHITE_SPACE or all(map(NUMBER.fullmatch, rows[-1][:2])))):
        return
    if GRAPHVIZ.match(lines[0]):
        what = "Graphviz; write an edge a line without arrows and semicolons, such as 'a b', and nothing else"
        raise InputError(f"{path}: line {numbered[0][0]}: {lines[0][:40]!r} is of {what}")
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

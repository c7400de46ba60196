"""What stands between the columns of an edge list; lines that are no edges as they stand, and what mends them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from hongtu.errors import InputError
from hongtu.preprocess.read.formats.text_lines import ending_of

WHITE_SPACE = 0
DELIMITERS = {
    ord(","): "commas", ord("\t"): "tabs", ord(";"): "semicolons", ord("|"): "bars",
    WHITE_SPACE: "white space",
}  # fmt: skip
OWN = {".csv": ord(","), ".tsv": ord("\t")}  # of a file's ending; white space of others
REMEDIES = {
    ord(","): "name the file .csv to split at commas, or write a tab between the columns and name it .tsv",
    ord("\t"): "name the file .tsv to split at tabs, or write a space in place of each tab",
}
TABS = "write a tab between the columns and name the file .tsv"
NUMBER = re.compile(rb"[+-]?[0-9]+")
ATTRIBUTES = re.compile(rb"\{.*\}")  # as networkx writes them
DECIMALS = re.compile(rb"(?<![^\s;|])[+-]?[0-9]+,[0-9]+(?![^\s;|])")


def find_delimiter(path: Path, numbered: list[tuple[int, bytes]]) -> int:
    """That of the file's ending, unless the lines do not fit it and fit another.

    Raises:
        InputError: when they fit another as well, which gives other names.
    """
    own, lines = OWN.get(ending_of(path), WHITE_SPACE), [ATTRIBUTES.sub(b"0", line) for _, line in numbered]
    fitting = [d for d in (own, *(d for d in DELIMITERS if d != own)) if _fits(lines, d)]
    if len(fitting) > 1:
        plain = [DECIMALS.sub(b"0", line) for line in lines]
        fitting = [d for d in fitting if _fits(plain, d)] or fitting
    integers = [d for d in fitting if all(map(NUMBER.fullmatch, split_line(lines[-1], d)[:2]))]
    if not integers and fitting[:1] == [own] and own != ord("\t"):  # a tab is hardly part of a name, but a space is
        rows = {d: split_line(lines[0], d) for d in fitting if d == own or d != WHITE_SPACE}
        if other := [d for d in rows if rows[d] != rows[own]]:
            shown = [", ".join(repr(word.decode(errors="replace")[:40]) for word in rows[d]) for d in (own, other[0])]
            raise InputError(
                f"{path}: line {numbered[0][0]}: may be {shown[0]}, split at {DELIMITERS[own]}, or {shown[1]}, split "
                f"at {DELIMITERS[other[0]]}; {REMEDIES.get(other[0], TABS)}"
            )
    return next(iter(integers or fitting), own)


def split_line(line: bytes, delimiter: int) -> list[bytes]:
    """The fields of a line, without quotes and white space around them.

    >>> split_line(b' "a", b c', ord(",")), split_line(b"a  b", 0)
    ([b'a', b'b c'], [b'a', b'b'])
    >>> split_line(b"a\\t,\\tb", ord(","))
    [b'a', b'b']
    """
    white = b" " if delimiter == ord("\t") else b" \t"
    plain = unquote(line.strip(white) + b"\n", delimiter)[:-1]
    return [word.strip(white) for word in (plain.split(bytes([delimiter])) if delimiter else plain.split())]


def unquote(data: bytes, delimiter: int) -> bytes:
    """Lines whose quoted fields stand plain, where they hold neither a delimiter nor a quote."""
    if b'"' not in data:
        return data
    between = re.escape(bytes([delimiter])) if delimiter else rb" \t"
    inside = rb'(?! )[^"\n' + between + (rb"]*(?<! )" if delimiter else rb"]+")  # white space has no empty fields
    first = rb'(?:^|\n)[ \t]*(?!""[ \t]*\n)'  # a line of one empty field is no blank line
    pattern = rb"(" + first + rb"|[" + between + rb'][ \t]*)"(' + inside + rb')"(?=[ \t]*[\n' + between + rb"])"
    return re.sub(pattern, rb"\1\2", data)


def _fits(lines: list[bytes], delimiter: int) -> bool:
    """Whether all lines have the same number of columns, two or more that are not all empty, and no words that end with
    another delimiter."""
    rows = [split_line(line, delimiter) for line in lines]
    if delimiter == WHITE_SPACE and all(any(word.strip(b",;|") != word for word in row) for row in rows):
        return False
    return len({len(row) for row in rows}) == 1 and all(sum(map(bool, row)) > 1 for row in rows)


def is_number(word: bytes) -> bool:
    """Whether a field is an integer or a float."""
    try:
        return float(word) is not None
    except ValueError:
        return False


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

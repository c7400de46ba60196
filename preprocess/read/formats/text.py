"""Edge lists as text: .txt, .csv, .tsv and .edges, plain or gzip, one edge per line.

Legend: L edge lines of a block; a span is a pair of offsets (start, end) in the block.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from hongtu.errors import InputError
from hongtu.preprocess.read.formats import text_lines
from hongtu.preprocess.read.formats.text_layout import (
    Columns,
    find_columns,
    is_counted,
    likely_names,
    starts_as_comments,
)
from hongtu.preprocess.read.graph import RawGraph
from hongtu.preprocess.read.source import EdgeBlock, NotIntegers, of_text

ENDINGS = (".txt", ".csv", ".tsv", ".edges")
COMMENT = (b"#", b"%", b"//")
WIDTH = 32  # characters that a number may have
NEWLINE, SPACE, TAB, QUOTE, HASH, PERCENT, UNDERSCORE, PLUS, MINUS, ZERO = map(ord, '\n \t"#%_+-0')
COLUMNS, EMPTY, QUOTED = 1, 2, 3  # what may be wrong with a line


def open_text(path: Path, names: tuple[str, ...] | None) -> RawGraph:
    """An edge list.

    Args:
        path: the file; ".gz" after its ending means gzip.
        names: of the source, destination and, with a third, weight or relation column. In a file whose first line names
            no columns "source", "destination" and "weight" are the first three. None: as the first line says, else the
            first two columns, which must be all there are.

    Raises:
        InputError: when the file cannot be read or lacks a named column; the stream raises it at a bad line.
    """
    columns = find_columns(path, names, as_text=False)
    raw = RawGraph(title=str(path))

    def blocks(as_text: bool) -> Iterator[EdgeBlock]:
        found = find_columns(path, names, as_text=True) if as_text else columns
        raw.notes = list(found.notes)
        return edge_blocks(path, found, as_text=as_text, notes=raw.notes)

    raw.blocks = blocks
    return raw


def edge_blocks(path: Path, columns: Columns, *, as_text: bool, notes: list[str] | None = None) -> Iterator[EdgeBlock]:
    """The edges of a file, some megabytes of lines a block; ``notes`` gets what a person should know of them."""
    wanted, typed, comments, read = np.array(columns[:3]), columns.typed, 0, 0
    first_edge: tuple[str, int, float] | None = None
    others, most = -1, -1  # of the edges after it: how many, the largest vertex
    for data, first in text_lines.read_lines(path, columns.passed):
        text = np.frombuffer(text_lines.unquote(data, columns.delimiter), dtype=np.uint8)
        spans, lines, passed, bad, kind, found = split(text, columns.delimiter, wanted, columns.width, columns.comments)
        if bad >= 0:
            line = text.tobytes().split(b"\n", bad + 1)[bad]
            names = not as_text and not all(
                map(text_lines.NUMBER.fullmatch, text_lines.split_line(line, columns.delimiter)[:2])
            )
            raise (NotIntegers if names else InputError)(
                f"{path}: line {first + bad}: {_explained(kind, found, columns, line, names=names)}"
            )
        comments, read = comments + passed, read + len(lines)

        def where(k: int, lines: np.ndarray = lines, first: int = first) -> str:
            return f"{path}: line {first + lines[k]}"

        source, destination = (
            _names(text, a, b, where) if as_text else _numbers(text, a, b, where, "id") for a, b in spans[:2]
        )
        third = spans[2]
        weight = None if typed or columns.weight < 0 else of_text(_numbers(text, third[0], third[1], where, "weight"))
        if not (columns.header or isinstance(source, list) or isinstance(destination, list)) and len(source):
            begins = first_edge is None
            if begins:
                last = destination if weight is None else weight
                first_edge = where(0), int(source[0]), float(last[0])
            others += len(source)
            most = max(most, *(int(ends[begins:].max(initial=-1)) for ends in (source, destination)))
        relation = _names(text, third[0], third[1], where) if typed else None
        spelled = None if as_text else partial(_spelled, text, spans[:2], where)
        yield EdgeBlock(source, destination, weight, where, relation, spelled)
    if comments and not (read or as_text) and starts_as_comments(path):
        raise NotIntegers(
            f"{path}: all its lines start with # or % and are taken for comments; pass --relabel where ids start so"
        )
    if notes is not None and first_edge is not None and first_edge[1] >= most and first_edge[2] == others > 0:
        notes.append(
            f"{first_edge[0]}: is read as an edge, and would be the numbers of vertices and edges as well; if it is "
            "that, leave it out"
        )
    if comments and notes is not None:
        notes.append(f"{path}: lines after the first edge that start with # or % are taken for comments: {comments}")


def _explained(kind: int, found: int, columns: Columns, line: bytes, *, names: bool) -> str:
    if kind == QUOTED:
        return "a quoted field that holds a delimiter or a quote; write it without, or as Parquet"
    if kind == EMPTY:
        return f"column {found + 1} is empty, expected a value; mend the line"
    if columns.width < 0:
        return f"{found} columns, expected at least {1 + max(columns[:3])}; mend the line"
    expected, row = f"{found} columns, expected {columns.width}", text_lines.split_line(line, columns.delimiter)
    if found == 1:
        return f"{expected} between {', '.join(text_lines.DELIMITERS.values())}; mend the line"
    if found > columns.width and not any(row[columns.width :]):
        return f"{expected}, and what is behind them is empty; leave out {chr(columns.delimiter)!r} at the end of lines"
    if any(word.startswith(COMMENT) for word in row[columns.width :]):
        return f"{expected}; leave out comments at the end of lines"
    if len(columns.widths) > 2 and {*columns.widths[1:]} == {found} == {columns.widths[0] + 1}:
        return (
            f"{expected}, and so has the first line alone; where that names the columns and others start with the "
            "number of a row, write it without these numbers (of pandas index=False, of R row.names=FALSE)"
        )
    if columns.header or found < columns.width or 2 * columns.widths.count(columns.width) > len(columns.widths):
        return f"{expected}; mend the line"
    if row[2][:1] == b"{":
        return (
            f"{expected}; write it with networkx.write_edgelist(graph, path, data=False), or pass the graph itself as "
            "data"
        )
    if others := sorted({*columns.widths} - {found}):
        return (
            f"{expected}, and others have {', '.join(map(str, others[:5]))}; write a line for "
            "each edge where a line is a vertex and its neighbours, or pass --columns source,destination to ignore "
            "what follows the ends"
        )
    between = chr(columns.delimiter) if columns.delimiter else " "
    ends, named = all(map(text_lines.NUMBER.fullmatch, row[:2])), likely_names(row)
    more = f"put a line before the first that names the columns in their order, such as {between.join(named)!r}"
    weighed = text_lines.is_number(row[2]) or text_lines.DECIMALS.fullmatch(row[2])
    if weighed or ends:
        first = "pass --columns source,destination,weight where the third is a weight, " if weighed else "pass "
        more = f"{first}--columns source,destination to ignore what follows the ends, or {more}"
    if is_counted([word.decode(errors="replace") for word in row]):
        more = f"pass --columns {','.join(map(bytes.decode, row[:3]))} where it names the columns, else {more}"
    if names and not any(map(text_lines.is_number, row)):  # it may name the columns
        more = f"pass --relabel to read names as they are, and where this line is an edge {more}"
    return f"{expected}; {more}"


def _names(text: np.ndarray, start: np.ndarray, end: np.ndarray, where: Callable[[int], str]) -> list[str]:
    data, names = text.tobytes(), []
    for a, b in zip(start.tolist(), end.tolist(), strict=True):
        try:
            names.append(data[a:b].decode())
        except UnicodeDecodeError:
            shown = data[a:b].decode(errors="replace")[:40]
            raise InputError(f"{where(len(names))}: id {shown!r} is not UTF-8; convert the file") from None
    return names


def _spelled(text: np.ndarray, spans: np.ndarray, where: Callable[[int], str]) -> tuple[int, str] | None:
    """The first edge with an integer after zeros or a plus, and its text."""
    start, end = spans[:, 0], spans[:, 1]
    sign = (text[start] == PLUS) | (text[start] == MINUS)
    odd = (text[start] == PLUS) | ((text[start + sign] == ZERO) & (end - start > 1))
    if not odd.any():
        return None
    k = int(odd.any(axis=0).argmax())
    at = int(odd[:, k].argmax())
    return k, _names(text, start[at, k : k + 1], end[at, k : k + 1], where)[0]


def _numbers(
    text: np.ndarray, start: np.ndarray, end: np.ndarray, where: Callable[[int], str], what: str
) -> np.ndarray:
    """The spans as numbers: int64 ids, or float64 weights."""
    fields, kind = np.zeros((len(start), WIDTH), dtype=np.uint8), np.int64 if what == "id" else np.float64
    for k in range(min(WIDTH, int((end - start).max(initial=0)))):
        there = np.flatnonzero(start + k < end)
        fields[there, k] = text[start[there] + k]
    values, odd = fields.view(f"S{WIDTH}").ravel(), end - start > WIDTH
    if (text == UNDERSCORE).any():
        odd |= (fields == UNDERSCORE).any(axis=1)
    try:
        if not odd.any():  # with what Python takes in a number, and no file means by one
            return values.astype(kind)
        bad = int(odd.argmax())
    except (ValueError, OverflowError):
        bad = _first_bad(values, kind)
    shown = bytes(text[start[bad] : min(end[bad], start[bad] + 40)]).decode(errors="replace")
    if what == "weight" and text_lines.DECIMALS.fullmatch(shown.encode()):
        raise InputError(f"{where(bad)}: weight {shown!r}, expected a number; write a point in place of the comma")
    if what == "weight":
        raise InputError(f"{where(bad)}: weight {shown!r}, expected a number of at most {WIDTH} characters")
    if shown.isascii() and shown.lstrip("+-").isdecimal():
        raise NotIntegers(f"{where(bad)}: id {shown} does not fit 64 bits; pass --relabel")
    if re.fullmatch(r"[+-]?[0-9]+(\.[0-9]*)?(e[+-]?[0-9]+)?", shown, re.IGNORECASE) and float(shown).is_integer():
        raise NotIntegers(
            f"{where(bad)}: id {shown!r}, expected an integer; save the ids as int64 (in pandas, astype; of "
            "numpy.savetxt, fmt='%d')"
        )
    if re.fullmatch(r"[+-]?[0-9]+\s+(#|%|//).*", shown):
        raise InputError(f"{where(bad)}: id {shown!r}, expected an integer; leave out comments at the end of lines")
    raise NotIntegers(f"{where(bad)}: id {shown!r}, expected an integer; pass --relabel to read names as they are")


def _first_bad(values: np.ndarray, kind: type) -> int:
    """The first of some fields that is no number; there is one."""
    for k in range(len(values)):
        try:
            values[k : k + 1].astype(kind)
        except (ValueError, OverflowError):
            break
    return k


def split(
    text: np.ndarray, delimiter: int, wanted: np.ndarray, count: int, comments: bool
) -> tuple[np.ndarray, np.ndarray, int, int, int, int]:
    """Spans of three columns of every edge line.

    Args:
        text: uint8, whole lines, each ending with a newline.
        delimiter: byte between columns, or 0 for white space.
        wanted: int64 [3], positions of the columns; -1 for one that is not wanted.
        count: columns that a line must have, or -1 for any number.
        comments: pass over lines that start with # or %.

    Returns:
        spans int64 [3, 2, L], lines int64 [L] (counted from 0), how many comments there were, and the first fault: its
        line (-1 for none), kind, and the columns of that line, or the column.

    >>> text = np.frombuffer(b"# note\\n7  8\\n\\n9 10 \\n", np.uint8)
    >>> spans, lines, *others = split(text, 0, np.array([0, 1, -1]), 2, True)
    >>> spans[:2].tolist(), lines.tolist(), others
    ([[[7, 13], [8, 14]], [[10, 15], [11, 17]]], [1, 3], [1, -1, 0, 0])
    """
    newline, white = text == NEWLINE, (text == SPACE) | ((text == TAB) & (delimiter != TAB))
    ends, solid = np.flatnonzero(newline), np.flatnonzero(~white) if white.any() else None
    begins = np.append(0, ends[:-1] + 1)
    lead = text[begins if solid is None else solid[np.searchsorted(solid, begins)]]  # of each line, but white ones
    comment = comments & ((lead == HASH) | (lead == PERCENT))
    lines = np.flatnonzero((lead != NEWLINE) & ~comment)
    begins, ends = begins[lines], ends[lines]
    if delimiter:
        after = np.flatnonzero(newline | (text == delimiter))
        starts = first = np.append(0, after[:-1] + 1)
        if solid is not None:
            starts = np.minimum(solid[np.searchsorted(solid, first)], after)
            after = np.where(starts < after, solid[np.searchsorted(solid, after) - 1] + 1, starts)
    else:
        first, after = np.flatnonzero(np.diff(~(white | newline), prepend=False, append=False)).reshape(-1, 2).T
        starts = first
    begin = np.searchsorted(first, begins)
    found = np.searchsorted(first, ends, side="right") - begin
    at = np.clip(begin + wanted[:, None], 0, len(first) - 1)
    spans = np.stack([starts[at], after[at]], axis=1)
    empty = (spans[:, 0] == spans[:, 1]) & (wanted[:, None] >= 0) & (wanted[:, None] < found)
    quotes = np.flatnonzero(text == QUOTE)
    quote = np.searchsorted(quotes, begins)
    quoted = np.searchsorted(quotes, ends) > quote
    wrong = (found <= wanted.max()) | ((count >= 0) & (found != count))
    bad = np.flatnonzero(quoted | empty.any(axis=0) | wrong)
    if not len(bad):
        return spans, lines, int(comment.sum()), -1, 0, 0
    k = int(bad[0])
    faults = [(int(column), EMPTY) for column in wanted[empty[:, k]]]
    if quoted[k]:
        faults.append((int(np.searchsorted(first, quotes[quote[k]], side="right") - 1 - begin[k]), QUOTED))
    column, kind = min(faults, default=(int(found[k]), COLUMNS))
    return spans, lines, int(comment.sum()), int(lines[k]), kind, column

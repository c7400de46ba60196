"""How the lines of an edge list are to be read: its delimiter, the columns of the ends, and whether the first line
names them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from hongtu.errors import InputError
from hongtu.preprocess.read.formats import column_names, text_lines

ALIKE = 0.05  # of the other lines may look like a first line of names
SAMPLED = 20  # lines by which the delimiter is found
SHOWN = 80  # characters of a line in a message


class Columns(NamedTuple):
    """Where things stand in a line.

    Attributes:
        source, destination: positions.
        weight: position, or -1 for none.
        width: how many columns a line must have, or -1 for any number.
        passed: lines before the first edge.
        delimiter: a byte, or 0 for white space.
        comments: whether lines that start with # or % are comments.
        header: whether the last line that is passed names the columns.
        typed: whether the column of weights has the type of each edge instead.
        widths: how many columns the first lines have, each.
        notes: what is not plain from the file and was taken to be so, in words for a person.
    """

    source: int
    destination: int
    weight: int
    width: int
    passed: int
    delimiter: int
    comments: bool
    header: bool
    typed: bool = False
    widths: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


class Head(NamedTuple):
    """What is seen of a file before it is read.

    Attributes:
        path: the file.
        number: of the first line that is neither blank nor a comment.
        delimiter: a byte, or 0 for white space.
        rows: fields of that line, and of some after it.
        comments: lines before it, each with its number.
        as_text: ids are text, so that a line after it is an edge whatever it starts with.
    """

    path: Path
    number: int
    delimiter: int
    rows: list[list[bytes]]
    comments: list[tuple[int, bytes]]
    as_text: bool

    def words(self) -> list[str]:
        """Those of the first line.

        Raises:
            InputError: when they are not UTF-8.
        """
        try:
            return [word.decode() for word in self.rows[0]] if self.rows else []
        except UnicodeDecodeError:
            shown = b" ".join(self.rows[0]).decode(errors="replace")[:40]
            raise InputError(f"{self.path}: line {self.number}: {shown!r} is not UTF-8; convert the file") from None


def find_columns(path: Path, names: tuple[str, ...] | None, *, as_text: bool) -> Columns:
    """How the lines of a file are to be read.

    Args:
        names: see :func:`~.text.open_text`.
        as_text: ids are text, so that any line may be an edge.

    Raises:
        InputError: when a named column is not there, or the first line may be an edge as well as names.
    """
    column_names.check_order(path, names)
    head, count = _look(path, as_text), 2 if names is None else len(names)
    words = head.words()
    if names is not None and set(names) & set(words):
        found = [column_names.position(path, words, name) for name in names]
        third = [row[found[2]] for row in head.rows[1:] if len(row) == len(words)] if count == 3 else []
        typed = column_names.is_relation(names, text=bool(third) and not any(map(text_lines.is_number, third)))
        columns = _columns(head, (found[0], found[1]), found[2] if count == 3 else -1, len(words), header=True)
        said = [*columns.notes, *column_names.say_third(path, names, typed=typed)]
        if all(map(text_lines.is_number, head.rows[0])):
            said.append(
                f"{path}: line {head.number}: {', '.join(words)[:SHOWN]} are taken for names of columns; if they are "
                f"an edge, pass --columns {','.join(column_names.STANDARD[:count])}"
            )
        return columns._replace(typed=typed, notes=tuple(said))
    if names not in (None, column_names.STANDARD[:count]):
        assert names is not None
        raise _no_columns(head, words, names)
    sure = column_names.find_ends(words)
    ends = sure or (column_names.find_paired_ends(words) if names is None else None)
    if edge := _hidden_edge(head):
        head = head._replace(number=edge)
    elif len(words) > 1 and _is_header(head, ends or (0, 1), sure=sure is not None):
        return _named_columns(head, words, ends, sure=sure is not None, names=names)
    said = [f"{path}: of {len(words)} columns the first {count} are read"] if names and len(words) > count else []
    if names is None and head.delimiter and is_counted(words) and len(head.rows) > 1:
        said.append(
            f"{path}: line {head.number}: {','.join(words)!r} is read as an edge, and would be the names that pandas "
            f"gives to columns as well; if it is that, pass --columns {','.join(words)}"
        )
    return _columns(head, (0, 1), 2 if count == 3 else -1, -1 if names else 2, header=False, said=said)


def _no_columns(head: Head, words: list[str], names: tuple[str, ...]) -> InputError:
    """What to say where the first line has none of the names."""
    first = f"no column {names[0]!r}, found {', '.join(words)[:200]}; name others with --columns, or"
    if len(words) == len(names) and (
        len(names) == 2 or (column_names.is_weight(names[2]) and text_lines.is_number(head.rows[0][2]))
    ):
        remedy = f"pass --columns {','.join(column_names.STANDARD[: len(names)])} where no line names the columns"
    else:
        named = (chr(head.delimiter) if head.delimiter else " ").join((*names, "other")[: max(len(words), len(names))])
        remedy = (
            "where no line names the columns, put one before the first that does, in the order of the columns, such as "
            f"{named!r}"
        )
    return InputError(f"{head.path}: {first} {remedy}")


def _look(path: Path, as_text: bool) -> Head:
    comments, numbered = text_lines.read_head(path)
    if not as_text:
        numbered = [(number, line) for number, line in numbered if not text_lines.is_comment(line)]
    lines = [line for _, line in numbered]
    delimiter = text_lines.find_delimiter(path, numbered[:SAMPLED])
    text_lines.refuse_other(path, numbered[:SAMPLED], delimiter)
    rows = [text_lines.split_line(line, delimiter) for line in lines]
    return Head(path, numbered[0][0] if rows else 1, delimiter, rows, comments, as_text)


def _columns(
    head: Head, ends: tuple[int, int], weight: int, width: int, *, header: bool, said: list[str] | None = None
) -> Columns:
    passed, said = head.number - (not header), said or []
    if head.as_text and head.rows:
        like = [
            number
            for number, line in head.comments
            if len(text_lines.split_line(line, head.delimiter)) == len(head.rows[0])
        ]
        if hidden := sum(number < head.number for number in like):
            said.append(f"{head.path}: before the first edge {hidden} lines that start with # or % are comments")
    widths = tuple(map(len, head.rows[:SAMPLED]))
    return Columns(
        *ends, weight, width, passed, head.delimiter, not head.as_text, header, widths=widths, notes=tuple(said)
    )


def _named_columns(
    head: Head, words: list[str], ends: tuple[int, int] | None, *, sure: bool, names: tuple[str, ...] | None
) -> Columns:
    """Those that a first line of names, none of them given by ``names``, has."""
    lower, said, between = [word.lower() for word in words], [], chr(head.delimiter) if head.delimiter else " "
    if ends is None and (twice := [word for word in lower if word and lower.count(word) > 1]):
        raise InputError(
            f"{head.path}: line {head.number}: {lower.count(twice[0])} columns {twice[0]!r}, expected one; rename the "
            f"others, or put the line {between.join(column_names.STANDARD[:2])!r} before it if it is an edge"
        )
    if ends is None and names is None and len(words) > 2:
        raise InputError(
            f"{head.path}: line {head.number}: {len(words)} columns, of which none is named source and none "
            f"destination, found {', '.join(words)[:200]}; name both with --columns, such as --columns "
            f"{','.join(column_names.suggest_ends(words))}"
        )
    if not sure and (head.as_text or ends is None):
        said.append(
            f"{head.path}: line {head.number}: {between.join(words)[:SHOWN]!r} is taken for the names of the columns; "
            f"if it is an edge, put the line {between.join(column_names.STANDARD[:2])!r} before it"
        )
    if names and len(names) == 3 and len(words) > 2 and column_names.is_relation(words[:3]):
        raise InputError(
            f"{head.path}: column {words[2]!r} has the type of each edge, expected weights; pass --columns with the "
            f"names of the line, {','.join(words[:3])} where they are source, destination and type"
        )
    if ends is None:
        weight, width = (2 if names and len(names) == 3 else -1), (-1 if names else 2)
        return _columns(head, (0, 1), weight, width, header=True, said=said)
    own = column_names.find_weights(head.path, words) if len(names or column_names.STANDARD) == 3 else []
    own = own or list(names or ())[2:]
    weight = column_names.position(head.path, words, own[0]) if own else -1
    if names is None:
        said += column_names.say_unread(head.path, words, [words[at] for at in (*ends, weight) if at >= 0])
    return _columns(head, ends, weight, len(words), header=True, said=said)


# ---- the first line


def _is_header(head: Head, ends: tuple[int, int], *, sure: bool) -> bool:
    """Whether the first line names the columns.

    Args:
        head: what is seen of the file.
        ends: the columns that it would name source and destination.
        sure: its words are such names.

    Raises:
        InputError: when it may be an edge as well.
    """
    first, others = head.rows[0], head.rows[1:]
    if len(first) > 2 and first[0].decode(errors="replace") in column_names.INDEX and others and others[0][0]:
        return True
    words = [first[end] for end in ends]
    if not head.as_text:
        below = [word for end in ends for row in others[:1] for word in row[end : end + 1]]
        return sure or (
            len(below) == 2
            and all(map(text_lines.NUMBER.fullmatch, below))
            and not any(map(text_lines.is_number, words))
        )
    again = (_stands_after(head, head.number, word) for word in (words if sure else first) if word)
    if sure:
        if not all(again):
            return True
    elif not others or (any(map(text_lines.is_number, first)) and not _is_counted(first, others, ends)) or any(again):
        return False
    else:
        count = Counter(word for row in others for word in row)
        alike = sum(all(count[word] == 1 and not text_lines.is_number(word) for word in row) for row in others)
        if alike <= ALIKE * len(others):
            return True
    shown = [word.decode(errors="replace") for word in words]
    between = chr(head.delimiter) if head.delimiter else " "
    raise InputError(
        f"{head.path}: line {head.number}: {shown[0]!r} and {shown[1]!r} may be an edge, or the names of the columns; "
        f"pass --columns {shown[0]},{shown[1]} if they are names, else put a line of names before it, such as "
        f"{between.join(likely_names(first))!r}"
    )


def likely_names(row: list[bytes]) -> list[str]:
    """What the columns of an edge may be called: the second of a triple is a word, and no vertex.

    >>> likely_names([b"a", b"b"]), likely_names([b"a", b"r", b"b"]), likely_names([b"0", b"1", b"5", b"x"])
    (['source', 'destination'], ['source', 'relation', 'destination'], ['source', 'destination', 'relation', 'other1'])
    """
    named = ["source", "destination"]
    if len(row) > 2:
        named.insert(2 if all(map(text_lines.NUMBER.fullmatch, row[:2])) else 1, "relation")
    return named + [f"other{k}" for k in range(1, len(row) - 2)]


def _is_counted(first: list[bytes], others: list[list[bytes]], ends: tuple[int, int]) -> bool:
    """Whether a first line is 0, 1, ..., and no end of an edge below is a number."""
    below = (word for row in others for end in ends for word in row[end : end + 1])
    return is_counted([word.decode(errors="replace") for word in first]) and not any(map(text_lines.is_number, below))


def is_counted(words: list[str]) -> bool:
    """Whether words are 0, 1, ..., as pandas names columns."""
    return words == [str(k) for k in range(len(words))]


def starts_as_comments(path: Path) -> bool:
    """Whether there is an edge among the first comments, or those after names of columns, for ids that are text."""
    head = _look(path, as_text=True)
    return _hidden_edge(head) > 0 or any(len(row) == len(head.rows[0]) > 1 for row in head.rows[1:])


def _hidden_edge(head: Head) -> int:
    """The number of the first line that starts as a comment and is an edge: it has as many columns as the others, and
    its first word stands in another line; 0 where there is none."""
    if head.as_text:
        rows = [text_lines.split_line(line, head.delimiter) for _, line in head.comments]
        width = len((head.rows or rows or [[]])[0])
        for (number, _), row in zip(head.comments, rows, strict=True):
            if len(row) == width > 1 and len(row[0]) > 1 and _stands_after(head, number, row[0]):
                return number
    return 0


def _stands_after(head: Head, number: int, word: bytes) -> bool:
    """Whether a word is a whole field somewhere after a line."""
    between = rb"\n" + (re.escape(bytes([head.delimiter])) if head.delimiter else rb" \t")
    field = re.compile(rb"(?:^|[" + between + rb'])[ \t]*"?' + re.escape(word) + rb'"?[ \t]*[' + between + rb"]")
    return any(word in data and field.search(data) for data, _ in text_lines.read_lines(head.path, number))

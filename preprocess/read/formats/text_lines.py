"""The lines of a text file, plain or gzip, whatever ends them: newlines, returns, or both; what stands
between their columns; lines that are no edges as they stand, and what mends them."""

from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from hongtu.errors import InputError

BLOCK = 4 << 20  # bytes read in one step, and the most of a line
HEAD = 1 << 18  # bytes of lines that are looked at before any is read
COMMENTS = 1 << 12  # lines before them that are looked at for edges among the comments
CONTENT = re.compile(rb"^[ \t]*[^#%\s]", re.MULTILINE)
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
GZIP = b"\x1f\x8b"
OTHER_FILES = {  # by their first bytes
    b"BZh": "unpack it: bunzip2", b"\xfd7zXZ": "unpack it: unxz", b"\x28\xb5\x2f\xfd": "unpack it: unzstd",
    b"PK": "unpack it: unzip", b"PAR1": "rename it to .parquet", b"ARROW1": "rename it to .arrow",
}  # fmt: skip
DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)


def ending_of(path: Path) -> str:
    """A file's ending in lower case, without that of gzip.

    >>> ending_of(Path("A.CSV.GZ")), ending_of(Path("a.b.txt")), ending_of(Path("a"))
    ('.csv', '.txt', '')
    """
    return Path(path.name.lower().removesuffix(".gz")).suffix


def open_stream(path: Path) -> IO[bytes]:
    """A file's bytes, unpacked if they are gzip's, whatever its name."""
    with path.open("rb") as stream:
        packed = path.suffix.lower() == ".gz" or stream.read(2) == GZIP
    return gzip.open(path, "rb") if packed else path.open("rb")  # type: ignore[return-value]


def damaged(path: Path, error: Exception) -> InputError:
    """What to say of a gzip file that cannot be unpacked."""
    remedy = "copy or download it again"
    if isinstance(error, gzip.BadGzipFile):
        remedy += f", or rename it to {path.stem} if it is not packed"
    return InputError(f"{path}: truncated or damaged gzip ({error}); {remedy}")


def unreadable(path: str | Path, error: OSError) -> InputError:
    """What to say of a file that the system does not read."""
    remedy = "copy or download it again" if isinstance(error, FileNotFoundError) else "mend or remove it"
    return InputError(f"{path}: cannot be read ({error.strerror or error}); {remedy}")


def is_comment(line: bytes) -> bool:
    """Whether a line starts as comments do in SNAP's and KONECT's files."""
    return line.lstrip(b" \t")[:1] in (b"#", b"%")


def read_head(path: Path) -> tuple[list[tuple[int, bytes]], list[tuple[int, bytes]]]:
    """Lines that are not blank, each with its number: comments before any other, and some from the first other one
    on."""
    comments: list[tuple[int, bytes]] = []
    lines: list[tuple[int, bytes]] = []
    size = 0
    for data, first in _whole_lines(path, HEAD):
        if not lines and first > COMMENTS:  # no loop over lines that say nothing
            at = found.start() if (found := CONTENT.search(data)) else len(data)
            first, data = first + data.count(b"\n", 0, at), data[at:]
        for number, line in enumerate(data.splitlines(), first):
            if line.strip(b" \t"):
                (lines if lines or not is_comment(line) else comments).append((number, line))
                size += len(line) if lines else 0
        if size > HEAD:
            break
    return comments, lines


def read_lines(path: Path, passed: int = 0, block: int | None = None) -> Iterator[tuple[bytes, int]]:
    """Whole lines after the first ``passed``, each ending with a newline, with the number of the first;
    ``block`` bytes are read in one step.

    Raises:
        InputError: when the file is damaged, is no text, or a line is too long.
    """
    for data, line in _whole_lines(path, block or BLOCK):
        count = data.count(b"\n")
        if line + count <= passed + 1:
            continue
        start = 0
        for _ in range(passed + 1 - line):
            start = data.index(b"\n", start) + 1
        yield data[start:] if start else data, max(line, passed + 1)


def _whole_lines(path: Path, block: int) -> Iterator[tuple[bytes, int]]:
    rest, line, kept = b"", 1, b""
    try:
        with open_stream(path) as stream:
            while (data := stream.read(min(block, BLOCK))) or kept:
                more, data = bool(data), kept + data
                kept = b"\r" if more and data.endswith(b"\r") else b""  # a newline may come with it
                data = data[: len(data) - len(kept)]
                if line == 1 and not rest:
                    data = data.removeprefix(BYTE_ORDER_MARK)
                if b"\r" in data:
                    data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
                data = rest + data
                if b"\0" in data or (line == 1 and data.startswith(UTF_16)):
                    at = line + data.count(b"\n", 0, max(data.find(b"\0"), 0))
                    known = (remedy for magic, remedy in OTHER_FILES.items() if line == 1 and data.startswith(magic))
                    remedy = next(known, "convert it (UTF-16: iconv)")
                    raise InputError(f"{path}: line {at}: a zero byte, expected UTF-8 text; {remedy}")
                cut = data.rfind(b"\n") + 1
                rest = data[cut:]
                if cut:
                    yield data[:cut], line
                    line += data.count(b"\n", 0, cut)
                if len(rest) > BLOCK:
                    raise InputError(
                        f"{path}: line {line}: longer than {BLOCK} bytes, expected one edge; mend the line"
                    )
    except DAMAGED as error:
        raise damaged(path, error) from None
    except OSError as error:
        raise unreadable(path, error) from None
    if rest:
        yield rest + b"\n", line


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
# what a first line looks like -> what networkx reads such a file with
FORMATS = {
    r"\*(?:vertices|network|arcs|edges)": "pajek", r"graph\s*\[|graph$|creator\s+\"": "gml",
    r"<graphml|<\?xml": "graphml", r"<gexf": "gexf",
}  # fmt: skip
GRAPHVIZ = re.compile(r"(?:strict\s+)?(?:di)?graph\b[^,]*\{")
ALONE = re.compile(r"(?<=\s)[^\w\s,;|\"'#%.]+(?=\s)")  # between words
INSIDE = re.compile(r"[^\w\s,;|\"'.]+")


def refuse_other(path: Path, numbered: list[tuple[int, bytes]], delimiter: int) -> None:
    """Refuse lines of another kind than edges with a known delimiter between columns."""
    lines = [line.decode(errors="replace").strip() for _, line in numbered]
    for form, what in OTHERS.items():
        if lines and all(re.fullmatch(form, line) for line in lines):
            raise InputError(f"{path}: line {numbered[0][0]}: {lines[0][:40]!r} {what}")
    for start, kind in FORMATS.items():
        if lines and re.match(start, lines[0].lower()):
            raise InputError(
                f"{path}: line {numbered[0][0]}: {lines[0][:40]!r} is of {kind}; write an edge a line, such as '0 1', "
                f"and nothing else, or pass hongtu.preprocess_graph(data=networkx.read_{kind}(path))"
            )
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

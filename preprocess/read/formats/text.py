"""Edge lists as text: .txt, .csv, .tsv and .edges, plain or gzip, one edge per line.

Lines that start with # or % are comments, as in SNAP's and KONECT's files. Columns stand between commas in .csv, tabs
in .tsv, and any white space elsewhere. A first line that names the columns is recognised by their names.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from hongtu.errors import InputError
from hongtu.preprocess.read.formats import text_kernels
from hongtu.preprocess.read.graph import RawGraph
from hongtu.preprocess.read.source import EdgeBlock, NotIntegers

ENDINGS = (".txt", ".csv", ".tsv", ".edges")
BLOCK = 16 << 20  # bytes read in one step
WIDTH = 32  # characters that a number may have
SOURCE_NAMES = {"source", "src", "from", "u", "fromnodeid", "node_1", "id_1"}
DESTINATION_NAMES = {"destination", "dst", "dest", "target", "to", "v", "tonodeid", "node_2", "id_2"}
STANDARD = ("source", "destination", "weight")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)


class Columns(NamedTuple):
    """Where things stand in a line.

    Attributes:
        source, destination: positions.
        weight: position, or -1 for none.
        width: how many columns a line must have, or -1 for any number.
        header: whether the first line names them.
        delimiter: a byte, or 0 for white space.
    """

    source: int
    destination: int
    weight: int
    width: int
    header: bool
    delimiter: int


def open_text(path: Path, names: tuple[str, ...] | None) -> RawGraph:
    """An edge list.

    Args:
        path: the file; ".gz" after its ending means gzip.
        names: of the source, destination and, with a third, weight column. In a file whose first line names no columns
            "source", "destination" and "weight" are the first three. None: as the first line says, else the first two
            columns, which must be all there are.

    Raises:
        InputError: when the file cannot be read or lacks a named column; the stream raises it at a bad line.
    """
    columns = _columns(path, names)
    return RawGraph(title=str(path), blocks=lambda as_text: edge_blocks(path, columns, as_text=as_text))


def open_stream(path: Path) -> IO[bytes]:
    """A file's bytes, unpacked."""
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def damaged(path: Path, error: Exception) -> InputError:
    """What to say of a gzip file that cannot be unpacked."""
    return InputError(f"{path}: truncated or damaged gzip ({error}); copy or download it again")


def _columns(path: Path, names: tuple[str, ...] | None) -> Columns:
    plain = path.name.removesuffix(".gz")
    delimiter = {".csv": ",", ".tsv": "\t"}.get(Path(plain).suffix)
    code = ord(delimiter) if delimiter else 0
    first = [word.strip() for word in _first_line(path).split(delimiter)]
    lower = [word.lower() for word in first]
    source = [at for at, word in enumerate(lower) if word in SOURCE_NAMES]
    destination = [at for at, word in enumerate(lower) if word in DESTINATION_NAMES]
    named = len(source) == 1 and len(destination) == 1
    if names is not None and (named or set(names) & set(first)):
        found = [_position(path, first, name) for name in names]
        return Columns(found[0], found[1], found[2] if len(names) == 3 else -1, len(first), True, code)
    if names is not None:
        if names != STANDARD[: len(names)]:
            raise InputError(
                f"{path}: no column {names[0]!r}, found {', '.join(first)[:200]}; name others with --columns, or pass "
                f"--columns {','.join(STANDARD[: len(names)])} where no line names the columns"
            )
        return Columns(0, 1, 2 if len(names) == 3 else -1, -1, False, code)
    if not named:
        return Columns(0, 1, -1, 2, False, code)
    weight = _position(path, lower, "weight") if "weight" in lower else -1
    return Columns(source[0], destination[0], weight, len(first), True, code)


def _position(path: Path, found: list[str], name: str) -> int:
    if found.count(name) != 1:
        what = f"{found.count(name)} columns {name!r}, expected one" if name in found else f"no column {name!r}"
        raise InputError(f"{path}: {what}, found {', '.join(found)[:200]}; name others with --columns")
    return found.index(name)


def _first_line(path: Path) -> str:
    try:
        with open_stream(path) as stream:
            line = stream.readline(BLOCK).removeprefix(BYTE_ORDER_MARK)
            while line:
                if line.strip(b" \t\r\n") and line.strip(b" \t\r\n")[:1] not in b"#%":
                    return line.decode(errors="replace").strip(" \t\r\n")
                line = stream.readline(BLOCK)
    except DAMAGED as error:
        raise damaged(path, error) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    return ""


def _lines(path: Path) -> Iterator[tuple[np.ndarray, int]]:
    """Whole lines, uint8, with the number of the first."""
    rest, line = b"", 1
    try:
        with open_stream(path) as stream:
            while data := stream.read(BLOCK):
                if line == 1 and not rest:
                    data = data.removeprefix(BYTE_ORDER_MARK)
                data = rest + data
                cut = data.rfind(b"\n") + 1
                rest = data[cut:]
                if cut:
                    text = np.frombuffer(data, dtype=np.uint8, count=cut)
                    yield text, line
                    line += int(np.count_nonzero(text == ord("\n")))
                if len(rest) > BLOCK:
                    raise InputError(
                        f"{path}: line {line}: longer than {BLOCK} bytes, expected one edge; mend the line"
                    )
    except DAMAGED as error:
        raise damaged(path, error) from None
    if rest:
        yield np.frombuffer(rest + b"\n", dtype=np.uint8), line


def edge_blocks(path: Path, columns: Columns, *, as_text: bool) -> Iterator[EdgeBlock]:
    """The edges of a file, some megabytes of lines a block."""
    wanted, skip = np.array(columns[:3]), columns.header
    for text, first in _lines(path):
        spans, lines, skip, bad, kind, found = text_kernels.split(text, columns.delimiter, wanted, columns.width, skip)
        if bad >= 0:
            raise InputError(f"{path}: line {first + bad}: {_explained(kind, found, columns)}")

        def where(k: int, lines: np.ndarray = lines, first: int = first) -> str:
            return f"{path}: line {first + lines[k]}"

        source, destination = (
            _names(text, a, b, where) if as_text else _numbers(text, a, b, where, "id") for a, b in spans[:2]
        )
        weight = None if columns.weight < 0 else _numbers(text, spans[2, 0], spans[2, 1], where, "weight")
        yield EdgeBlock(source, destination, weight, where)


def _explained(kind: int, found: int, columns: Columns) -> str:
    if kind == text_kernels.QUOTED:
        return "a quoted field, expected plain ones; write them without quotes, or as Parquet"
    if kind == text_kernels.EMPTY:
        return f"column {found + 1} is empty, expected a value; mend the line"
    if columns.width < 0:
        return f"{found} columns, expected at least {1 + max(columns[:3])}; mend the line"
    more = "mend the line"
    if not columns.header and found > columns.width:
        more = "pass --columns source,destination,weight to read a weight, --columns source,destination to ignore more"
    return f"{found} columns, expected {columns.width}; {more}"


def _names(text: np.ndarray, start: np.ndarray, end: np.ndarray, where: Callable[[int], str]) -> list[str]:
    data, names = text.tobytes(), []
    for a, b in zip(start.tolist(), end.tolist(), strict=True):
        try:
            names.append(data[a:b].decode())
        except UnicodeDecodeError:
            shown = data[a:b].decode(errors="replace")[:40]
            raise InputError(f"{where(len(names))}: id {shown!r} is not UTF-8; convert the file") from None
    return names


def _numbers(
    text: np.ndarray, start: np.ndarray, end: np.ndarray, where: Callable[[int], str], what: str
) -> np.ndarray:
    """The spans as numbers: int64 ids, or float64 weights."""
    fields, bad = text_kernels.to_fields(text, start, end, WIDTH)
    values, kind = fields.view(f"S{WIDTH}").ravel(), np.int64 if what == "id" else np.float64
    if bad < 0:
        try:
            return values.astype(kind)
        except (ValueError, OverflowError):
            bad = _first_bad(values, kind)
    shown = bytes(text[start[bad] : min(end[bad], start[bad] + 40)]).decode(errors="replace")
    if what == "weight":
        raise InputError(f"{where(bad)}: weight {shown!r}, expected a number of at most {WIDTH} characters")
    if shown.lstrip("+-").isdecimal():
        raise NotIntegers(f"{where(bad)}: id {shown} does not fit 64 bits; pass --relabel")
    raise NotIntegers(f"{where(bad)}: id {shown!r}, expected an integer; pass --relabel to read names as they are")


def _first_bad(values: np.ndarray, kind: type) -> int:
    """The first of some fields that is no number, found by halves; there is one."""
    lo, hi = 0, len(values)
    while hi - lo > 1:
        middle = (lo + hi) // 2
        try:
            values[lo:middle].astype(kind)
            lo = middle
        except (ValueError, OverflowError):
            hi = middle
    return lo

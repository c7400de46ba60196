"""The lines of a text file, plain or gzip, whatever ends them: newlines, returns, or both."""

from __future__ import annotations

import gzip
import re
import zlib
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
    rest, line = b"", 1
    try:
        with open_stream(path) as stream:
            while data := stream.read(min(block, BLOCK)):
                while data.endswith(b"\r") and (more := stream.read(1)):  # a newline may come with it
                    data += more
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
        raise InputError(f"{path}: cannot be read ({error.strerror or error}); mend or remove it") from None
    if rest:
        yield rest + b"\n", line

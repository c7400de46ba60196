"""OGB's tables, .csv.gz of numbers, as arrays; and its edges, which are read as any others."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from hongtu.errors import InputError, note
from hongtu.files import create_array
from hongtu.preprocess.read.formats.text import open_text
from hongtu.preprocess.read.formats.text_lines import HEAD, read_lines
from hongtu.preprocess.read.graph import RawGraph
from hongtu.preprocess.read.source import EdgeBlock, of_text, rounds, said_rounded

ROWS = 1 << 15  # of features, parsed in one step


def open_pairs(file: Path) -> RawGraph:
    """Edges without anything beside them, whose columns nobody names."""
    with _whole():
        source = open_text(file, None)
    stream = source.blocks
    assert stream is not None

    def blocks(as_text: bool) -> Iterator[EdgeBlock]:
        with _whole():
            yield from stream(as_text)

    source.blocks = blocks
    return source


@contextlib.contextmanager
def _whole() -> Iterator[None]:
    try:
        yield
    except InputError as error:  # whose remedy is --columns, or --relabel
        raise type(error)(f"{str(error).partition('; ')[0]}; download the dataset again") from None


def read_table(file: Path, dtype: type, most: int) -> np.ndarray:
    """A small table, [rows, columns], of so many rows at most."""
    table = _parsed(file, itertools.islice(read_filled(file), most + 1), dtype, 0)
    if len(table) > most:
        raise InputError(f"{file}: more than {most} lines, expected at most so many; download the dataset again")
    return table


def read_features(file: Path, num_rows: int, into: Path, progress: Callable[[float], None]) -> np.ndarray:
    """float32 [rows, columns], in a file ``into``: so many lines."""
    features, rounded, lines = None, None, read_filled(file)
    for lo in range(0, num_rows, ROWS):
        block = of_text(_parsed(file, itertools.islice(lines, ROWS), np.float64, lo))
        rounded = block.dtype if rounded is None and rounds(block) else rounded
        if len(block) != min(ROWS, num_rows - lo) or (features is not None and block.shape[1] != features.shape[1]):
            width = block.shape[1] if features is None else features.shape[1]
            raise InputError(
                f"{file}: {lo + len(block)} lines{' or more' * (len(block) == ROWS)} of {block.shape[1]} columns, "
                f"expected {num_rows} of {width}; download the dataset again"
            )
        if features is None:
            features = create_array(into, np.float32, (num_rows, block.shape[1]))
        features[lo : lo + len(block)] = block
        progress((lo + len(block)) / num_rows)
    more = len(_parsed(file, itertools.islice(lines, ROWS), np.float32, num_rows))  # also reads the file's end
    if more:
        raise InputError(f"{file}: more lines than the {num_rows} expected; download the dataset again")
    if rounded is not None:
        note(said_rounded(str(file), rounded))
    return features


def read_filled(file: Path) -> Iterator[str]:
    """Those that are not blank."""
    for data, first in read_lines(file, block=HEAD):
        try:
            yield from filter(str.strip, data.decode().split("\n"))
        except UnicodeDecodeError as error:
            raise InputError(f"{file}: after line {first - 1}: {error}; download the dataset again") from None


def _parsed(file: Path, lines: Iterator[str], dtype: type, first: int) -> np.ndarray:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # no data: the caller compares the shape
            return np.loadtxt(lines, delimiter=",", dtype=dtype, ndmin=2, comments=None)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{file}: after line {first}: {error}; download the dataset again") from None

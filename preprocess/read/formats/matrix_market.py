"""Matrix Market files (.mtx, .mtx.gz): entry (i, j) is the edge i -> j; what is not 1 throughout is a weight."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hongtu.errors import InputError
from hongtu.preprocess.read.formats.text import edge_blocks
from hongtu.preprocess.read.formats.text_layout import Columns
from hongtu.preprocess.read.formats.text_lines import WHITE_SPACE, read_head
from hongtu.preprocess.read.graph import RawGraph
from hongtu.preprocess.read.source import SQUARE, EdgeBlock, NotIntegers

ENDINGS = (".mtx",)
FIELDS = ("pattern", "integer", "unsigned-integer", "real", "double")
SYMMETRIES = {"general": 0.0, "symmetric": 1.0, "skew-symmetric": -1.0}  # times an entry: its mirror


class MatrixHeader(NamedTuple):
    """The banner and the line of sizes, the last of so many that are ``passed`` before the entries."""

    field: str
    symmetry: str
    size: int
    entries: int
    passed: int


def open_matrix_market(path: Path) -> RawGraph:
    """A square matrix; entries beside the diagonal of one that is (skew-)symmetric stand for both directions.

    Entries that have values are read twice: first to see whether these are weights.

    Raises:
        InputError: when it is unreadable, not sparse, not real or not square; the stream raises it at a bad line.
    """
    header = _header(path)
    weighted = header.field != "pattern" and (
        header.symmetry == "skew-symmetric" or any((block.weight != 1).any() for block in _entries(path, header))
    )
    return RawGraph(title=str(path), blocks=lambda as_text: _blocks(path, header, weighted), num_vertices=header.size)


def _header(path: Path) -> MatrixHeader:
    comments, lines = read_head(path)
    banner = comments[0][1].decode(errors="replace").lower().split() if comments else []
    if banner[:2] != ["%%matrixmarket", "matrix"] or len(banner) != 5 or comments[0][0] != 1 or not lines:
        raise InputError(
            f"{path}: not a readable Matrix Market file (line 1 is no banner '%%MatrixMarket matrix coordinate "
            "pattern general', or no sizes follow); write it again"
        )
    form, field, symmetry = banner[2:]
    if form != "coordinate":
        remedy = "write it with scipy.io.mmwrite(path, scipy.sparse.coo_matrix(scipy.io.mmread(path)))"
        raise InputError(f"{path}: a dense array, expected sparse coordinates; {remedy}")
    if field not in FIELDS or symmetry not in SYMMETRIES or (field, symmetry) == ("pattern", "skew-symmetric"):
        raise InputError(
            f"{path}: line 1: a {symmetry} matrix of {field} entries, expected one of {', '.join(FIELDS)}, and one of "
            f"{', '.join(SYMMETRIES)}; write it with scipy.io.mmwrite(path, scipy.io.mmread(path).real)"
        )
    sizes = lines[0][1].split()
    if len(sizes) != 3 or not all(re.fullmatch(rb"[0-9]{1,18}", size) for size in sizes):
        raise InputError(
            f"{path}: line {lines[0][0]}: not a readable Matrix Market file (expected three sizes: rows, columns and "
            "entries); write it again"
        )
    rows, columns, entries = map(int, sizes)
    if rows != columns:
        raise InputError(f"{path}: a matrix of {rows} x {columns}, expected a square adjacency matrix; {SQUARE}")
    return MatrixHeader(field, symmetry, rows, entries, lines[0][0])


def _entries(path: Path, header: MatrixHeader) -> Iterator[EdgeBlock]:
    """The stored entries, counted from 0."""
    values = header.field != "pattern"
    ends = 0, 1, 2 if values else -1, 3 if values else 2
    columns = Columns(*ends, header.passed, WHITE_SPACE, comments=True, header=True)
    count = 0
    for block in _whole(edge_blocks(path, columns, as_text=False)):
        for ids in (block.source, block.destination):
            bad = np.flatnonzero((ids < 1) | (ids > header.size))
            if len(bad):
                raise InputError(
                    f"{block.where(bad[0])}: index {ids[bad[0]]}, expected 1 to {header.size}; mend the line"
                )
        if header.field.endswith("integer") and (bad := np.flatnonzero(block.weight % 1)).size:
            raise InputError(f"{block.where(bad[0])}: {block.weight[bad[0]]}, expected an integer, as line 1 says")
        count += len(block.source)
        yield block._replace(source=block.source - 1, destination=block.destination - 1)
    if count != header.entries:
        raise InputError(
            f"{path}: {count} entries, expected {header.entries}, as the line of sizes says; write it again"
        )


def _whole(blocks: Iterator[EdgeBlock]) -> Iterator[EdgeBlock]:
    try:
        yield from blocks
    except NotIntegers as error:  # whose remedy is --relabel
        raise InputError(f"{str(error).partition('; ')[0]}; mend the line") from None


def _blocks(path: Path, header: MatrixHeader, weighted: bool) -> Iterator[EdgeBlock]:
    factor = SYMMETRIES[header.symmetry]
    for block in _entries(path, header):
        source, destination, weight, where = block._replace(weight=block.weight if weighted else None)[:4]
        if factor:
            beside = np.flatnonzero(source != destination)
            if factor < 0 and len(beside) < len(source):
                at = int(np.flatnonzero(source == destination)[0])
                raise InputError(f"{where(at)}: on the diagonal of a skew-symmetric matrix, expected none there")
            edge = np.concatenate([np.arange(len(source)), beside])
            source, destination = (
                np.concatenate([source, destination[beside]]),
                np.concatenate([destination, source[beside]]),
            )
            weight = None if weight is None else np.concatenate([weight, factor * weight[beside]])
            yield EdgeBlock(source, destination, weight, lambda k, edge=edge, where=where: where(int(edge[k])))  # type: ignore[misc]
        else:
            yield EdgeBlock(source, destination, weight, where)

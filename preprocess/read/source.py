"""What every format is read into: a stream of edges.

An adapter (``preprocess/read/formats``, one file each) returns a :class:`~.graph.RawGraph` with such a stream;
:mod:`.collect` numbers its vertices and writes its edges to disk block by block, so that no format ever has a whole
graph in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from hongtu.errors import InputError

BLOCK = 1 << 22  # edges


class EdgeBlock(NamedTuple):
    """Consecutive edges of the input.

    Attributes:
        source, destination: int64 [B], or both names: lists of text.
        weight: float [B] or None.
        relation: names of the types of edges, text [B], or None.
        where: says where the k-th edge of the block stands, such as "graph.csv: line 7".
    """

    source: Any
    destination: Any
    weight: np.ndarray | None
    where: Callable[[int], str]
    relation: list[str] | None = None


class NotIntegers(InputError):
    """Ids that are no integers, in a stream of integers; with ``--relabel`` they are read as text instead."""


def array_blocks(
    name: str,
    source: np.ndarray,
    destination: np.ndarray,
    weight: np.ndarray | None,
    first: int = 0,
) -> Callable[[bool], Iterator[EdgeBlock]]:
    """The stream of edges that are in memory already; the first has the number ``first``."""

    def blocks(as_text: bool) -> Iterator[EdgeBlock]:
        for lo in range(0, len(source), BLOCK):
            part = slice(lo, lo + BLOCK)

            def where(k: int, lo: int = lo) -> str:
                return f"{name}: edge {first + lo + k}"

            ids = [(as_names if as_text else as_integers)(name, a[part], where) for a in (source, destination)]
            yield EdgeBlock(ids[0], ids[1], None if weight is None else weight[part], where)

    return blocks


def as_integers(name: str, ids: np.ndarray, where: Callable[[int], str]) -> np.ndarray:
    """int64 ids; ``where`` says where the k-th stands.

    Raises:
        InputError: for kinds that are no ids, such as fractions.
        NotIntegers: for text, and for unsigned ids beyond int64.
    """
    if ids.dtype.kind not in "iu":
        if ids.dtype.kind == "U":
            raise NotIntegers(
                f"{name}: vertex ids of type {ids.dtype}, expected integers; pass --relabel to read names"
            )
        raise InputError(f"{name}: vertex ids of type {ids.dtype}, expected integers; cast them to int64")
    if ids.dtype.itemsize == 8 and ids.dtype.kind == "u" and len(ids) and int(ids.max()) > np.iinfo(np.int64).max:
        at = int(np.argmax(ids))
        raise NotIntegers(f"{where(at)}: id {ids[at]} does not fit 64 bits; pass --relabel")
    return ids.astype(np.int64, copy=False)


def as_names(name: str, ids: np.ndarray, where: Callable[[int], str]) -> list[str]:
    """Integer or text ids as text.

    Raises:
        InputError: for kinds that are no ids, and for text that is no Unicode.
    """
    if ids.dtype.kind not in "iuU":
        raise InputError(f"{name}: vertex ids of type {ids.dtype}, expected integers or text; cast them to either")
    return to_names(name, ids)


def to_names(name: str, ids: np.ndarray) -> list[str]:
    """Ids of any kind as text.

    Raises:
        InputError: when one is no Unicode, which no file can hold.
    """
    try:
        names = [str(one) for one in ids.tolist()]
        "".join(names).encode()
    except ValueError as error:
        raise InputError(f"{name}: an id is not Unicode text ({error}); mend it") from None
    return names


def weights_of(values: np.ndarray) -> np.ndarray | None:
    """Stored values of an adjacency matrix as float32 weights; None where all are 1, a matrix that only says where."""
    if bool((values == 1).all()):
        return None
    with np.errstate(over="ignore", invalid="ignore"):  # beyond float32 is refused by the check, as in any format
        return values.astype(np.float32)

"""A stream of edges to arrays on disk, block by block, ids numbered on the way.

Legend: V vertices, E edges, B edges of a block.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hongtu.config import PreprocessConfig
from hongtu.errors import InputError
from hongtu.preprocess.read.relabel import IntegerIds, NameIds
from hongtu.preprocess.read.size import LARGEST
from hongtu.preprocess.read.source import EdgeBlock, Names, NotIntegers, Source

PIECES = ("source", "destination", "weight")
BLOCK = 1 << 22  # edges copied in one step


def collect(
    source: Source, folder: Path, *, relabel: bool
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | Names | None]:
    """Read all edges of a source into memory-mapped files in ``folder``.

    Args:
        source: what an adapter opened.
        folder: an existing directory.
        relabel: number the ids in the order of ``source.ids``, or as they first come; otherwise they are numbers.

    Returns:
        edges int32 [2, E], weight float32 [E] or None, and the ids, int64 [V] or ``Names``, or None without relabel.

    Raises:
        InputError: at the first edge that is wrong.
    """
    if source.numbered or not relabel:
        edges, weight = _write(source, folder, None, as_text=False)
        return edges, weight, source.ids
    as_text = isinstance(source.ids, Names)
    try:
        numbering = _numbering(source, as_text)
        edges, weight = _write(source, folder, numbering, as_text)
    except NotIntegers:
        numbering = _numbering(source, as_text=True)
        edges, weight = _write(source, folder, numbering, as_text=True)
    return edges, weight, numbering.ids()


def refuse_relabel(source: Source, config: PreprocessConfig) -> None:
    """Refuse ``--relabel`` of a source whose vertices have numbers."""
    if config.relabel and source.ids is None and not source.numbered and source.num_vertices is not None:
        raise InputError(f"{source.name}: numbers its {source.num_vertices} vertices already; leave --relabel out")


def _numbering(source: Source, as_text: bool) -> Any:
    numbering = NameIds() if as_text else IntegerIds()
    if source.ids is not None:
        if as_text != isinstance(source.ids, Names):
            raise InputError(f"{source.name}: holds text where {source.names.get('ids', 'the ids')} are integers")
        found = numbering.number(source.ids)
        if len(numbering) < len(found):
            at = int(np.flatnonzero(found != np.arange(len(found)))[0])
            raise InputError(f"{source.names.get('ids', 'ids')}: [{at}] stands there twice, expected each id once")
    return numbering


def _write(source: Source, folder: Path, numbering: Any, as_text: bool) -> tuple[np.ndarray, np.ndarray | None]:
    raw = [folder / f"{piece}.raw" for piece in PIECES]
    known = None if source.ids is None else len(source.ids)
    count, weighted = 0, None
    with raw[0].open("wb") as sources, raw[1].open("wb") as destinations, raw[2].open("wb") as weights:
        for block in source.blocks(as_text):
            assert weighted in (None, block.weight is not None)
            weighted = block.weight is not None
            ids = _checked(block) if numbering is None else _numbered(block, numbering, known)
            for stream, numbers in zip((sources, destinations), ids, strict=True):
                numbers.astype(np.int32, copy=False).tofile(stream)
            if block.weight is not None:
                with np.errstate(over="ignore"):  # beyond float32 is refused by the check, as in any format
                    block.weight.astype(np.float32).tofile(weights)
            count += len(block.source)
    if source.num_edges not in (None, count):
        raise InputError(f"{source.name}: {count} edges, expected {source.num_edges}; download or copy it again")
    edges = _joined(folder / "edges.npy", raw[:2], np.int32, count)
    weight = _joined(folder / "edge_weight.npy", raw[2:], np.float32, count)[0] if weighted else None
    for file in raw:
        file.unlink()
    return edges, weight


def _joined(file: Path, rows: list[Path], dtype: type, count: int) -> np.ndarray:
    """One array on disk whose rows are the raw files, read only."""
    if count == 0:
        return np.empty((len(rows), 0), dtype=dtype)
    joined = np.lib.format.open_memmap(file, mode="w+", dtype=dtype, shape=(len(rows), count))
    for row, raw in enumerate(rows):
        array = np.memmap(raw, dtype=dtype, mode="r")
        for lo in range(0, count, BLOCK):
            joined[row, lo : lo + BLOCK] = array[lo : lo + BLOCK]
    return np.load(file, mmap_mode="r")


def _checked(block: EdgeBlock) -> tuple[np.ndarray, np.ndarray]:
    for ids in (block.source, block.destination):
        bad = np.flatnonzero((ids < 0) | (ids >= LARGEST))
        if len(bad):
            raise InputError(
                f"{block.where(int(bad[0]))}: vertex {ids[bad[0]]}, expected 0 to {LARGEST - 1}; "
                "pass --relabel to number the ids from 0"
            )
    return block.source, block.destination


def _numbered(block: EdgeBlock, numbering: Any, known: int | None) -> tuple[np.ndarray, np.ndarray]:
    # source and destination of an edge in turn, so that numbers follow the order in which a reader meets the ids
    if isinstance(block.source, Names):
        size = len(block.source.text)
        text = block.source.text
        shift = 0
        if block.destination.text is not text:
            text, shift = np.concatenate([text, block.destination.text]), size
        spans = [np.stack([a, b + shift], axis=1).ravel() for a, b in zip(block.source[1:], block.destination[1:])]
        both: Any = Names(text, *spans)
    else:
        both = np.stack([block.source, block.destination], axis=1).ravel()
    numbers = numbering.number(both)
    if known is not None and len(numbering) > known:
        at = int(np.argmax(numbers >= known))
        shown = both.name(at) if isinstance(both, Names) else both[at]
        raise InputError(f"{block.where(at // 2)}: vertex {shown} is not among the {known} ids of the input; add it")
    if len(numbering) > LARGEST:
        raise InputError(f"{block.where(0)}: more than {LARGEST} different ids")
    numbers = numbers.reshape(-1, 2)
    return numbers[:, 0], numbers[:, 1]

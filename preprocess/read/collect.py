"""A stream of edges to arrays on disk, block by block, ids numbered on the way, in the order in which they are first
seen, in O(V) memory.

Legend: V vertices, E edges, B edges of a block.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np

from hongtu.config import PreprocessConfig
from hongtu.errors import InputError, note
from hongtu.files import create_array
from hongtu.preprocess.read.check import check_and_complete
from hongtu.preprocess.read.graph import RawGraph
from hongtu.preprocess.read.size import LARGEST
from hongtu.preprocess.read.source import EdgeBlock, NotIntegers, as_float32, rounds, said_rounded
from hongtu.preprocess.read.typed import TypedFeatures

PIECES = ("source", "destination", "weight", "relation")
SHOWN = 20  # relations in a message
BLOCK = 1 << 22  # edges copied in one step


def complete(raw: RawGraph, config: PreprocessConfig, scratch: Path | None = None) -> RawGraph:
    """A checked graph: the edges of a stream stored and numbered, the vertices counted, and what the config
    synthesises in place of what was given (features need degrees, later).

    Args:
        scratch: directory for the edges of a stream.
    """
    for piece, made in (("features", config.features), ("labels", config.labels), ("masks", config.random_split)):
        if made or (piece != "features" and config.task == "links"):
            if made and getattr(raw, piece) is not None:
                note(f"{raw.title}: its {piece} are left out for others, as was asked")
            setattr(raw, piece, None)
    if raw.blocks is not None:
        refuse_relabel(raw, config)
        assert scratch is not None
        _collect(raw, scratch, relabel=config.relabel)
    _count_vertices(raw)
    complete = check_and_complete(raw, config)
    for text in raw.notes:  # a refusal stands alone
        note(text)
    return complete


def refuse_relabel(raw: RawGraph, config: PreprocessConfig) -> None:
    """Refuse ``--relabel`` of a source whose vertices have numbers."""
    if config.relabel and raw.ids is None and not raw.numbered and raw.num_vertices is not None:
        raise InputError(f"{raw.title}: numbers its {raw.num_vertices} vertices already; leave --relabel out")


def rows_beside(raw: RawGraph) -> tuple[int, str] | None:
    """How many vertices have features, else labels, else masks, and which; None where there are none of these."""
    split, mask = next(iter((raw.masks or {}).items()), ("train", None))
    typed = isinstance(raw.features, TypedFeatures)
    for piece, array in (("vertex_type" if typed else "features", raw.features), ("labels", raw.labels)):
        if array is not None and array.ndim >= 1:
            return array.shape[0], f"{raw.name(piece)} has {array.shape[0]} rows"
    if mask is not None and mask.ndim >= 1:
        return mask.shape[-1], f"{raw.name(split)} has {mask.shape[-1]} rows"
    return None


def _count_vertices(raw: RawGraph) -> None:
    if raw.ids is not None:
        raw.num_vertices, raw.vertices_from = len(raw.ids), f"the input has {len(raw.ids)} different ids"
    elif raw.vertices_from:
        return
    elif raw.num_vertices is not None:
        raw.vertices_from = f"{raw.title} has {raw.num_vertices} vertices"
    elif (rows := rows_beside(raw)) is not None:
        raw.num_vertices, raw.vertices_from = rows
    else:
        edges: Any = raw.edges if raw.edges.ndim == 2 and raw.edges.dtype.kind in "iu" else []
        blocks = (row[lo : lo + BLOCK] for row in edges for lo in range(0, len(row), BLOCK))  # never all in memory
        largest = max((int(block.max()) for block in blocks), default=-1)
        name = Path(raw.name("edges")).name
        raw.num_vertices = max(largest, -1) + 1
        raw.vertices_from = f"the largest id in {name} is {largest}" if largest >= 0 else f"{name} has no edges"


def _collect(raw: RawGraph, folder: Path, *, relabel: bool) -> None:
    """Read all edges of a stream into memory-mapped files in ``folder``: edges int32 [2, E], and weights float32 [E]
    where it has some. With ``relabel`` ids are numbered in the order of ``raw.ids``, or as they first come; otherwise
    they are numbers."""
    if raw.numbered or not relabel:
        weight = _write(raw, folder, None, as_text=False)
        raw.ids = raw.ids if raw.numbered else None
    else:
        as_text = isinstance(raw.ids, list)
        try:
            numbering = _numbering(raw, as_text)
            weight = _write(raw, folder, numbering, as_text)
        except NotIntegers as reason:
            if raw.ids is not None:
                raise InputError(
                    f"{raw.title}: holds text where {raw.names.get('ids', 'the ids')} are integers "
                    f"({str(reason).split('; ')[0]}); save these as text"
                ) from None
            numbering = _numbering(raw, as_text=True)
            weight = _write(raw, folder, numbering, as_text=True)
        raw.ids = numbering.ids()
    if weight is not None and raw.edge_weight is not None:
        raise InputError(f"{raw.title}: holds weights, and so does {raw.name('edge_weight')}; remove one")
    raw.edge_weight = raw.edge_weight if weight is None else weight


def _numbering(raw: RawGraph, as_text: bool) -> Any:
    numbering = NameIds() if as_text else IntegerIds()
    if raw.ids is not None:
        found = numbering.number(raw.ids)
        if len(numbering) < len(found):
            at = int(np.flatnonzero(found != np.arange(len(found)))[0])
            raise InputError(f"{raw.names.get('ids', 'ids')}: [{at}] stands there twice, expected each id once")
    return numbering


def _write(raw: RawGraph, folder: Path, numbering: Any, as_text: bool) -> np.ndarray | None:
    """Fills ``raw.edges``, and ``raw.edge_type`` where edges have relations; the weights."""
    files = [folder / f"{piece}.raw" for piece in PIECES]
    known = None if raw.ids is None else len(raw.ids)
    count, weighted, rounded, relations = 0, None, None, NameIds()
    with contextlib.ExitStack() as opened:
        sources, destinations, weights, kinds = (opened.enter_context(file.open("wb")) for file in files)
        for block in raw.blocks(as_text):
            assert weighted in (None, block.weight is not None)
            weighted = block.weight is not None
            odd = None if numbering is None or block.spelled is None else block.spelled()
            if odd is not None:
                k, spelled = odd
                raise NotIntegers(f"{block.where(k)}: id {spelled!r} is not how the integer {int(spelled)} is written")
            ids = _checked(block, raw.num_vertices) if numbering is None else _numbered(block, numbering, known)
            for stream, numbers in zip((sources, destinations), ids, strict=True):
                numbers.astype(np.int32, copy=False).tofile(stream)
            if block.weight is not None:
                rounded = block.weight.dtype if rounded is None and rounds(block.weight) else rounded
                as_float32(block.weight).tofile(weights)
            if block.relation is not None:
                relations.number(block.relation).tofile(kinds)
            count += len(block.source)
    if raw.num_edges not in (None, count):
        raise InputError(f"{raw.title}: {count} edges, expected {raw.num_edges}; download or copy it again")
    if rounded is not None:
        name = raw.name("edge_weight")  # which may be a file beside that of the edges
        name = name if name.startswith(raw.title) else f"{raw.title}: edge_weight"
        raw.notes.append(said_rounded(name, rounded))
    raw.edges = _joined(folder / "edges.npy", files[:2], np.int32, count)
    weight = _joined(folder / "edge_weight.npy", files[2:3], np.float32, count)[0] if weighted else None
    if len(relations):
        raw.edge_type = _relations(
            raw, _joined(folder / "edge_type.npy", files[3:], np.int32, count)[0], relations.ids()
        )
    for file in files:
        file.unlink()
    return weight


def _relations(raw: RawGraph, kind: np.ndarray, names: list[str]) -> np.ndarray:
    """int32 [E]: relations that are numbers as they are, others in the order in which they come.

    Raises:
        InputError: where the graph has types of edges already.
    """
    if raw.edge_type is not None:
        raise InputError(f"{raw.title}: holds relations, and so does {raw.name('edge_type')}; remove one")
    if all(name.isdecimal() and name.isascii() and len(name) < 99 and int(name) < LARGEST for name in names):
        return np.array(list(map(int, names)), dtype=np.int32)[kind]
    shown = ", ".join(f"{k} {name}" for k, name in enumerate(names[:SHOWN])) + ", ..." * (len(names) > SHOWN)
    raw.notes.append(f"{raw.title}: {len(names)} relations, numbered in the order in which they come: {shown}")
    return kind


def _joined(file: Path, rows: list[Path], dtype: type, count: int) -> np.ndarray:
    """One array on disk whose rows are the raw files, read only."""
    if count == 0:
        return np.empty((len(rows), 0), dtype=dtype)
    joined = create_array(file, dtype, (len(rows), count))
    for row, raw in enumerate(rows):
        with raw.open("rb") as stream:
            for lo in range(0, count, BLOCK):
                joined[row, lo : lo + BLOCK] = np.fromfile(stream, dtype, min(BLOCK, count - lo))
    return np.load(file, mmap_mode="r")


def _checked(block: EdgeBlock, known: int | None) -> tuple[np.ndarray, np.ndarray]:
    remedy = "pass --relabel to number the ids from 0" if known is None else "remove the edge"
    for ids in (block.source, block.destination):
        bad = np.flatnonzero((ids < 0) | (ids >= LARGEST))
        if len(bad):
            raise InputError(
                f"{block.where(int(bad[0]))}: vertex {ids[bad[0]]}, expected 0 to {(known or LARGEST) - 1}; {remedy}"
            )
    return block.source, block.destination


def _numbered(block: EdgeBlock, numbering: Any, known: int | None) -> tuple[np.ndarray, np.ndarray]:
    # source and destination of an edge in turn, so that numbers follow the order in which a reader meets the ids
    both: Any
    if isinstance(block.source, list):
        both = [name for ends in zip(block.source, block.destination, strict=True) for name in ends]
    else:
        both = np.stack([block.source, block.destination], axis=1).ravel()
    numbers = numbering.number(both)
    if known is not None and len(numbering) > known:
        at = int(np.argmax(numbers >= known))
        raise InputError(f"{block.where(at // 2)}: vertex {both[at]} is not among the {known} ids of the input; add it")
    if len(numbering) > LARGEST:
        raise InputError(f"{block.where(0)}: more than {LARGEST} different ids")
    numbers = numbers.reshape(-1, 2)
    return numbers[:, 0], numbers[:, 1]


class IntegerIds:
    """Numbers for int64 ids, from a sorted table.

    >>> ids = IntegerIds()
    >>> ids.number(np.array([70, -5, 70])).tolist(), ids.ids().tolist()
    ([0, 1, 0], [70, -5])
    """

    def __init__(self) -> None:
        self._sorted, self._numbers = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)

    def number(self, ids: np.ndarray) -> np.ndarray:
        """int32 [B]."""
        unique, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
        at = np.searchsorted(self._sorted, unique)
        new = np.flatnonzero(~np.isin(unique, self._sorted, assume_unique=True))
        numbers = np.empty(len(new), dtype=np.int32)
        numbers[np.argsort(first[new])] = np.arange(len(self), len(self) + len(new))
        self._sorted = np.insert(self._sorted, at[new], unique[new])
        self._numbers = np.insert(self._numbers, at[new], numbers)
        return self._numbers[np.searchsorted(self._sorted, unique)][inverse]

    def ids(self) -> np.ndarray:
        """int64 [V], the id of every number."""
        return self._sorted[np.argsort(self._numbers)]

    def __len__(self) -> int:
        return len(self._sorted)


class NameIds:
    """Numbers for ids that are text.

    >>> ids = NameIds()
    >>> ids.number(["x", "yy", "x"]).tolist(), ids.ids()
    ([0, 1, 0], ['x', 'yy'])
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, names: list[str]) -> np.ndarray:
        """int32 [B]."""
        table = self._numbers
        return np.fromiter((table.setdefault(name, len(table)) for name in names), np.int32, len(names))

    def ids(self) -> list[str]:
        """The id of every number."""
        return list(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

"""OGB node-property datasets as the ogb package unpacks them, ``raw/`` and ``split/`` in one folder; without ogb.

ogbn_arxiv/raw/edge.csv.gz, node-feat.csv.gz, edge-feat.csv.gz, node-label.csv.gz, num-node-list.csv.gz
ogbn_arxiv/split/time/train.csv.gz, valid.csv.gz, test.csv.gz
ogbn_papers100M/raw/data.npz, node-label.npz    (the binary form)
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hongtu.errors import InputError
from hongtu.files import create_array
from hongtu.preprocess.read.formats.text import open_text
from hongtu.preprocess.read.formats.text_lines import HEAD, read_lines
from hongtu.preprocess.read.graph import RawGraph
from hongtu.preprocess.read.size import check_archive, check_count, check_held
from hongtu.preprocess.read.source import array_blocks

STORED_ONCE = ("ogbn_products", "ogbn_proteins")  # OGB adds the reverse of every edge when it loads these
SPLITS = {"train": "train", "val": "valid", "test": "test"}
ROWS = 1 << 15  # of features, parsed in one step


def is_ogb(path: Path) -> bool:
    """Whether this is the folder of a dataset."""
    return any((path / "raw" / name).is_file() for name in ("edge.csv.gz", "data.npz"))


def open_ogb(path: Path, scratch: Path, *, undirected: bool) -> RawGraph:
    """One homogeneous graph; features go through a file in ``scratch``.

    Raises:
        InputError: when a file is missing or damaged, or the dataset needs ``--undirected``.
    """
    if path.resolve().name in STORED_ONCE and not undirected:
        raise InputError(f"{path}: stores each undirected edge once; pass --undirected, as OGB itself does")
    raw = path / "raw"
    if (raw / "data.npz").is_file():
        source = _binary(raw)
    else:
        source = _text(raw, scratch)
    assert source.num_vertices is not None
    source.masks = _masks(path / "split", source.num_vertices)
    source.names |= {"features": str(raw), "edge_features": str(raw), "labels": str(raw)}
    return source


def _text(raw: Path, scratch: Path) -> RawGraph:
    source = open_text(raw / "edge.csv.gz", None)
    file = raw / "num-node-list.csv.gz"
    source.num_vertices = _only(_table(file, np.int64, 2), str(file))
    check_count(source.num_vertices, str(file))
    check_held(source.num_vertices, (raw / "edge.csv.gz").stat().st_size, str(file))
    file = raw / "num-edge-list.csv.gz"
    beside = raw / "edge-feat.csv.gz"
    if file.is_file() or beside.is_file():
        source.num_edges = _only(_table(file, np.int64, 2), str(file))
    if (raw / "node-feat.csv.gz").is_file():
        source.features = _features(raw / "node-feat.csv.gz", source.num_vertices, scratch / "node-feat.npy")
    if beside.is_file():
        assert source.num_edges is not None
        source.edge_features = _features(beside, source.num_edges, scratch / "edge-feat.npy")
    if (raw / "node-label.csv.gz").is_file():
        file = raw / "node-label.csv.gz"
        source.labels = _labels(_table(file, np.float64, source.num_vertices), file)
    return source


def _binary(raw: Path) -> RawGraph:
    try:
        for name in ("data.npz", "node-label.npz"):
            check_archive(raw / name)
        with np.load(raw / "data.npz") as data:
            edges, features, beside = data["edge_index"], data.get("node_feat"), data.get("edge_feat")
            counts, lengths = data.get("num_nodes_list"), data.get("num_edges_list")
        with np.load(raw / "node-label.npz") as data:
            table = data["node_label"]
    except InputError:
        raise
    except Exception as error:  # of zip, zlib, headers, keys and memory: all mean that the files are not as they were
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{raw}: data.npz or node-label.npz is not readable ({reason}); download them again") from None
    file, labels = str(raw / "data.npz"), _labels(table, raw / "node-label.npz")
    if edges.ndim != 2 or edges.shape[0] != 2:
        raise InputError(f"{file}: edge_index of shape {edges.shape}, expected [2, E]; download it again")
    count = len(labels) if counts is None else _only(counts, f"{file}: num_nodes_list")
    check_count(count, file)
    return RawGraph(
        title=file,
        blocks=array_blocks(file, edges[0], edges[1], None),
        num_vertices=count,
        num_edges=None if lengths is None else _only(lengths, f"{file}: num_edges_list"),
        features=features,
        edge_features=beside,
        labels=labels,
    )


def _only(counts: np.ndarray, name: str) -> int:
    """The count of the only graph."""
    if counts.size != 1 or counts.dtype.kind not in "iu":
        found = f"{counts.size} graphs" if counts.dtype.kind in "iu" else f"{counts.dtype}"
        raise InputError(f"{name}: {found}, expected one (a node-property dataset), by an integer")
    return int(counts.ravel()[0])


def _labels(table: np.ndarray, file: Path) -> np.ndarray:
    """One column: classes, with -1 for nan. Several: one yes or no each."""
    if table.ndim not in (1, 2) or table.dtype.kind not in "biuf":
        raise InputError(f"{file}: {table.dtype} of shape {table.shape}, expected numbers [N, 1] or [N, C]")
    if table.ndim == 2 and table.shape[1] > 1:
        with np.errstate(over="ignore", invalid="ignore"):  # refused by the check, as all that is not 0 or 1
            return table.astype(np.float32)
    column = table.ravel().astype(np.float64) if table.dtype.kind == "f" else table.ravel()
    column = np.where(np.isnan(column), -1, column)
    with np.errstate(invalid="ignore"):  # of infinities
        bad = np.flatnonzero((column % 1 != 0) | (np.abs(column) >= 2**53))
    if len(bad):
        raise InputError(f"{file}: row {bad[0]}: {column[bad[0]]}, expected the number of a class, or nan for none")
    return column.astype(np.int64)


def _masks(folder: Path, num_vertices: int) -> dict[str, np.ndarray] | None:
    kinds = sorted(kind for kind in folder.iterdir() if kind.is_dir()) if folder.is_dir() else []
    if not kinds:
        return None
    if len(kinds) > 1:
        found = ", ".join(kind.name for kind in kinds)
        raise InputError(f"{folder}: several splits ({found}), expected one; keep the one you want")
    masks = {}
    for split, stem in SPLITS.items():
        file = kinds[0] / f"{stem}.csv.gz"
        table = _table(file, np.int64, num_vertices)
        if table.shape[1] != 1:
            raise InputError(f"{file}: {table.shape[1]} columns, expected one, a vertex a line; download it again")
        members = table[:, 0]
        bad = np.flatnonzero((members < 0) | (members >= num_vertices))
        if len(bad):
            raise InputError(f"{file}: line {bad[0] + 1}: vertex {members[bad[0]]}, expected 0 to {num_vertices - 1}")
        masks[split] = np.zeros(num_vertices, dtype=bool)
        masks[split][members] = True
    return masks


def _table(file: Path, dtype: type, most: int) -> np.ndarray:
    """A small table, [rows, columns], of so many rows at most."""
    table = _parsed(file, itertools.islice(_lines(file), most + 1), dtype, 0)
    if len(table) > most:
        raise InputError(f"{file}: more than {most} lines, expected at most so many; download the dataset again")
    return table


def _features(file: Path, num_rows: int, into: Path) -> np.ndarray:
    features, lines = None, _lines(file)
    for lo in range(0, num_rows, ROWS):
        block = _parsed(file, itertools.islice(lines, ROWS), np.float32, lo)
        if len(block) != min(ROWS, num_rows - lo) or (features is not None and block.shape[1] != features.shape[1]):
            width = "some columns" if features is None else features.shape[1]
            raise InputError(
                f"{file}: {block.shape} after line {lo}, expected {num_rows} lines of {width}; download the dataset "
                "again"
            )
        if features is None:
            features = create_array(into, np.float32, (num_rows, block.shape[1]))
        features[lo : lo + len(block)] = block
    more = len(_parsed(file, itertools.islice(lines, ROWS), np.float32, num_rows))  # also reads the file's end
    if more:
        raise InputError(f"{file}: more lines than the {num_rows} expected; download the dataset again")
    return features


def _lines(file: Path) -> Iterator[str]:
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

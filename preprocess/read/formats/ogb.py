"""OGB node-property datasets as the ogb package unpacks them, ``raw/`` and ``split/`` in one folder; without ogb.

ogbn_arxiv/raw/edge.csv.gz, node-feat.csv.gz, node-label.csv.gz, num-node-list.csv.gz
ogbn_arxiv/split/time/train.csv.gz, valid.csv.gz, test.csv.gz
ogbn_papers100M/raw/data.npz, node-label.npz    (the binary form)
"""

from __future__ import annotations

import gzip
import itertools
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from hongtu.errors import InputError
from hongtu.preprocess.read.formats.text import DAMAGED, damaged, open_text
from hongtu.preprocess.read.source import Source, array_blocks

STORED_ONCE = ("ogbn_products", "ogbn_proteins")  # OGB adds the reverse of every edge when it loads these
SPLITS = {"train": "train", "val": "valid", "test": "test"}
ROWS = 1 << 15  # of features, parsed in one step


def is_ogb(path: Path) -> bool:
    """Whether this is the folder of a dataset."""
    return any((path / "raw" / name).is_file() for name in ("edge.csv.gz", "data.npz"))


def open_ogb(path: Path, scratch: Path, *, undirected: bool) -> Source:
    """One homogeneous graph; features go through a file in ``scratch``.

    Raises:
        InputError: when a file is missing or damaged, or the dataset needs ``--undirected``.
    """
    if path.resolve().name in STORED_ONCE and not undirected:
        raise InputError(f"{path}: stores each undirected edge once; pass --undirected, as OGB itself does")
    raw = path / "raw"
    source = _binary(raw) if (raw / "data.npz").is_file() else _text(raw, scratch)
    source.masks = _masks(path / "split", source.num_vertices)
    source.names |= {"features": str(raw), "labels": str(raw)}
    return source


def _text(raw: Path, scratch: Path) -> Source:
    counts = _table(raw / "num-node-list.csv.gz", np.int64)
    if counts.size != 1:
        raise InputError(
            f"{raw / 'num-node-list.csv.gz'}: {counts.size} graphs, expected one (a node-property dataset)"
        )
    source = open_text(raw / "edge.csv.gz", None)
    source.num_vertices = int(counts[0, 0])
    if (raw / "node-feat.csv.gz").is_file():
        source.features = _features(raw / "node-feat.csv.gz", source.num_vertices, scratch / "node-feat.npy")
    if (raw / "node-label.csv.gz").is_file():
        source.labels = _labels(_table(raw / "node-label.csv.gz", np.float64))
    return source


def _binary(raw: Path) -> Source:
    try:
        with np.load(raw / "data.npz") as data:
            edges, features = data["edge_index"], data.get("node_feat")
            count = int(np.ravel(data["num_nodes_list"])[0]) if "num_nodes_list" in data else None
        with np.load(raw / "node-label.npz") as data:
            labels = _labels(data["node_label"])
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"{raw}: data.npz or node-label.npz is not readable ({error}); download them again") from None
    blocks = array_blocks(str(raw / "data.npz"), edges[0], edges[1], None)
    return Source(
        name=str(raw / "data.npz"), blocks=blocks, num_vertices=count or len(labels), features=features, labels=labels
    )


def _labels(table: np.ndarray) -> np.ndarray:
    """One column: classes, with -1 for nan. Several: one yes or no each."""
    if table.ndim == 2 and table.shape[1] > 1:
        return table.astype(np.float32)
    column = table.ravel()
    return np.where(np.isnan(column), -1, column).astype(np.int64)


def _masks(folder: Path, num_vertices: int | None) -> dict[str, np.ndarray] | None:
    kinds = sorted(kind for kind in folder.iterdir() if kind.is_dir()) if folder.is_dir() else []
    if not kinds:
        return None
    if len(kinds) > 1:
        found = ", ".join(kind.name for kind in kinds)
        raise InputError(f"{folder}: several splits ({found}), expected one; keep the one you want")
    masks = {}
    for split, stem in SPLITS.items():
        file = kinds[0] / f"{stem}.csv.gz"
        members = _table(file, np.int64).ravel()
        bad = np.flatnonzero((members < 0) | (members >= num_vertices))
        if len(bad):
            raise InputError(f"{file}: line {bad[0] + 1}: vertex {members[bad[0]]}, expected 0 to {num_vertices - 1}")
        masks[split] = np.zeros(num_vertices, dtype=bool)
        masks[split][members] = True
    return masks


def _table(file: Path, dtype: type) -> np.ndarray:
    """A small table, [rows, columns]."""
    with _opened(file) as lines:
        return _parsed(file, lines, dtype, 0)


def _features(file: Path, num_vertices: int, into: Path) -> np.ndarray:
    features = None
    with _opened(file) as lines:
        for lo in range(0, num_vertices, ROWS):
            block = _parsed(file, itertools.islice(lines, ROWS), np.float32, lo)
            if features is None:
                features = np.lib.format.open_memmap(into, "w+", np.float32, (num_vertices, block.shape[1]))
            if len(block) != min(ROWS, num_vertices - lo) or block.shape[1] != features.shape[1]:
                raise InputError(
                    f"{file}: {block.shape} after line {lo}, expected {num_vertices} lines of {features.shape[1]}; "
                    "download the dataset again"
                )
            features[lo : lo + len(block)] = block
    return features


def _opened(file: Path) -> Any:
    try:
        return gzip.open(file, "rt")
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error}); download the dataset again") from None


def _parsed(file: Path, lines: Any, dtype: type, first: int) -> np.ndarray:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # no data: the caller compares the shape
            return np.loadtxt(lines, delimiter=",", dtype=dtype, ndmin=2)
    except DAMAGED as error:
        raise damaged(file, error) from None
    except (ValueError, OSError) as error:
        raise InputError(f"{file}: after line {first}: {error}; download the dataset again") from None

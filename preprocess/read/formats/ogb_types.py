"""OGB's heterogeneous datasets as the ogb package unpacks them (ogbn-mag), ``raw/`` and ``split/`` in one folder; the
same folder of torch_geometric's ``OGB_MAG``.

ogbn_mag/raw/num-node-dict.csv.gz        a column for each type of vertices: how many there are
ogbn_mag/raw/triplet-type-list.csv.gz    a line for each relation: its sources, its name, its destinations
ogbn_mag/raw/relations/author___writes___paper/edge.csv.gz
ogbn_mag/raw/node-feat/paper/node-feat.csv.gz, raw/node-label/paper/node-label.csv.gz
ogbn_mag/split/time/paper/train.csv.gz, valid.csv.gz, test.csv.gz
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from hongtu.config import PreprocessConfig
from hongtu.errors import InputError
from hongtu.preprocess.read.formats.hetero_data import TypedGraph, from_hetero
from hongtu.preprocess.read.formats.ogb import labels_of, masks_in, only_split
from hongtu.preprocess.read.formats.ogb_tables import open_pairs, read_features, read_filled, read_table
from hongtu.preprocess.read.graph import RawGraph
from hongtu.preprocess.read.size import Reading, check_count
from hongtu.preprocess.read.source import of_text

COUNTS, RELATIONS = "num-node-dict.csv.gz", "triplet-type-list.csv.gz"
MOST = 10_000  # relations


def is_ogb_types(path: Path) -> bool:
    """Whether this is the folder of a dataset with types."""
    return (path / "raw" / COUNTS).is_file()


def open_ogb_types(path: Path, scratch: Path, config: PreprocessConfig, reading: Reading) -> RawGraph:
    """One graph of all types, in OGB's order of them: by name; features go through files in ``scratch``."""
    raw = path / "raw"
    counts = _counts(raw / COUNTS)
    lines = itertools.islice(read_filled(raw / RELATIONS), MOST)
    relations: list[Any] = sorted(tuple(name.strip() for name in line.split(",")) for line in lines)
    for relation in relations:
        if len(relation) != 3 or not {relation[0], relation[2]} <= counts.keys() or not all(map(_is_name, relation)):
            raise InputError(
                f"{raw / RELATIONS}: {','.join(relation)}, expected a relation between two of {', '.join(counts)}; "
                "download it again"
            )
    stores: dict[Any, SimpleNamespace] = {}
    for kind, count in counts.items():
        stores[kind] = _vertices(path, kind, count, scratch, config, reading)
    for relation in relations:
        file = raw / "relations" / "___".join(relation) / "edge.csv.gz"
        stores[relation] = SimpleNamespace(edge_index=_edges(file))
    graph = TypedGraph([*counts], relations, stores)
    return from_hetero(graph, config, name=str(raw))


def _is_name(word: str) -> bool:
    """Of a folder; other words lead elsewhere."""
    return word not in ("", "..") and Path(word).name == word and "\0" not in word


def _counts(file: Path) -> Mapping[str, int]:
    """How many vertices each type has, by its name, in the order of names."""
    lines = [*itertools.islice(read_filled(file), 3)]
    names = [name.strip() for name in lines[0].split(",")] if lines else [""]
    numbers = lines[1].split(",") if len(lines) == 2 else []
    if (
        not all(map(_is_name, names))
        or len(names) != len({*names})
        or len(numbers) != len(names)
        or not all(number.strip().isdecimal() for number in numbers)
    ):
        raise InputError(
            f"{file}: expected two lines, names of types and how many vertices each has; download it again"
        )
    counts = dict(sorted(zip(names, map(int, numbers), strict=True)))
    check_count(sum(counts.values()), str(file))
    return counts


def _vertices(
    path: Path, kind: str, count: int, scratch: Path, config: PreprocessConfig, reading: Reading
) -> SimpleNamespace:
    """What there is of the vertices of a type, by torch_geometric's names."""
    raw, store = path / "raw", SimpleNamespace(num_nodes=count)
    rows, labels = raw / "node-feat" / kind / "node-feat.csv.gz", raw / "node-label" / kind / "node-label.csv.gz"
    if rows.is_file() and config.features is None:
        store.x = read_features(rows, count, scratch / f"node-feat-{kind}.npy", reading.progress)
    if labels.is_file() and not config.labels:
        store.y = labels_of(of_text(read_table(labels, np.float64, count)), labels, config)
    split = None if config.random_split else only_split(path / "split")
    if split is not None and (split / kind).is_dir():
        for name, mask in masks_in(split / kind, count).items():
            setattr(store, f"{name}_mask", mask)
    return store


def _edges(file: Path) -> np.ndarray:
    """int64 [2, E]."""
    if not file.is_file():
        raise InputError(f"{file}: no such file; download the dataset again")
    blocks = open_pairs(file).blocks
    assert blocks is not None
    parts = [np.stack([block.source, block.destination]) for block in blocks(False)]
    return np.concatenate([np.zeros((2, 0), np.int64), *parts], axis=1)

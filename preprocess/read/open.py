"""Any input on disk as a checked graph: which reader takes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hongtu.config import PreprocessConfig
from hongtu.errors import InputError
from hongtu.preprocess.read.check import check_and_complete
from hongtu.preprocess.read.collect import collect
from hongtu.preprocess.read.directory import read_directory
from hongtu.preprocess.read.formats import open_edges
from hongtu.preprocess.read.formats.networkx_graph import from_networkx, is_networkx
from hongtu.preprocess.read.formats.ogb import is_ogb, open_ogb
from hongtu.preprocess.read.formats.planetoid import is_planetoid, open_planetoid
from hongtu.preprocess.read.formats.pyg_data import from_data
from hongtu.preprocess.read.graph import RawGraph
from hongtu.preprocess.read.source import Source

EDGE_PIECES = ("edge_features", "edge_type")


def read_input(path: Path, config: PreprocessConfig, scratch: Path) -> RawGraph:
    """A graph from a file of edges, a directory in the neutral format, an OGB dataset or Planetoid's raw files.

    Args:
        path: file or directory.
        config: settings.
        scratch: an existing directory for arrays that the input has in another form.

    Raises:
        InputError: when nothing can read it, or at the first thing that is wrong with it.
    """
    if path.is_file():
        return _from_source(open_edges(path, config), config, scratch)
    if not path.is_dir():
        raise InputError(f"{path}: not a directory or file; expected edges.npy, features, labels and masks in one")
    if is_ogb(path):
        return _from_source(open_ogb(path, scratch, undirected=config.undirected), config, scratch)
    if is_planetoid(path):
        return _from_source(open_planetoid(path), config, scratch)
    return read_directory(path, config, scratch)


def read_data(data: Any, config: PreprocessConfig, scratch: Path, **given: Any) -> RawGraph:
    """A graph from torch_geometric's ``Data`` or NetworkX; what is given beside it replaces its own pieces."""
    source = from_networkx(data) if is_networkx(data) else from_data(data)
    for piece, value in given.items():
        if value is not None:
            setattr(source, piece, np.asarray(value) if piece in EDGE_PIECES else value)
            for name in ("train", "val", "test") if piece == "masks" else (piece,):
                source.names.pop(name, None)
    return _from_source(source, config, scratch)


def _from_source(source: Source, config: PreprocessConfig, scratch: Path) -> RawGraph:
    if config.relabel and source.ids is None and not source.numbered and source.num_vertices is not None:
        raise InputError(f"{source.name}: numbers its {source.num_vertices} vertices already; leave --relabel out")
    edges, weight, ids = collect(source, scratch, relabel=config.relabel)
    if source.num_vertices is not None:
        count, whence = source.num_vertices, f"{source.name} has {source.num_vertices} vertices"
    elif ids is not None:
        count, whence = len(ids), f"the input has {len(ids)} different ids"
    else:
        largest = max(
            (int(row[lo : lo + (1 << 22)].max()) for row in edges for lo in range(0, len(row), 1 << 22)), default=-1
        )
        count, whence = largest + 1, f"the largest id in {source.name} is {largest}"
    raw = RawGraph(
        edges=edges,
        num_vertices=count,
        vertices_from=whence,
        features=None if config.features else source.features,
        labels=None if config.labels else source.labels,
        masks=None if config.random_split else source.masks,
        edge_weight=weight,
        edge_features=source.edge_features,
        edge_type=source.edge_type,
        ids=ids,
        locate_edge=source.locate,
        names={"edges": source.name, **source.names},
    )
    for piece in ("features", "labels", "train", *EDGE_PIECES):
        raw.names.setdefault(piece, f"{source.name}: {piece}")
    return check_and_complete(raw, config)

"""Any input on disk as a checked graph: which reader takes it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hongtu.config import PreprocessConfig
from hongtu.errors import InputError
from hongtu.preprocess.read.arrays import as_array, as_features, as_masks
from hongtu.preprocess.read.check import check_and_complete
from hongtu.preprocess.read.collect import collect, refuse_relabel
from hongtu.preprocess.read.directory import read_directory
from hongtu.preprocess.read.formats import open_edges
from hongtu.preprocess.read.formats.networkx_graph import from_networkx, is_networkx
from hongtu.preprocess.read.formats.ogb import is_ogb, open_ogb
from hongtu.preprocess.read.formats.planetoid import is_planetoid, open_planetoid
from hongtu.preprocess.read.formats.pyg_data import from_data
from hongtu.preprocess.read.graph import SPLITS, RawGraph
from hongtu.preprocess.read.source import Source


def read_input(path: Path, config: PreprocessConfig, scratch: Path) -> RawGraph:
    """A graph from a file of edges, a directory in the neutral format, an OGB dataset or Planetoid's raw files.

    Args:
        path: file or directory.
        config: settings.
        scratch: an existing directory for arrays that the input has in another form.

    Raises:
        InputError: when nothing can read it, or at the first thing that is wrong with it.
    """
    try:
        return _read(path, config, scratch)
    except OSError as error:
        if error.filename is None or not Path(error.filename).is_relative_to(path):
            raise
        raise InputError(f"{error.filename}: cannot be read ({error.strerror}); mend or remove it") from None


def _read(path: Path, config: PreprocessConfig, scratch: Path) -> RawGraph:
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
    convert: dict[str, Callable[[Any], Any]] = {
        "features": as_features,
        "masks": as_masks,
    }
    for piece, value in given.items():
        if value is not None:
            setattr(source, piece, convert.get(piece, partial(as_array, piece))(value))
            for name in SPLITS if piece == "masks" else (piece,):
                source.names[name] = f"masks[{name!r}]" if piece == "masks" else piece
    if source.num_vertices is None:
        pieces = [piece for piece in (source.features, source.labels) if piece is not None and piece.ndim]
        source.num_vertices = pieces[0].shape[0] if pieces else None
    return _from_source(source, config, scratch)


def _from_source(source: Source, config: PreprocessConfig, scratch: Path) -> RawGraph:
    refuse_relabel(source, config)
    edges, weight, ids = collect(source, scratch, relabel=config.relabel)
    if source.num_vertices is not None:
        count, whence = source.num_vertices, f"{source.name} has {source.num_vertices} vertices"
    elif ids is not None:
        count, whence = len(ids), f"the input has {len(ids)} different ids"
    else:
        largest = max(
            (int(row[lo : lo + (1 << 22)].max()) for row in edges for lo in range(0, len(row), 1 << 22)), default=-1
        )
        count = largest + 1
        whence = f"the largest id in {source.name} is {largest}" if count else f"{source.name} has no edges"
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
    for piece in ("features", "labels", "train", "edge_features", "edge_type"):
        raw.names.setdefault(piece, f"{source.name}: {piece}")
    return check_and_complete(raw, config)

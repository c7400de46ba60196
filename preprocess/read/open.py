"""Any input as a checked graph: which reader takes it; and in-memory arrays (numpy, or anything ``np.asarray``
understands, such as CPU torch tensors)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hongtu.config import PreprocessConfig
from hongtu.errors import InputError
from hongtu.graph.given import as_array
from hongtu.preprocess.read.collect import complete
from hongtu.preprocess.read.directory import read_directory
from hongtu.preprocess.read.formats import open_edges, table
from hongtu.preprocess.read.formats.hetero_data import (
    from_dgl,
    from_dict,
    from_hetero,
    is_dgl,
    is_hetero,
    unread_of_dgl,
)
from hongtu.preprocess.read.formats.networkx_graph import from_networkx, is_networkx
from hongtu.preprocess.read.formats.ogb import from_loader, is_ogb, open_ogb
from hongtu.preprocess.read.formats.ogb_types import is_ogb_types, open_ogb_types
from hongtu.preprocess.read.formats.papers import is_papers, open_papers
from hongtu.preprocess.read.formats.planetoid import is_planetoid, open_planetoid
from hongtu.preprocess.read.formats.pyg_data import from_data
from hongtu.preprocess.read.formats.text_lines import unreadable
from hongtu.preprocess.read.graph import SPLIT_NAMES, SPLITS, RawGraph, find_masks
from hongtu.preprocess.read.size import Reading
from hongtu.preprocess.read.source import to_csr, to_edges
from hongtu.preprocess.read.typed import make_typed

# where readers look for files, beside the directory itself; an artifact may lie elsewhere in it
BELOW = ("ind.*", "raw/*", "raw/*/*/*", "split/*/*", "split/*/*/*", "edges.*/*", "processed/*/*")


def read_input(
    path: Path,
    config: PreprocessConfig,
    scratch: Path,
    reading: Reading = Reading(),  # noqa: B008 - it is frozen
) -> RawGraph:
    """A graph from a file of edges, or a directory: the neutral format, an OGB or IGB dataset or Planetoid's raw files.

    Args:
        scratch: an existing directory for arrays that the input has in another form.
        reading: who is told how far it is, of the largest formats.
    """
    try:
        return _read(path, config, scratch, reading)
    except MemoryError as error:
        raise InputError(f"{path}: does not fit in memory ({error or 'none is left'}); use a larger machine") from None
    except OSError as error:
        if error.filename is None or not Path(error.filename).is_relative_to(path):
            raise
        raise unreadable(error.filename, error) from None


def _read(path: Path, config: PreprocessConfig, scratch: Path, reading: Reading) -> RawGraph:
    for file in (file for pattern in BELOW for file in path.glob(pattern)):
        if file.exists() and not file.is_file() and not file.is_dir():
            raise InputError(f"{file}: not a file; mend or remove it")
    if path.is_file() or table.is_parts(path):
        return complete(open_edges(path, config), config, scratch)
    if not path.is_dir():
        raise InputError(f"{path}: not a directory or file; expected edges.npy, features, labels and masks in one")
    if is_ogb(path):
        return complete(open_ogb(path, scratch, config, reading), config, scratch)
    if is_ogb_types(path):
        return complete(open_ogb_types(path, scratch, config, reading), config, scratch)
    if is_papers(path):
        return complete(open_papers(path, config, reading), config, scratch)
    if is_planetoid(path):
        return complete(open_planetoid(path), config, scratch)
    return read_directory(path, config, scratch)


def read_data(data: Any, config: PreprocessConfig, scratch: Path, **given: Any) -> RawGraph:
    """A graph from torch_geometric's ``Data`` or ``HeteroData``, DGL or NetworkX; what is given beside it replaces its
    own pieces."""
    data = from_dgl(data) if is_dgl(data) else from_dict(from_loader(data))
    if is_hetero(data):
        raw = from_hetero(data, config, given=[piece for piece, value in given.items() if value is not None])
    else:
        raw = from_networkx(data) if is_networkx(data) else from_data(data)
    convert: dict[str, Callable[[Any], Any]] = {"features": as_features, "masks": as_masks}
    raw.notes += unread_of_dgl(data)
    for piece, value in given.items():
        if value is not None:
            raw.edge_forms.pop(piece, None)
            setattr(raw, piece, convert.get(piece, partial(as_array, piece))(value))
            for name in SPLITS if piece == "masks" else (piece,):
                raw.names[name] = f"masks[{name!r}]" if piece == "masks" else piece
    return complete(raw, config, scratch)


def from_arrays(
    edges: Any,
    num_vertices: int | None,
    config: PreprocessConfig,
    *,
    features: Any = None,
    labels: Any = None,
    masks: Mapping[str, Any] | None = None,
    edge_weight: Any = None,
    edge_features: Any = None,
    edge_type: Any = None,
    vertex_type: Any = None,
) -> RawGraph:
    """A checked graph; a mask that is not given is all False."""
    matrix = to_edges(edges, "edges")
    vertices = matrix.vertices if matrix is not None and num_vertices is None else num_vertices
    try:
        count = operator.index(vertices)
    except TypeError:
        whole = "; a Data, or a graph of DGL or NetworkX, is given as data=" if num_vertices is None else ""
        raise InputError(f"num_vertices is {num_vertices!r}, expected an integer{whole}") from None
    if matrix is not None:
        if matrix.values is not None and edge_weight is not None:
            raise InputError("edges: a matrix that holds weights, and so does edge_weight; remove one")
        edge_weight = matrix.values if edge_weight is None else edge_weight
        edges = np.stack([matrix.row, matrix.column]).astype(np.int64)
    raw = RawGraph(
        edges=_edges(edges),
        num_vertices=count,
        vertices_from=f"num_vertices={count}" if num_vertices is not None else f"edges is a matrix of {count} rows",
        features=None if config.features else as_features(features, vertex_type),
        masks=None if config.random_split or masks is None else as_masks(masks),
        names={split: f"masks[{split!r}]" for split in SPLITS},
    )
    beside = {"edge_weight": edge_weight, "edge_features": edge_features, "edge_type": edge_type}
    for piece, value in (beside | {"labels": None if config.labels else labels}).items():
        setattr(raw, piece, None if value is None else as_array(piece, value))
    return complete(raw, config)


def _edges(value: Any) -> np.ndarray:
    edges = as_array("edges", value)
    return edges.astype(np.int64) if edges.shape == (2, 0) else edges


def as_features(value: Any, vertex_type: Any = None) -> Any:
    """Dense, scipy CSR whose indices are within its shape, None, or with types a list of each type's."""
    if vertex_type is not None:
        parts = value if isinstance(value, list | tuple) else []
        names = [f"features[{k}]" for k in range(len(parts))]
        arrays = [as_array(name, part) for name, part in zip(names, parts, strict=True)]
        return make_typed(as_array("vertex_type", vertex_type), arrays, ("vertex_type", names))
    if value is None:
        return None
    sparse = to_csr(value)
    return as_array("features", value) if sparse is None else sparse


def as_masks(masks: Any) -> dict[str, np.ndarray]:
    """Those that are given, by split; "valid" is "val", as OGB calls it."""
    if not isinstance(masks, Mapping):
        raise InputError(f"masks: a {type(masks).__name__}, expected a dictionary with train, val and test")
    known = {name for names in SPLIT_NAMES.values() for name in names}
    unknown = set(masks) - known
    if unknown:
        raise InputError(f"masks: unknown key {sorted(map(str, unknown))[0]!r}, expected train, val and test")

    def get(key: str) -> np.ndarray | None:
        name = key.removesuffix("_mask")
        return None if masks.get(name) is None else as_array(f"masks[{name!r}]", masks[name])

    found = find_masks(get, lambda key: f"masks[{key.removesuffix('_mask')!r}]")
    return {split: mask for split, (_, mask) in found.items()}

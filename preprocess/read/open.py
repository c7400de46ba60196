"""Any input on disk as a checked graph: which reader takes it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hongtu.config import PreprocessConfig
from hongtu.errors import InputError
from hongtu.graph.given import as_array
from hongtu.preprocess.read.arrays import as_features, as_masks
from hongtu.preprocess.read.collect import complete
from hongtu.preprocess.read.directory import read_directory
from hongtu.preprocess.read.formats import open_edges, table
from hongtu.preprocess.read.formats.dgl_graph import from_dgl, is_dgl
from hongtu.preprocess.read.formats.hetero_data import from_hetero, is_hetero
from hongtu.preprocess.read.formats.networkx_graph import from_networkx, is_networkx
from hongtu.preprocess.read.formats.ogb import is_ogb, open_ogb
from hongtu.preprocess.read.formats.ogb_types import is_ogb_types, open_ogb_types
from hongtu.preprocess.read.formats.papers import is_papers, open_papers
from hongtu.preprocess.read.formats.planetoid import is_planetoid, open_planetoid
from hongtu.preprocess.read.formats.pyg_data import from_data
from hongtu.preprocess.read.graph import SPLITS, RawGraph
from hongtu.preprocess.read.size import Reading


def read_input(
    path: Path,
    config: PreprocessConfig,
    scratch: Path,
    reading: Reading = Reading(),  # noqa: B008 - it is frozen
) -> RawGraph:
    """A graph from a file of edges, or a directory: the neutral format, an OGB or IGB dataset or Planetoid's raw files.

    Args:
        path: file or directory.
        config: settings.
        scratch: an existing directory for arrays that the input has in another form.
        reading: who is told how far it is, of the largest formats.

    Raises:
        InputError: when nothing can read it, or at the first thing that is wrong with it.
    """
    try:
        return _read(path, config, scratch, reading)
    except MemoryError as error:
        raise InputError(f"{path}: does not fit in memory ({error or 'none is left'}); use a larger machine") from None
    except OSError as error:
        if error.filename is None or not Path(error.filename).is_relative_to(path):
            raise
        raise InputError(f"{error.filename}: cannot be read ({error.strerror}); mend or remove it") from None


def _read(path: Path, config: PreprocessConfig, scratch: Path, reading: Reading) -> RawGraph:
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
    data = from_dgl(data) if is_dgl(data) else data
    if is_hetero(data):
        needs_features = config.features is None and given.get("features") is None
        raw = from_hetero(data, needs_features=needs_features, numbers=config.task == "regression")
    else:
        raw = from_networkx(data) if is_networkx(data) else from_data(data)
    convert: dict[str, Callable[[Any], Any]] = {"features": as_features, "masks": as_masks}
    for piece, value in given.items():
        if value is not None:
            raw.edge_forms.pop(piece, None)
            setattr(raw, piece, convert.get(piece, partial(as_array, piece))(value))
            for name in SPLITS if piece == "masks" else (piece,):
                raw.names[name] = f"masks[{name!r}]" if piece == "masks" else piece
    return complete(raw, config, scratch)

"""A raw graph from a directory in the neutral format (README, "Train a graph")."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from hongtu.config import PreprocessConfig
from hongtu.errors import InputError, note
from hongtu.files import open_npy, read_json
from hongtu.preprocess.read.collect import complete, refuse_relabel, rows_beside
from hongtu.preprocess.read.formats import open_edges
from hongtu.preprocess.read.formats.scipy_matrix import load_matrix
from hongtu.preprocess.read.formats.table import ENDINGS as TABLE
from hongtu.preprocess.read.formats.table import explain_folder, is_parts
from hongtu.preprocess.read.formats.text import ENDINGS as TEXT
from hongtu.preprocess.read.formats.text_lines import ending_of
from hongtu.preprocess.read.graph import SPLITS, RawGraph, find_masks
from hongtu.preprocess.read.source import NotIntegers, array_blocks, as_integers, as_names
from hongtu.preprocess.read.typed import make_typed

SHOWN = 9  # files in a message
OF_VERTICES = re.compile("node|vert|feat|label|attr|^[xy]$")  # in the name of a table
READERS = {".parquet": "parquet", ".feather": "feather", ".arrow": "feather"}  # of pandas


def read_directory(path: Path, config: PreprocessConfig, scratch: Path | None = None) -> RawGraph:
    """A checked graph whose large arrays stay memory-mapped.

    Vertices may have types, ``vertex_type.npy``, and then each type features of its own, ``features_0.npy``, ...
    The edges are ``edges.npy``, or one file ``edges.*`` of another format. The number of vertices is meta.json's
    ``nodes``, else the rows of the features, else of the labels, else of the masks, else the largest id + 1.

    Args:
        scratch: directory for edges of another format; not needed for ``edges.npy``.
    """
    meta = _meta(path / "meta.json")
    masks = {} if config.random_split else _masks(path)
    pieces = {
        "features": None if config.features else _features(path),
        "labels": None if config.labels else _optional(path / "labels.npy"),
        "masks": {split: mask for split, (_, mask) in masks.items()} or None,
        **{piece: _optional(path / f"{piece}.npy") for piece in ("edge_weight", "edge_features", "edge_type")},
        "classes": None if config.labels else meta.get("classes"),
        "names": _names(path) | {split: str(path / f"{key}.npy") for split, (key, _) in masks.items()},
    }
    raw = _edges(path, config, have_rows=any(pieces[name] is not None for name in ("features", "labels", "masks")))
    unread = _unread(path)
    if unread is not None and pieces["features"] is None and not config.features:
        raise InputError(
            f"{path / 'features.npy'}: missing, and {unread.name} is not read; save its columns, a row for each vertex "
            f"in their order, numpy.save('features.npy', pandas.read_{READERS.get(ending_of(unread), 'csv')}"
            f"('{unread.name}')[COLUMNS].to_numpy()), and labels.npy, train_mask.npy likewise"
        )
    for piece, value in pieces.items():
        setattr(raw, piece, value)
    stated, beside = raw.num_vertices, rows_beside(raw)
    if meta.get("nodes") is not None:
        beside = meta["nodes"], f"{path / 'meta.json'} says {meta['nodes']} nodes"
    if beside is not None:
        raw.num_vertices, raw.vertices_from = beside
    if stated not in (None, raw.num_vertices):
        raise InputError(
            f"{raw.name('edges')}: {stated} vertices, but {raw.vertices_from}; give both for the same vertices"
        )
    done = complete(raw, config, scratch)
    if unread is not None:
        note(f"{unread}: is not read; features, labels and masks are .npy files")
    return done


def _edges(path: Path, config: PreprocessConfig, *, have_rows: bool) -> RawGraph:
    files = sorted(path.glob("edges.*"))
    if len(files) > 1:
        raise InputError(f"{path}: holds both {files[0].name} and {files[1].name}; remove one")
    if files and not files[0].is_file() and not is_parts(files[0]):
        raise InputError(f"{files[0]}: {explain_folder(files[0]) or 'not a file; mend or remove it'}")
    if not files and path.name != "raw" and (reason := explain_folder(path)):
        raise InputError(f"{path}: {reason}")
    if not files:
        raise InputError(
            f"{path / 'edges.npy'}: missing{_found(path)}; save int32 or int64 [2, E], row 0 source, row 1 destination"
        )
    ids, file = read_ids(path / "ids.npy"), files[0]
    if config.relabel and ids is None and have_rows:
        raise InputError(
            f"{path / 'ids.npy'}: missing; with --relabel, save the id that each row of features, labels and masks has"
        )
    if file.suffix.lower() != ".npy":
        raw = open_edges(file, config)
    elif config.relabel:
        edges = _load(file)
        if edges.ndim != 2 or edges.shape[0] != 2:
            raise InputError(f"{file}: shape {edges.shape}, expected [2, E], row 0 source, row 1 destination")
        raw = RawGraph(title=str(file), blocks=array_blocks(str(file), edges[0], edges[1], None))
    else:
        raw = RawGraph(title=str(file), edges=_load(file))
    refuse_relabel(raw, config)
    raw.ids = ids if config.relabel else None
    return raw


def read_ids(file: Path) -> np.ndarray | list[str] | None:
    """The id of every vertex, from int64 or text [V]; None where there is no file."""
    ids = _optional(file)
    if ids is None:
        return None
    if ids.ndim != 1 or ids.dtype.kind not in "iuU":
        raise InputError(f"{file}: {ids.dtype} of shape {ids.shape}, expected integers or text [N], one id a vertex")

    def where(k: int) -> str:
        return f"{file}: [{k}]"

    try:
        return as_integers(str(file), ids, where)
    except NotIntegers:
        return as_names(str(file), ids, where)


def _unread(path: Path) -> Path | None:
    """A table that, by its name, is of vertices."""
    beside = (file for file in sorted(path.iterdir()) if file.is_file() and ending_of(file) in (*TABLE, *TEXT))
    return next((file for file in beside if OF_VERTICES.search(file.stem.lower())), None)


def _names(path: Path) -> dict[str, str]:
    pieces = ("ids", "labels", "edge_weight", "edge_features", "edge_type")
    names = {piece: str(path / f"{piece}.npy") for piece in pieces}
    names |= {split: str(path / f"{split}_mask.npy") for split in SPLITS}
    names |= {file.stem: str(file) for file in (path / "vertex_type.npy", *_typed_files(path))}
    names["features"] = str(path / ("features.npz" if (path / "features.npz").is_file() else "features.npy"))
    return names


def _meta(file: Path) -> dict[str, Any]:
    if not os.path.lexists(file):
        return {}
    if not file.is_file():
        raise InputError(f"{file}: not a file; mend or remove it")
    meta = read_json(file, "mend or remove it")
    if not isinstance(meta, dict):
        raise InputError(f'{file}: holds a {type(meta).__name__}, expected an object such as {{"nodes": 2708}}')
    for key, least in (("nodes", 0), ("classes", 1)):
        value = meta.get(key)
        if value is not None and (type(value) is not int or value < least):
            raise InputError(f"{file}: {key} is {value!r}, expected an integer of at least {least}")
    return meta


def _load(file: Path) -> np.ndarray:
    return np.asarray(open_npy(file, "save it with numpy.save"))


def _optional(file: Path) -> np.ndarray | None:
    if os.path.lexists(file) and not file.is_file():
        raise InputError(f"{file}: not a file; mend or remove it")  # a directory, a link to nothing
    return _load(file) if file.is_file() else None


def _features(path: Path) -> Any:
    dense, sparse = path / "features.npy", path / "features.npz"
    types, typed = path / "vertex_type.npy", _typed_files(path)
    if typed or os.path.lexists(types):
        if os.path.lexists(dense) or os.path.lexists(sparse):
            other = typed[0] if typed else types
            raise InputError(f"{path}: holds both features of all vertices and {other.name}; remove one")
        return make_typed(_optional(types), [_load(file) for file in typed], (str(types), list(map(str, typed))))
    if not os.path.lexists(sparse):
        return _optional(dense)
    if os.path.lexists(dense):
        raise InputError(f"{path}: holds both features.npy and features.npz; remove one")
    return load_matrix(sparse).tocsr()


def _typed_files(path: Path) -> list[Path]:
    """features_0.npy, features_1.npy, ..."""
    files = (path / f"features_{k}.npy" for k in itertools.count())
    return list(itertools.takewhile(Path.is_file, files))


def _found(path: Path) -> str:
    """What the directory holds in place of edges, for messages."""
    if (path / "manifest.json").is_file():
        return ", and it is an artifact: hongtu.open_artifact(path) opens it"
    known = next((name for name in ("raw", "processed") if path.name == name or (path / name).is_dir()), None)
    names = sorted(file.name + "/" * file.is_dir() for file in path.iterdir())[:SHOWN]
    above = f"; of a dataset's folder pass the one that holds {known}/ with all its files" if known else ""
    return f", found {', '.join(names) or 'nothing'}{above}"


def _masks(path: Path) -> dict[str, tuple[str, np.ndarray]]:
    """By split the name of the file and the mask, of those that are there."""
    found = find_masks(lambda key: _optional(path / f"{key}.npy"), lambda key: str(path / f"{key}.npy"))
    missing = [f"{split}_mask.npy" for split in SPLITS[1:] if split not in found]
    if found and missing:
        note(f"{path}: no {' and no '.join(missing)}: no vertex is scored there")
    return found

"""A raw graph from a directory in the neutral format (README, "Train a graph")."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from hongtu.config import PreprocessConfig
from hongtu.errors import InputError
from hongtu.files import open_npy
from hongtu.preprocess.read.check import check_and_complete
from hongtu.preprocess.read.collect import collect, refuse_relabel
from hongtu.preprocess.read.formats import open_edges
from hongtu.preprocess.read.formats.scipy_matrix import load_matrix
from hongtu.preprocess.read.graph import SPLITS, RawGraph
from hongtu.preprocess.read.source import Names, NotIntegers, Source, array_blocks, as_integers, text_ids
from hongtu.preprocess.read.typed import make_typed

BLOCK = 1 << 22  # edges looked at in one step


def read_directory(path: Path, config: PreprocessConfig, scratch: Path | None = None) -> RawGraph:
    """A checked graph whose large arrays stay memory-mapped.

    Vertices may have types, ``vertex_type.npy``, and then each type features of its own, ``features_0.npy``, ...
    The edges are ``edges.npy``, or one file ``edges.*`` of another format. The number of vertices is meta.json's
    ``nodes``, else the rows of the features, else of the labels, else of the masks, else the largest id + 1.

    Args:
        path: the directory.
        config: settings.
        scratch: directory for edges of another format; not needed for ``edges.npy``.

    Raises:
        InputError: when a file is missing, unreadable, or wrong.
    """
    meta = _meta(path / "meta.json")
    raw = RawGraph(
        edges=None,
        features=None if config.features else _features(path),
        labels=None if config.labels else _optional(path / "labels.npy"),
        masks=None if config.random_split else _masks(path),
        edge_weight=_optional(path / "edge_weight.npy"),
        edge_features=_optional(path / "edge_features.npy"),
        edge_type=_optional(path / "edge_type.npy"),
        classes=None if config.labels else meta.get("classes"),
        names=_names(path),
    )
    _read_edges(raw, path, config, scratch)
    stated = raw.num_vertices
    raw.num_vertices, raw.vertices_from = _vertices(raw, meta, path)
    if stated not in (None, raw.num_vertices):
        raise InputError(
            f"{raw.name('edges')}: {stated} vertices, but {raw.vertices_from}; give both for the same vertices"
        )
    return check_and_complete(raw, config)


def _read_edges(raw: RawGraph, path: Path, config: PreprocessConfig, scratch: Path | None) -> None:
    files = sorted(path.glob("edges.*"))
    if len(files) > 1:
        raise InputError(f"{path}: holds both {files[0].name} and {files[1].name}; remove one")
    if files and not files[0].is_file():
        raise InputError(f"{files[0]}: not a file; mend or remove it")
    if not files:
        raise InputError(f"{path / 'edges.npy'}: missing; save int32 or int64 [2, E], row 0 source, row 1 destination")
    ids = read_ids(path / "ids.npy")
    if config.relabel and ids is None and any(piece is not None for piece in (raw.features, raw.labels, raw.masks)):
        raise InputError(
            f"{path / 'ids.npy'}: missing; with --relabel, save the id that each row of features, labels and masks has"
        )
    if files[0].suffix == ".npy" and not config.relabel:
        raw.edges = _load(files[0])
        return
    assert scratch is not None
    if files[0].suffix == ".npy":
        edges = _load(files[0])
        if edges.ndim != 2 or edges.shape[0] != 2:
            raise InputError(f"{files[0]}: shape {edges.shape}, expected [2, E], row 0 source, row 1 destination")
        source = Source(name=str(files[0]), blocks=array_blocks(str(files[0]), edges[0], edges[1], None))
    else:
        source = open_edges(files[0], config)
    source.names["ids"] = str(path / "ids.npy")
    raw.names["edges"] = str(files[0])
    refuse_relabel(source, config)
    source.ids = ids if config.relabel else None
    raw.num_vertices = source.num_vertices
    raw.edges, weight, raw.ids = collect(source, scratch, relabel=config.relabel)
    if weight is not None:
        if raw.edge_weight is not None:
            raise InputError(f"{path}: weights in both {files[0].name} and edge_weight.npy; remove one")
        raw.edge_weight = weight
    raw.locate_edge = source.locate


def read_ids(file: Path) -> np.ndarray | Names | None:
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
        return text_ids(str(file), ids, where)


def _names(path: Path) -> dict[str, str]:
    pieces = ("edges", "labels", "edge_weight", "edge_features", "edge_type")
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
    try:
        meta = json.loads(file.read_text())
    except (ValueError, OSError, RecursionError) as error:
        raise InputError(f"{file}: not valid JSON ({error}); mend or remove it") from None
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


def _masks(path: Path) -> dict[str, np.ndarray] | None:
    masks = {split: _optional(path / f"{split}_mask.npy") for split in SPLITS}
    missing = [split for split in SPLITS if masks[split] is None]
    if len(missing) == len(SPLITS):
        return None
    if missing:
        raise InputError(
            f"{path / missing[0]}_mask.npy: missing although other masks are there; "
            "save it (bool [N], all False for none), or pass --random-split 0.6,0.2,0.2"
        )
    return masks


def _vertices(raw: RawGraph, meta: dict[str, Any], path: Path) -> tuple[int, str]:
    if raw.ids is not None:
        return len(raw.ids), f"the input has {len(raw.ids)} different ids"
    if meta.get("nodes") is not None:
        return meta["nodes"], f"{path / 'meta.json'} says {meta['nodes']} nodes"
    if raw.features is not None and raw.features.ndim >= 1:
        rows, piece = raw.features.shape[0], "vertex_type" if "features_0" in raw.names else "features"
    elif raw.labels is not None and raw.labels.ndim >= 1:
        rows, piece = raw.labels.shape[0], "labels"
    elif raw.masks is not None and raw.masks["train"].ndim >= 1:
        rows, piece = raw.masks["train"].shape[-1], "train"
    elif raw.num_vertices is not None:
        return raw.num_vertices, f"{raw.name('edges')} has {raw.num_vertices} vertices"
    else:
        largest = _largest(raw.edges) if raw.edges.ndim == 2 and raw.edges.dtype.kind in "iu" else -1
        name = Path(raw.name("edges")).name
        return max(
            largest, -1
        ) + 1, f"the largest id in {name} is {largest}" if largest >= 0 else f"{name} has no edges"
    return rows, f"{raw.name(piece)} has {rows} rows"


def _largest(edges: np.ndarray) -> int:
    """The largest id, or -1; by blocks, so that a memory map is not read into memory whole."""
    return max((int(row[lo : lo + BLOCK].max()) for row in edges for lo in range(0, len(row), BLOCK)), default=-1)

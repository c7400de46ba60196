"""A raw graph from a directory in the neutral format (README, "Input")."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from hongtu.config import PreprocessConfig
from hongtu.errors import InputError
from hongtu.npy import open_npy
from hongtu.preprocess.read.check import check_and_complete
from hongtu.preprocess.read.graph import SPLITS, RawGraph


def read_directory(path: Path, config: PreprocessConfig) -> RawGraph:
    """A checked graph whose large arrays stay memory-mapped.

    The number of vertices is meta.json's ``nodes``, else the rows of the features, else of the labels, else of the
    masks, else the largest id + 1.

    Raises:
        InputError: when a file is missing, unreadable, or wrong.
    """
    if not path.is_dir():
        raise InputError(f"{path}: not a directory; expected one with edges.npy, features, labels and masks")
    if not (path / "edges.npy").is_file():
        raise InputError(f"{path / 'edges.npy'}: missing; save int32 or int64 [2, E], row 0 source, row 1 destination")
    meta = _meta(path / "meta.json")
    raw = RawGraph(
        edges=_load(path / "edges.npy"),
        features=None if config.features else _features(path),
        labels=None if config.labels else _optional(path / "labels.npy"),
        masks=None if config.random_split else _masks(path),
        edge_weight=_optional(path / "edge_weight.npy"),
        classes=None if config.labels else meta.get("classes"),
        names=_names(path),
    )
    raw.num_vertices, raw.vertices_from = _vertices(raw, meta, path)
    return check_and_complete(raw, config)


def _names(path: Path) -> dict[str, str]:
    names = {piece: str(path / f"{piece}.npy") for piece in ("edges", "labels", "edge_weight")}
    names |= {split: str(path / f"{split}_mask.npy") for split in SPLITS}
    names["features"] = str(path / ("features.npz" if (path / "features.npz").is_file() else "features.npy"))
    return names


def _meta(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
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
    return _load(file) if file.is_file() else None


def _features(path: Path) -> Any:
    dense, sparse = path / "features.npy", path / "features.npz"
    if not sparse.is_file():
        return _optional(dense)
    if dense.is_file():
        raise InputError(f"{path}: holds both features.npy and features.npz; remove one")
    import scipy.sparse

    try:
        matrix = scipy.sparse.load_npz(sparse).tocsr()
        matrix.check_format(full_check=True)
    except Exception as error:  # zip, pickle, key and value errors: all mean the file is not what it should be
        raise InputError(f"{sparse}: not a readable scipy CSR matrix ({error}); use scipy.sparse.save_npz") from None
    return matrix


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
    if meta.get("nodes") is not None:
        return meta["nodes"], f"{path / 'meta.json'} says {meta['nodes']} nodes"
    if raw.features is not None and raw.features.ndim >= 1:
        rows, piece = raw.features.shape[0], "features"
    elif raw.labels is not None and raw.labels.ndim >= 1:
        rows, piece = raw.labels.shape[0], "labels"
    elif raw.masks is not None and raw.masks["train"].ndim >= 1:
        rows, piece = raw.masks["train"].shape[-1], "train"
    else:
        largest = int(raw.edges.max()) if raw.edges.size and raw.edges.dtype.kind in "iu" else -1
        return max(largest, -1) + 1, f"the largest id in edges.npy is {largest}"
    return rows, f"{raw.name(piece)} has {rows} rows"

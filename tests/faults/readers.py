"""Everything that reads a file: for the fuzzer, one line of ``READERS`` each.

``read`` is hongtu's reader on a file; ``meaning`` says, slowly and by other means, what the same bytes mean; where the
reader takes them, both must agree. ``sample`` are files that must be taken.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np

from hongtu.config import PreprocessConfig
from hongtu.hardware import PROFILES, Hardware, load_hardware
from hongtu.preprocess.read.directory import read_directory
from tests.faults.formats import FORMATS
from tests.faults.reader import Reader
from tests.neutral import pieces

PIECE_OF = {"edges": "edges", "features": "features", "labels": "labels", "edge_weight": "edge_weight"}


def _saved(*arrays: np.ndarray) -> tuple[bytes, ...]:
    found = []
    for array in arrays:
        stream = io.BytesIO()
        np.save(stream, array)
        found.append(stream.getvalue())
    return tuple(found)


def _loaded(content: bytes) -> np.ndarray:
    return np.load(io.BytesIO(content), allow_pickle=False)


def _read_piece(name: str) -> Callable[[Path], Any]:
    """One piece of a graph in the neutral format; the rest of it is there and valid."""

    def read(file: Path) -> Any:
        raw = read_directory(file.parent, PreprocessConfig(partitions=2, chunks=3))
        if name.endswith("_mask"):
            return np.array(raw.masks[name.removesuffix("_mask")])
        found = getattr(raw, name)
        return found.toarray() if hasattr(found, "toarray") else np.array(found)

    return read


def _edges(content: bytes) -> np.ndarray:
    edges = _loaded(content)
    assert edges.shape[0] == 2 and edges.min(initial=0) >= 0 and edges.max(initial=0) < 24, "out of bounds"
    return edges


def _labels(content: bytes) -> np.ndarray:
    """One class of each vertex, perhaps in a column; of several columns -1 is none, as nan is."""
    labels = _loaded(content)
    whole = labels.dtype.kind in "biu"
    if labels.ndim == 2 and not (whole and labels.shape[1] == 1):
        return np.where(whole & (labels == -1), np.nan, labels).astype(np.float32)
    return np.where(labels != labels, -1, labels).astype(np.int64).reshape(len(labels))


def _mask(content: bytes) -> np.ndarray:
    mask = _loaded(content)
    assert np.isin(mask, (0, 1)).all()
    return (mask[0] if mask.ndim == 2 else mask).astype(bool)


def _sparse() -> tuple[bytes, ...]:
    import scipy.sparse

    found = []
    for compressed in (False, True):
        stream = io.BytesIO()
        scipy.sparse.save_npz(stream, scipy.sparse.csr_matrix(np.eye(24, 5, dtype=np.float32)), compressed=compressed)
        found.append(stream.getvalue())
    return tuple(found)


def _dense_of_sparse(content: bytes) -> np.ndarray:
    """Added up entry by entry."""
    with np.load(io.BytesIO(content), allow_pickle=False) as found:
        given = {name: found[name] for name in found.files}
    dense = np.zeros(tuple(int(x) for x in given["shape"]), dtype=given["data"].dtype)
    by_row = bytes(given["format"].item()) == b"csr"
    for major in range(len(given["indptr"]) - 1):
        for k in range(int(given["indptr"][major]), int(given["indptr"][major + 1])):
            at = (major, int(given["indices"][k])) if by_row else (int(given["indices"][k]), major)
            dense[at] += given["data"][k]
    return dense if dense.dtype.kind == "f" else dense.astype(np.float32)


def _read_meta(file: Path) -> Any:
    raw = read_directory(file.parent, PreprocessConfig(partitions=2, chunks=3))
    return raw.num_vertices, raw.classes


def _meta(content: bytes) -> Any:
    meta = json.loads(content.decode())
    classes, nodes = meta.get("classes"), meta.get("nodes")
    return (24 if nodes is None else nodes), (3 if classes is None else classes)


def _read_hardware(file: Path) -> Any:
    return {key: value for key, value in vars(load_hardware(file)).items() if value is not None}


def _hardware(content: bytes) -> Any:
    given = json.loads(content.decode())
    stated = {field.name: field.default for field in fields(Hardware) if field.default is not MISSING} | given
    return {key: value for key, value in stated.items() if value is not None}


_CPU_PROFILE = json.dumps({key: value for key, value in vars(PROFILES["h200"]).items() if value is not None}).encode()
_GRAPH = pieces()
_MULTI = (np.arange(72).reshape(24, 3) % 2).astype(np.float32)

READERS = {
    "edges.npy": Reader(
        "edges.npy", _saved(_GRAPH["edges"], _GRAPH["edges"].astype(np.int32)), _read_piece("edges"), _edges
    ),
    "features.npy": Reader(
        "features.npy",
        _saved(_GRAPH["features"], np.asfortranarray(_GRAPH["features"].astype(np.float64))),
        _read_piece("features"),
        _loaded,
    ),
    "features.npz": Reader("features.npz", _sparse(), _read_piece("features"), _dense_of_sparse, ("features.npy",)),
    "labels.npy": Reader("labels.npy", _saved(_GRAPH["labels"], _MULTI), _read_piece("labels"), _labels),
    "train_mask.npy": Reader("train_mask.npy", _saved(_GRAPH["train_mask"]), _read_piece("train_mask"), _mask),
    "edge_weight.npy": Reader(
        "edge_weight.npy", _saved(np.ones(60, np.float32), np.ones(60)), _read_piece("edge_weight"), _loaded
    ),
    "edge_features.npy": Reader(
        "edge_features.npy",
        _saved(np.ones((60, 3), np.float32), np.asfortranarray(np.ones((60, 2)))),
        _read_piece("edge_features"),
        _loaded,
    ),
    "edge_type.npy": Reader(
        "edge_type.npy", _saved(np.arange(60) % 5, np.zeros(60, np.uint8)), _read_piece("edge_type"), _loaded
    ),
    "meta.json": Reader("meta.json", (b'{"nodes": 24, "classes": 3}', b'{"name": "x"}'), _read_meta, _meta),
    "hardware profile": Reader("hardware.json", (_CPU_PROFILE,), _read_hardware, _hardware, arguments=None),
    **FORMATS,
}

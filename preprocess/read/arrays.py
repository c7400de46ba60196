"""A raw graph from in-memory arrays (numpy, or anything ``np.asarray`` understands, such as CPU torch tensors)."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from hongtu.config import PreprocessConfig
from hongtu.errors import InputError
from hongtu.graph.given import as_array
from hongtu.preprocess.read.collect import complete
from hongtu.preprocess.read.graph import SPLIT_NAMES, SPLITS, RawGraph, find_masks
from hongtu.preprocess.read.sparse import to_csr, to_edges
from hongtu.preprocess.read.typed import make_typed


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
    """A checked graph; a mask that is not given is all False.

    Raises:
        InputError: for everything the neutral format refuses.
    """
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

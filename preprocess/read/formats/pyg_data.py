"""torch_geometric's ``Data``, or anything with its fields: no import of it, or of torch, is needed."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from hongtu.errors import InputError
from hongtu.preprocess.read.graph import SPLITS, RawGraph
from hongtu.preprocess.read.source import array_blocks
from hongtu.preprocess.read.sparse import to_csr

FIELDS = {"features": "x", "labels": "y", **{split: f"{split}_mask" for split in SPLITS}}
EDGE_FIELDS = {"edge_features": "edge_attr", "edge_type": "edge_type"}


def from_data(data: Any, name: str = "data") -> RawGraph:
    """One graph from ``edge_index``, ``edge_weight``, ``edge_attr``, ``edge_type``, ``x``, ``y`` and the masks.

    A one-column ``edge_attr`` without ``edge_weight`` is the weights; any other is edge features.

    Args:
        data: a ``Data`` or a mapping with its fields.
        name: what messages call it.

    Raises:
        InputError: when there is no edge list, or a field is no array.
    """

    def field(key: str) -> np.ndarray | None:
        value = _get(data, key)
        return None if value is None else _array(f"{name}.{key}", value)

    edges = field("edge_index")
    if edges is None:
        raise InputError(f"{name}: no edge_index (fields of one homogeneous graph are expected), found {_fields(data)}")
    if edges.ndim != 2 or edges.shape[0] != 2:
        raise InputError(f"{name}.edge_index: shape {edges.shape}, expected [2, E], row 0 source, row 1 destination")
    attributes, labels, sparse = field("edge_attr"), field("y"), to_csr(_get(data, "x"), f"{name}.x")
    features = _floats(field("x") if sparse is None else sparse)
    are_weights = field("edge_weight") is None and attributes is not None and attributes.size == edges.shape[1]
    weight = _weight(field, name, edges.shape[1], "edge_attr" if are_weights else "edge_weight")
    if attributes is not None and attributes.ndim == 1:
        attributes = attributes[:, None]
    masks = {split: field(FIELDS[split]) for split in SPLITS}
    given = masks["train"] is not None
    splits = [mask.T if mask is not None and mask.ndim == 2 else mask for mask in masks.values()]
    blank = np.zeros_like(splits[0]) if given else None
    return RawGraph(
        title=name,
        blocks=array_blocks(f"{name}.edge_index", edges[0], edges[1], weight),
        num_vertices=_num_vertices(data, name),
        features=features,
        labels=labels.ravel() if labels is not None and labels.shape[1:] == (1,) else labels,
        masks={s: blank if mask is None else mask for s, mask in zip(SPLITS, splits)} if given else None,
        edge_features=None if are_weights else _floats(attributes),
        edge_type=field("edge_type"),
        names={piece: f"{name}.{key}" for piece, key in (FIELDS | EDGE_FIELDS).items()},
    )


def _array(name: str, value: Any) -> np.ndarray:
    try:
        return np.asarray(value.to_dense() if hasattr(value, "to_dense") else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name}: not convertible to an array ({error}); pass a detached CPU tensor") from None


def _weight(field: Any, name: str, count: int, what: str) -> np.ndarray | None:
    weight = field(what)
    if weight is None:
        return None
    if weight.size != count:
        raise InputError(f"{name}.{what}: {weight.size} values for {count} edges, expected one each")
    if weight.dtype.kind not in "biuf":
        raise InputError(f"{name}.{what}: {weight.dtype}, expected real numbers; save one float a edge")
    return weight.ravel()


def _floats(features: Any) -> Any:
    return features.astype(np.float32) if features is not None and features.dtype.kind in "biu" else features


def _get(data: Any, key: str) -> Any:
    return data.get(key) if isinstance(data, Mapping) else getattr(data, key, None)


def _num_vertices(data: Any, name: str) -> int | None:
    count = _get(data, "num_nodes")
    try:
        return None if count is None else operator.index(count)
    except TypeError:
        raise InputError(f"{name}.num_nodes: {count!r}, expected an integer") from None


def _fields(data: Any) -> str:
    if not hasattr(data, "keys") and not hasattr(data, "__dict__"):
        return f"a {type(data).__name__}"
    keys = data.keys() if callable(getattr(data, "keys", None)) else vars(data)
    return ", ".join(map(str, keys))[:200] or "nothing"

"""A checked graph as arrays and values that a file can hold, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from hongtu.preprocess.read.graph import SPLITS, RawGraph
from hongtu.preprocess.read.typed import TypedFeatures

SPARSE = ("data", "indices", "indptr")


def to_pieces(raw: RawGraph) -> dict[str, Any]:
    """Arrays, and values that JSON holds."""
    same = ("classes", "edges", "edge_weight", "labels", "edge_features", "edge_type", "edge_types", "partition")
    pieces: dict[str, Any] = {name: getattr(raw, name) for name in same}
    pieces |= {"vertices": raw.num_vertices, "input_edges": int(raw.edges.shape[1])}
    if raw.types is not None:
        pieces["types"] = raw.types
    if forms := raw.edge_forms | (
        {} if raw.edge_weight is None else {"edge_weight": raw.edge_forms.get("edge_weight", "field")}
    ):
        pieces["edge_forms"] = forms
    pieces |= {f"{split}_mask": raw.masks[split] for split in SPLITS}
    if isinstance(raw.ids, list):
        names = [name.encode() for name in raw.ids]
        pieces["name_start"] = np.cumsum([0, *map(len, names)], dtype=np.int64)
        pieces["name_text"] = np.frombuffer(b"".join(names), dtype=np.uint8)
    elif raw.ids is not None:
        pieces["vertex_id"] = raw.ids
    if isinstance(raw.features, TypedFeatures):
        pieces |= {f"features_{k}": part for k, part in enumerate(raw.features.parts)}
        pieces |= {"vertex_type": raw.features.vertex_type, "feature_parts": len(raw.features.parts)}
    elif isinstance(raw.features, np.ndarray):
        pieces["features"] = raw.features
    elif raw.features is not None:
        pieces |= {f"features_{part}": getattr(raw.features, part) for part in SPARSE}
        pieces["features_shape"] = list(map(int, raw.features.shape))
    return {key: piece for key, piece in pieces.items() if piece is not None}


def features_of(pieces: dict[str, Any]) -> Any:
    """Dense [V, F], scipy CSR, features by type, or None."""
    if "feature_parts" in pieces:
        parts = [pieces[f"features_{k}"] for k in range(pieces["feature_parts"])]
        return TypedFeatures(pieces["vertex_type"], parts)
    if "features_shape" not in pieces:
        return pieces.get("features")
    import scipy.sparse

    stored = tuple(pieces[f"features_{part}"] for part in SPARSE)
    return scipy.sparse.csr_matrix(stored, shape=tuple(pieces["features_shape"]))

"""The graph as it was given: checked, complete, in original vertex order; and as a file can hold it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hongtu.errors import InputError
from hongtu.preprocess.read.source import EdgeBlock, NotIntegers
from hongtu.preprocess.read.typed import TypedFeatures

SPLIT_NAMES = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}
SPLITS = tuple(SPLIT_NAMES)


@dataclass(kw_only=True)
class RawGraph:
    """What a reader hands on.

    Attributes:
        title: what messages call the input.
        edges: int32 or int64 [2, E]; row 0 = source, row 1 = destination; possibly memory-mapped; None while they are a
            stream.
        blocks: ``blocks(as_text)`` starts the stream of edges anew; ids are names (lists of text) with ``as_text``,
            else int64, and an id that is no integer then raises ``NotIntegers``. None where the edges are an array.
        num_edges: how many edges the stream must have, or None where the format does not say.
        numbered: the stream holds numbers 0..V-1 whatever ``ids`` says.
        num_vertices: V; None until it is inferred.
        vertices_from: where V comes from, for messages; "" until that is known.
        features: float [V, F], a scipy CSR matrix of that shape, or None when ``--features`` synthesises them.
        labels: int64 [V] (-1 = none) or float32 [V, C] (NaN = none); before the check other forms, or None.
        masks: ``{"train" | "val" | "test": bool [V]}``; before the check possibly [S, V], or not all, or None.
        edge_weight: float [E] or None.
        edge_features: float [E, F] or None; possibly memory-mapped.
        edge_type: integers [E], from 0, or None; possibly memory-mapped.
        edge_types: how many types there are; None until it is known.
        types: names and counts of vertex types, and relations, as the manifest has them; None where there are no names.
        edge_forms: how the input has weights and features of edges, as ``hongtu.graph.artifact.Artifact`` says.
        whole: weights and features of edges may be integers.
        classes: number of classes; None until it is known.
        ids: the id that the input gives every vertex, int64 [V] or names [V]; None where ids are 0..V-1.
        partition: int32 [V] where the user has made one, or None.
        names: what messages call each piece, such as ``{"edges": "/data/cora/edges.npy"}``.
        notes: what a person should know of how it was read.
    """

    title: str = ""
    edges: np.ndarray | None = None
    blocks: Callable[[bool], Iterator[EdgeBlock]] | None = None
    num_edges: int | None = None
    numbered: bool = False
    num_vertices: int | None = None
    vertices_from: str = ""
    features: Any = None
    labels: np.ndarray | None = None
    masks: dict[str, np.ndarray] | None = None
    edge_weight: np.ndarray | None = None
    edge_features: np.ndarray | None = None
    edge_type: np.ndarray | None = None
    edge_types: int | None = None
    types: dict[str, Any] | None = None
    edge_forms: dict[str, str] = field(default_factory=dict)
    whole: bool = False
    classes: int | None = None
    ids: Any = None
    partition: np.ndarray | None = None
    names: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def name(self, piece: str) -> str:
        """What messages call a piece."""
        otherwise = self.title if piece == "edges" else f"{self.title}: {piece}"
        return self.names.get(piece, otherwise if self.title else piece)

    def expect(self, piece: str, array: Any, good: bool, expected: str) -> None:
        """Refuse an array of another form."""
        if not good:
            raise InputError(f"{self.name(piece)}: {array.dtype} of shape {array.shape}, expected {expected}")

    def locate_edge(self, edge: int) -> str:
        """Where an edge of the stream stands; reads the input again up to it."""
        for as_text in (False, True):
            first = 0
            try:
                for block in self.blocks(as_text):
                    if edge < first + len(block.source):
                        return block.where(edge - first)
                    first += len(block.source)
            except NotIntegers:
                continue
        return f"{self.title}: edge {edge}"


def find_masks(get: Callable[[str], Any], title: Callable[[str], str]) -> dict[str, tuple[str, Any]]:
    """Of each split that has a mask its name and the mask: "valid_mask" is that of "val", and "train_idx" and the like,
    vertex numbers, are looked at where there is no mask.

    >>> find_masks({"train_mask": [True], "valid_mask": [False]}.get, str)
    {'train': ('train_mask', [True]), 'val': ('valid_mask', [False])}

    Args:
        get: a piece by its name; None where there is none.
        title: what messages call a piece.

    Raises:
        InputError: where there are two of one split that differ.
    """
    found = {}
    for split, names in SPLIT_NAMES.items():
        for suffix in ("_mask", "_idx"):
            if split in found:
                break
            named = [(name + suffix, mask) for name in names if (mask := get(name + suffix)) is not None]
            for other, mask in named[1:]:
                if not np.array_equal(named[0][1], mask):
                    both = f"{title(named[0][0])} and {title(other)}"
                    raise InputError(f"{both}: are different masks of one split, {split}; remove one")
            if named:
                found[split] = named[0]
    return found


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

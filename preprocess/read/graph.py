"""The graph as it was given: checked, complete, in original vertex order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

SPLITS = ("train", "val", "test")


@dataclass(kw_only=True)
class RawGraph:
    """What the reader hands on.

    Attributes:
        edges: int32 or int64 [2, E]; row 0 = source, row 1 = destination; possibly memory-mapped.
        num_vertices: V; None until it is inferred.
        vertices_from: where V comes from, for messages.
        features: float [V, F], a scipy CSR matrix of that shape, or None when ``--features`` synthesises them.
        labels: int64 [V] (-1 = none) or float32 [V, C] (an all-NaN row = none); before the check possibly float [V].
        masks: ``{"train" | "val" | "test": bool [V]}``; before the check possibly [S, V].
        edge_weight: float [E] or None.
        edge_features: float [E, F] or None; possibly memory-mapped.
        edge_type: integers [E], from 0, or None; possibly memory-mapped.
        edge_types: how many types there are; None until it is known.
        classes: number of classes; None until it is known.
        ids: the id that the input gives every vertex, int64 [V] or ``Names``; None where ids are 0..V-1.
        locate_edge: says where the k-th edge stands in the input; None: at ``[:, k]`` of an array.
        names: what messages call each piece, such as ``{"edges": "/data/cora/edges.npy"}``.
    """

    edges: np.ndarray
    num_vertices: int | None = None
    vertices_from: str = ""
    features: Any = None
    labels: np.ndarray | None = None
    masks: dict[str, np.ndarray] | None = None
    edge_weight: np.ndarray | None = None
    edge_features: np.ndarray | None = None
    edge_type: np.ndarray | None = None
    edge_types: int | None = None
    classes: int | None = None
    ids: Any = None
    locate_edge: Callable[[int], str] | None = None
    names: dict[str, str] = field(default_factory=dict)

    def name(self, piece: str) -> str:
        return self.names.get(piece, piece)

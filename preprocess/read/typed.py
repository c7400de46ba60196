"""Features of vertices that have types, each type with its own columns.

Legend: V vertices, K types, V_k vertices of type k, F_k their columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hongtu.errors import InputError


class TypedFeatures:
    """Rows as the artifact stores them: the vertex's type, its own columns, then zeros up to the widest type's.

    Args:
        vertex_type: integers [V] from 0 to K - 1.
        parts: float [V_k, F_k] each; row r is that of the r-th vertex of type k.

    Attributes:
        shape: (V, 1 + the most columns).

    >>> features = TypedFeatures(np.array([1, 0, 1]), [np.array([[5.0]]), np.array([[6.0, 7.0], [8.0, 9.0]])])
    >>> features[np.array([2, 1])].tolist()
    [[1.0, 8.0, 9.0], [0.0, 5.0, 0.0]]
    """

    ndim = 2

    def __init__(self, vertex_type: np.ndarray, parts: Sequence[np.ndarray]) -> None:
        self.vertex_type, self.parts = vertex_type, list(parts)
        self.shape = (len(vertex_type), 1 + max(part.shape[1] for part in parts))
        self._position = _positions(vertex_type)

    def __getitem__(self, vertices: np.ndarray) -> np.ndarray:
        """float32 [B, 1 + the most columns]."""
        rows = np.zeros((len(vertices), self.shape[1]), dtype=np.float32)
        kinds = self.vertex_type[vertices]
        rows[:, 0] = kinds
        for k, part in enumerate(self.parts):
            mine = np.flatnonzero(kinds == k)
            rows[mine, 1 : 1 + part.shape[1]] = part[self._position[vertices[mine]]]
        return rows


def make_typed(vertex_type: Any, parts: Sequence[Any], names: tuple[str, Sequence[str]]) -> TypedFeatures:
    """Check forms, and put them together; finite values are checked with those of all features.

    Args:
        names: what messages call the types, and each part.
    """
    kind, name = vertex_type, names[0]
    if kind is None or not parts:
        missing = name if kind is None else f"features beside {name}"
        raise InputError(f"{missing}: missing; save vertex_type [N], and features_0, features_1, ... [V_k, F_k]")
    if kind.dtype.kind not in "iu" or kind.ndim != 1:
        raise InputError(f"{name}: {kind.dtype} of shape {kind.shape}, expected integers [N], one type for each vertex")
    bad = np.flatnonzero((kind < 0) | (kind >= len(parts)))
    if len(bad):
        raise InputError(
            f"{name}: [{bad[0]}] is {kind[bad[0]]}, expected a type from 0 to {len(parts) - 1}, one for each array of "
            "features"
        )
    counts = np.bincount(kind.astype(np.int64), minlength=len(parts))
    for k, part in enumerate(parts):
        if part.dtype.kind not in "biuf" or part.ndim != 2 or len(part) != counts[k]:
            raise InputError(
                f"{names[1][k]}: {part.dtype} of shape {part.shape}, expected float32 [{counts[k]}, F]: a row for each "
                f"vertex of type {k}, in the order of their numbers; {form_remedy(part, counts[k])}"
            )
    if not any(part.shape[1] for part in parts):
        raise InputError(f"{' and '.join(names[1])}: no columns; leave features out, and pass --features embedding:64")
    return TypedFeatures(kind.astype(np.int32), parts)


def form_remedy(features: Any, vertices: int) -> str:
    """What mends features that have no float32 [V, F]."""
    if features.dtype.names is not None:
        return "make columns of its fields, with numpy.lib.recfunctions.structured_to_unstructured"
    if features.dtype.kind not in "biuf":
        return "save them with .astype(numpy.float32)"
    if features.shape == (vertices,):
        return "write one column, x[:, None]"
    if features.ndim > 2 and len(features) == vertices:
        return "make one row of each, x.reshape(len(x), -1)"
    return "save a row for each vertex"


def _positions(vertex_type: np.ndarray) -> np.ndarray:
    """int64 [V], how many vertices of the same type come before each."""
    order = np.argsort(vertex_type, kind="stable")
    position, count = np.empty_like(order), np.bincount(vertex_type)
    position[order] = np.arange(len(order)) - np.repeat(np.cumsum(count) - count, count)
    return position

"""torch_geometric's ``HeteroData``: typed vertices and edges in one numbering, that of ``to_homogeneous()``.

Vertices of the first type come first. Types of vertices and of edges are numbers, in the order of ``node_types`` and
``edge_types``; each type's features keep their own width.

Legend: V vertices, V_k of type k, E edges.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hongtu.errors import InputError
from hongtu.preprocess.read.check_labels import of_numbers
from hongtu.preprocess.read.formats.pyg_data import Ends, edges_of, masks_of, vertex_fields
from hongtu.preprocess.read.graph import RawGraph
from hongtu.preprocess.read.source import array_blocks
from hongtu.preprocess.read.typed import make_typed


def is_hetero(data: Any) -> bool:
    """Whether this looks like a ``HeteroData``."""
    return all(hasattr(data, name) for name in ("node_types", "edge_types", "metadata"))


def from_hetero(data: Any, *, needs_features: bool, numbers: bool = False, name: str = "data") -> RawGraph:
    """One graph of all types; labels and masks are those of the one type that has some.

    Args:
        needs_features: nobody gives others, so that every type must have its own.
        numbers: labels are numbers to predict.

    Raises:
        InputError: for what one graph cannot hold, with what to do.
    """
    kinds = {kind: f"{name}[{kind!r}]" for kind in data.node_types}
    relations = {key: f"{name}[{', '.join(map(repr, key))}]" for key in data.edge_types}
    if not relations:
        between = f" between its vertex types {', '.join(kinds)}" if kinds else ""
        raise InputError(f"{name}: has no edges{between}; add some")
    counts = {kind: data[kind].num_nodes for kind in kinds}
    for kind, count in counts.items():
        if count is None:
            raise InputError(f"{kinds[kind]}: no x, and no num_nodes that says how many vertices there are; set it")
    starts = np.cumsum([0, *counts.values()])
    first, vertices = dict(zip(kinds, starts.tolist())), int(starts[-1])
    edges = {key: _checked(edges_of(data[key], title, square=False), key, counts) for key, title in relations.items()}
    source = np.concatenate([ends.source + first[key[0]] for key, ends in edges.items()])
    destination = np.concatenate([ends.destination + first[key[2]] for key, ends in edges.items()])
    weights = [ends.weight for ends in edges.values()]
    ones = [np.ones(len(ends.source), np.float32) for ends in edges.values()]  # what a missing weight means
    weighted = any(weight is not None for weight in weights)
    weight = [one if given is None else given for one, given in zip(ones, weights, strict=True)] if weighted else None
    fields = {kind: vertex_fields(data[kind], title) for kind, title in kinds.items()}
    raw = RawGraph(
        title=name,
        blocks=array_blocks(name, source, destination, None if weight is None else np.concatenate(weight)),
        num_vertices=vertices,
        features=_features(fields, counts, kinds) if needs_features else None,
        edge_features=_edge_features({relations[key]: ends.features for key, ends in edges.items()}),
        edge_type=np.repeat(np.arange(len(edges)), [len(ends.source) for ends in edges.values()]),
        edge_types=len(edges),
        types={"vertices": [[kind, int(count)] for kind, count in counts.items()], "relations": [[*key] for key in edges]},
        edge_forms=dict(set.intersection(*({*ends.forms.items()} for ends in edges.values()))),
    )
    labelled = [kind for kind in kinds if fields[kind]["labels"] is not None]
    if len(labelled) > 1:
        both = " and ".join(f"{kinds[kind]}.y" for kind in labelled[:2])
        raise InputError(f"{both}: labels of two vertex types, expected one; delete the other")
    for kind in labelled:
        span, labels = slice(first[kind], first[kind] + counts[kind]), fields[kind]["labels"]
        if labels.dtype.kind in "biu":  # which have no NaN for vertices of other types
            labels = labels.astype(np.float32 if numbers else np.int64)
        raw.labels = _spread(labels, span, vertices, axis=0)
        own = masks_of(data[kind], kinds[kind])
        if own.masks is not None:
            masks = {split: of_numbers(mask, counts[kind], own.names[split]) for split, mask in own.masks.items()}
            raw.masks = {split: _spread(mask, span, vertices, axis=-1) for split, mask in masks.items()}
        raw.names = {"labels": f"{kinds[kind]}.y"} | own.names
    return raw


def _checked(ends: Ends, key: tuple[str, str, str], counts: Mapping[str, int]) -> Ends:
    """The edges, whose ends are vertices of their types."""
    for kind, ids in ((key[0], ends.source), (key[2], ends.destination)):
        if ids.dtype.kind in "iu" and len(ids) and not 0 <= ids.min() <= ids.max() < counts[kind]:
            bad = ids.min() if ids.min() < 0 else ids.max()
            raise InputError(f"{ends.title}: vertex {bad}, expected 0 to {counts[kind] - 1}, as there are {kind!r}")
    return ends


def _edge_features(given: Mapping[str, np.ndarray | None]) -> np.ndarray | None:
    """Those of each relation, one after the other; None where none has any."""
    columns = {title: 0 if rows is None else rows.shape[1] for title, rows in given.items()}
    first, expected = next(iter(columns.items()))
    for title, found in columns.items():
        if found != expected:
            raise InputError(
                f"{first}.edge_attr and {title}.edge_attr: {expected} and {found} columns, expected as many for every "
                "edge type; fill up with zeros, or delete them"
            )
    return np.concatenate(list(given.values())) if expected else None


def _features(fields: Mapping[str, Any], counts: Mapping[str, int], titles: Mapping[str, str]) -> Any:
    parts = [fields[kind]["features"] for kind in fields]
    if all(part is None for part in parts):
        return None
    for kind, part in zip(fields, parts, strict=True):
        if part is None:
            raise InputError(
                f"{titles[kind]}: no x, as other types have; give it one (torch.ones({counts[kind]}, 1)), or pass "
                "--features embedding:64 for all"
            )
    dense = [part.toarray() if hasattr(part, "toarray") else part for part in parts]
    names = [f"{titles[kind]}.x" for kind in fields]
    vertex_type = np.repeat(np.arange(len(parts)), list(counts.values()))
    return parts[0] if len(parts) == 1 else make_typed(vertex_type, dense, ("vertex_type", names))


def _spread(rows: np.ndarray, span: slice, vertices: int, axis: int) -> np.ndarray:
    """The rows of one type among those of all: no label, and no mask, elsewhere."""
    if rows.ndim == 0 or rows.shape[axis] != span.stop - span.start:
        return rows  # whose form is refused with its name
    shape = (*rows.shape[:-1], vertices) if axis else (vertices, *rows.shape[1:])
    blank = {"f": np.nan, "i": -1}.get(rows.dtype.kind, 0)
    spread = np.full(shape, blank, dtype=rows.dtype)
    spread[(..., span) if axis else span] = rows
    return spread

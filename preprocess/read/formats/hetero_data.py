"""torch_geometric's ``HeteroData``: typed vertices and edges in one numbering, that of ``to_homogeneous()``; DGL's
graphs, of one or several types, by torch_geometric's names, without an import of DGL.

Vertices of the first type come first. Types of vertices and of edges are numbers, in the order of ``node_types`` and
``edge_types``; each type's features keep their own width.

Legend: V vertices, V_k of type k, E edges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from hongtu.errors import InputError
from hongtu.preprocess.read.check_labels import of_numbers
from hongtu.preprocess.read.formats.pyg_data import Ends, edges_of, masks_of, vertex_fields
from hongtu.preprocess.read.graph import SPLIT_NAMES, RawGraph
from hongtu.preprocess.read.source import array_blocks
from hongtu.preprocess.read.typed import make_typed


@dataclass
class TypedGraph:
    """The fields of a ``HeteroData``: ``graph["paper"].x``, ``graph["author", "writes", "paper"].edge_index``."""

    node_types: list[str]
    edge_types: list[tuple[str, str, str]]
    stores: dict[Any, SimpleNamespace]

    def __getitem__(self, key: Any) -> SimpleNamespace:
        return self.stores[key]

    def metadata(self) -> tuple[list[str], list[tuple[str, str, str]]]:
        """Types of vertices, and of edges."""
        return self.node_types, self.edge_types


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
    sizes = [len(ends.source) for ends in edges.values()]
    given = [ends.weight for ends in edges.values()]
    weights = [
        np.ones(n, np.float32) if w is None else w for n, w in zip(sizes, given, strict=True)
    ]  # 1: a missing one
    weighted = any(weight is not None for weight in given)
    fields = {kind: vertex_fields(data[kind], title) for kind, title in kinds.items()}
    raw = RawGraph(
        title=name,
        blocks=array_blocks(name, source, destination, np.concatenate(weights) if weighted else None),
        num_vertices=vertices,
        features=_features(fields, counts, kinds) if needs_features else None,
        edge_features=_edge_features([ends.features for ends in edges.values()], sizes),
        edge_type=np.repeat(np.arange(len(edges)), sizes),
        edge_types=len(edges),
        types={
            "vertices": [[kind, int(count)] for kind, count in counts.items()],
            "relations": [[*key, 0 if e.features is None else e.features.shape[1]] for key, e in edges.items()],
        },
        edge_forms=dict(set.intersection(*({*ends.forms.items()} for ends in edges.values()))),
    )
    for kind in [kind for kind in kinds if fields[kind]["labels"] is not None]:
        span, labels = slice(first[kind], first[kind] + counts[kind]), fields[kind]["labels"]
        if labels.dtype.kind in "biu":  # which have no NaN for vertices of other types
            labels = labels.astype(np.float32 if numbers else np.int64)
        title, before = f"{kinds[kind]}.y", raw.names.get("labels")
        raw.labels = _placed(raw.labels, labels, span, vertices, 0, (before, title))
        masks, titles = masks_of(data[kind], kinds[kind])
        for split, mask in (masks or {}).items():
            known = raw.masks = raw.masks or {}
            mask = of_numbers(mask, counts[kind], titles[split])
            known[split] = _placed(known.get(split), mask, span, vertices, -1, (raw.names.get(split), titles[split]))
        raw.names = titles | {"labels": title} | raw.names
    return raw


def _placed(
    before: np.ndarray | None, rows: np.ndarray, span: slice, vertices: int, axis: int, names: tuple[str | None, str]
) -> np.ndarray:
    """The rows of one type among those of all, beside those of types before it: no label, and no mask, elsewhere.

    Raises:
        InputError: where types before have another form.
    """
    fits = rows.ndim > 0 and rows.shape[axis] == span.stop - span.start
    shape = ((*rows.shape[:-1], vertices) if axis else (vertices, *rows.shape[1:])) if fits else rows.shape
    if before is None and not fits:
        return rows  # whose form is refused with its name
    if before is None:
        before = np.full(shape, {"f": np.nan, "i": -1}.get(rows.dtype.kind, 0), dtype=rows.dtype)
    if not fits or before.shape != shape or before.dtype.kind != rows.dtype.kind:
        found = f"{before.dtype} {before.shape} and {rows.dtype} {shape}"
        raise InputError(f"{' and '.join(map(str, names))}: {found}, expected the same for both; delete one")
    before[(..., span) if axis else span] = rows
    return before


def _checked(ends: Ends, key: tuple[str, str, str], counts: Mapping[str, int]) -> Ends:
    """The edges, whose ends are vertices of their types."""
    for kind, ids in ((key[0], ends.source), (key[2], ends.destination)):
        if ids.dtype.kind in "iu" and len(ids) and not 0 <= ids.min() <= ids.max() < counts[kind]:
            bad = ids.min() if ids.min() < 0 else ids.max()
            raise InputError(f"{ends.title}: vertex {bad}, expected 0 to {counts[kind] - 1}, as there are {kind!r}")
    if ends.features is not None and len(ends.features) != len(ends.source):
        title = ends.title.replace("edge_index", "edge_attr")
        raise InputError(f"{title}: {len(ends.features)} rows, expected one for each of {len(ends.source)} edges")
    return ends


def _edge_features(given: list[np.ndarray | None], counts: list[int]) -> np.ndarray | None:
    """Those of each relation, one after the other, with zeros behind those that have fewer; None where none has any."""
    columns = max(0 if rows is None else rows.shape[1] for rows in given)
    found = np.zeros((sum(counts), columns), np.float32)
    for first, rows in zip(np.cumsum([0, *counts]), given):
        if rows is not None:
            found[first : first + len(rows), : rows.shape[1]] = rows
    return found if columns else None


def _features(fields: Mapping[str, Any], counts: Mapping[str, int], titles: Mapping[str, str]) -> Any:
    parts = [fields[kind]["features"] for kind in fields]
    if all(part is None for part in parts):
        return None
    blank = {kind: np.zeros((count, 0), np.float32) for kind, count in counts.items()}  # as those without x have
    parts = [blank[kind] if part is None else part for kind, part in zip(fields, parts, strict=True)]
    dense = [part.toarray() if hasattr(part, "toarray") else part for part in parts]
    names = [f"{titles[kind]}.x" for kind in fields]
    vertex_type = np.repeat(np.arange(len(parts)), list(counts.values()))
    return parts[0] if len(parts) == 1 else make_typed(vertex_type, dense, ("vertex_type", names))


# what DGL's datasets call them, the first that is there
OF_VERTICES = {"x": ("feat", "features", "x"), "y": ("label", "labels", "y")} | {
    name + suffix: (name + suffix,) for names in SPLIT_NAMES.values() for name in names for suffix in ("_mask", "_idx")
}
OF_EDGES = {
    "edge_weight": ("weight", "w", "edge_weight"), "edge_attr": ("feat", "features", "edge_attr"),
    "edge_type": ("etype", "rel_type", "_TYPE"),
}  # fmt: skip


def is_dgl(data: Any) -> bool:
    """Whether this looks like a graph of DGL."""
    return all(hasattr(data, name) for name in ("ntypes", "canonical_etypes", "ndata", "edata"))


def from_dgl(graph: Any) -> Any:
    """The fields of a DGL graph as those of torch_geometric's ``Data`` (``HeteroData``, where there are several types),
    for ``hongtu.preprocess_graph(data=...)``, which takes the graph itself, too.

    Features, labels and masks are "feat", "label" and "train_mask" of the vertices, weights, features and types of
    edges "weight", "feat" and "etype"; other data of the graph are left out.

    Raises:
        InputError: for a sampled block, which is no graph.
    """
    if not is_dgl(graph):
        raise InputError(f"from_dgl: got {type(graph).__name__}, expected a graph of DGL")
    if getattr(graph, "is_block", False):
        raise InputError("from_dgl: a block of a sampler; pass the whole graph")
    graph = graph.cpu()
    stores: dict[Any, SimpleNamespace] = {}
    for kind in graph.ntypes:
        place = "ndata" if len(graph.ntypes) == 1 else f"nodes[{kind!r}].data"
        stores[kind] = _fields(graph.nodes[kind].data, OF_VERTICES, place, num_nodes=graph.num_nodes(kind))
    for key in graph.canonical_etypes:
        source, destination = graph.edges(etype=key, order="eid")
        ends = np.stack([np.asarray(source), np.asarray(destination)]).astype(np.int64)
        place = "edata" if len(graph.canonical_etypes) == 1 else f"edges[{key!r}].data"
        stores[key] = _fields(graph.edges[key].data, OF_EDGES, place, edge_index=ends)
        stores[key].dgl_names["edge_index"] = "edges()" if place == "edata" else f"edges(etype={key!r})"
    if len(stores) == 2:
        vertices, edges = stores.values()
        return SimpleNamespace(**vars(vertices) | vars(edges) | {"dgl_names": vertices.dgl_names | edges.dgl_names})
    return TypedGraph(list(graph.ntypes), list(graph.canonical_etypes), stores)


def _fields(data: Mapping[str, Any], names: Mapping[str, tuple[str, ...]], place: str, **more: Any) -> SimpleNamespace:
    """By torch_geometric's names, and with ``dgl_names``: where each is, or would be, in the graph."""
    own = {name: next((key for key in known if key in data), known[0]) for name, known in names.items()}
    found = {name: data[key] for name, key in own.items() if key in data}
    return SimpleNamespace(**found, **more, dgl_names={name: f"{place}[{key!r}]" for name, key in own.items()})

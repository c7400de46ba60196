"""torch_geometric's ``HeteroData``: typed vertices and edges in one numbering, that of ``to_homogeneous()``; DGL's
graphs, of one or several types, by torch_geometric's names, without an import of DGL.

Vertices of the first type come first. Types of vertices and of edges are numbers, in the order of ``node_types`` and
``edge_types``; each type's features keep their own width.

Legend: V vertices, V_k of type k, E edges.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from hongtu.config import PreprocessConfig
from hongtu.errors import InputError, note
from hongtu.preprocess.read.check import check_edge_numbers
from hongtu.preprocess.read.check_labels import (
    check_labels,
    check_masks,
    check_numbers,
    choose_split,
    has_label,
    of_numbers,
)
from hongtu.preprocess.read.formats.pyg_data import Ends, edges_of, masks_of, said_unread, title_of, vertex_fields
from hongtu.preprocess.read.graph import SPLIT_NAMES, RawGraph
from hongtu.preprocess.read.source import array_blocks, rounds
from hongtu.preprocess.read.typed import make_typed

GLOBAL = "_global_store"  # of a HeteroData's dictionary: what is of no type


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


def from_dict(data: Any) -> Any:
    """What ``HeteroData.to_dict()`` gave, as such; anything else as it is."""
    if not isinstance(data, Mapping) or not any(isinstance(key, tuple) and len(key) == 3 for key in data):
        return data
    stores = {key: SimpleNamespace(**of) for key, of in data.items() if isinstance(of, Mapping) and key != GLOBAL}
    relations = [key for key in stores if isinstance(key, tuple)]
    kinds = [key for key in stores if isinstance(key, str)]
    for store in (stores[kind] for kind in kinds if not hasattr(stores[kind], "num_nodes")):
        rows = next((value for key in ("x", "y", "train_mask") if (value := getattr(store, key, None)) is not None), ())
        store.num_nodes = len(rows) or None
    return TypedGraph(kinds, relations, stores)


def from_hetero(data: Any, config: PreprocessConfig, *, given: Collection[str] = (), name: str = "data") -> RawGraph:
    """One graph of all types; labels and masks are those of the types that have some.

    Args:
        given: pieces that somebody gives in place of its own.
    """
    kinds = {kind: f"{name}[{kind!r}]" for kind in data.node_types}
    relations = {key: f"{name}[{', '.join(map(repr, key))}]" for key in data.edge_types}
    if not relations:
        between = f" between its vertex types {', '.join(kinds)}" if kinds else ""
        raise InputError(f"{name}: has no edges{between}; add some")
    unknown = [(key, kind) for key in relations for kind in (key[0], key[2]) if kind not in kinds]
    for key, kind in unknown:
        raise InputError(
            f"{relations[key]}: there is no type {kind!r} among {', '.join(kinds)}; set x or num_nodes of {name}"
            f"[{kind!r}]"
        )
    counts = {kind: data[kind].num_nodes for kind in kinds}
    for kind, number in counts.items():
        if number is None:
            x = getattr(data[kind], "x", None)
            found = "no x" if x is None else f"x is a {type(x).__name__}, no tensor"
            raise InputError(f"{kinds[kind]}: {found}, and no num_nodes says how many vertices there are; set it")
    titles = [title_of(data[kind], title, "x") for kind, title in kinds.items()]
    starts = np.cumsum([0, *counts.values()])
    first, vertices = dict(zip(kinds, starts.tolist())), int(starts[-1])
    edges = {key: _edges(data[key], title, key, counts) for key, title in relations.items()}
    source = np.concatenate([ends.source + first[key[0]] for key, ends in edges.items()])
    destination = np.concatenate([ends.destination + first[key[2]] for key, ends in edges.items()])
    sizes = [len(ends.source) for ends in edges.values()]
    own = [ends.weight for ends in edges.values()]
    kind = _common([weight for weight in own if weight is not None])
    weights = [np.ones(n, kind) if w is None else w for n, w in zip(sizes, own, strict=True)]  # 1: a missing one
    weighted = any(weight is not None for weight in own)
    fields = {kind: vertex_fields(data[kind], title) for kind, title in kinds.items()}
    raw = RawGraph(
        title=name,
        blocks=array_blocks(name, source, destination, np.concatenate(weights) if weighted else None),
        num_vertices=vertices,
        features=_features(fields, counts, titles) if config.features is None and "features" not in given else None,
        edge_features=_edge_features([ends.features for ends in edges.values()], sizes),
        edge_type=np.repeat(np.arange(len(edges)), sizes),
        edge_types=len(edges),
        types={
            "vertices": [[kind, int(count)] for kind, count in counts.items()],
            "relations": [[*key, 0 if e.features is None else e.features.shape[1]] for key, e in edges.items()],
        },
        whole=True,
        edge_forms=dict(set.intersection(*({*ends.forms.items()} for ends in edges.values()))),
    )
    raw.names = {f"features_{k}": title for k, title in enumerate(titles)} | {"features": " and ".join(titles)}
    for piece, part, field in (("edge_weight", "weight", "edge_weight"), ("edge_features", "features", "edge_attr")):
        have = [f"{relations[key]}.{field}" for key, ends in edges.items() if rounds(getattr(ends, part))]
        raw.names |= {piece: " and ".join(have)} if have else {}
    for kind, title in kinds.items():
        span = slice(first[kind], first[kind] + counts[kind])
        _add_labels(raw, data[kind], RawGraph(title=title, labels=fields[kind]["labels"]), span, config, given)
    return raw


def _add_labels(
    raw: RawGraph, data: Any, own: RawGraph, span: slice, config: PreprocessConfig, given: Collection[str]
) -> None:
    """Place labels and masks of one type among those of all types."""
    title, vertices, others = own.title, raw.num_vertices or 0, config.labels or "labels" in given
    own.num_vertices = span.stop - span.start
    own.vertices_from = f"{title} has {own.num_vertices} vertices"
    own.masks, own.names = masks_of(data, title)
    own.names["labels"] = title_of(data, title, "y")
    own.masks = None if config.task == "links" or "masks" in given else own.masks
    if own.labels is not None and not others and config.task != "links":
        _check_labelled(own, config)
        whose = raw.names.get("labels"), own.names["labels"]
        raw.labels = _placed(raw.labels, own.labels, span, vertices, 0, whose)
    elif own.masks and not others:
        note(f"{own.names[next(iter(own.masks))]}: is left out, for there is no {own.names['labels']}")
        return
    for split, mask in (own.masks or {}).items():
        known, whose = raw.masks or {}, (raw.names.get(split), own.names[split])
        mask = of_numbers(mask, own.num_vertices, own.names[split])
        raw.masks = known | {split: _placed(known.get(split), mask, span, vertices, -1, whose)}
    raw.names = own.names | raw.names if own.labels is not None or own.masks else raw.names


def _check_labelled(raw: RawGraph, config: PreprocessConfig) -> None:
    """Check labels and masks of one type in its own numbers, before they lie among those of others."""
    (check_numbers if config.task == "regression" else check_labels)(raw)
    if raw.masks is not None and not config.random_split:  # which replaces them
        masks = raw.masks
        choose_split(raw, config.split)
        check_masks(raw, has_label(raw.labels), ())
        raw.masks = masks


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
        beside = [[*array.shape[:-1]] if axis else [*array.shape[1:]] for array in (before, rows)]
        found = " and ".join(
            f"{array.dtype} {['N', *of]}".replace("'", "") for array, of in zip((before, rows), beside)
        )
        raise InputError(f"{' and '.join(map(str, names))}: {found}, expected the same for both; delete one")
    before[(..., span) if axis else span] = rows
    return before


def _edges(data: Any, title: str, key: tuple[str, str, str], counts: Mapping[str, int]) -> Ends:
    """The edges of a relation, whose ends are vertices of their types, and what lies beside them."""
    ends, shape = edges_of(data, title, square=False), (counts[key[0]], counts[key[2]])
    if ends.vertices not in (None, shape):
        raise InputError(
            f"{ends.title}: a matrix for {ends.vertices[0]} sources and {ends.vertices[1]} destinations, expected "
            f"{shape[0]} of {key[0]!r} and {shape[1]} of {key[2]!r}; the rows of edge_index are sources, of adj_t "
            "destinations"
        )
    for kind, ids in ((key[0], ends.source), (key[2], ends.destination)):
        if ids.dtype.kind not in "iu":
            raise InputError(f"{ends.title}: vertex ids of type {ids.dtype}, expected integers; cast them to int64")
        if len(ids) and not 0 <= ids.min() <= ids.max() < counts[kind]:
            bad = ids.min() if ids.min() < 0 else ids.max()
            from_one = ids.min() == 1 and ids.max() == counts[kind]
            remedy = "subtract 1, for the ids start at 1" if from_one else "remove the edge or add the vertex"
            raise InputError(
                f"{ends.title}: vertex {bad}, expected 0 to {counts[kind] - 1}, for there are {counts[kind]} of "
                f"{kind!r}; {remedy}"
            )
    names = {"edge_weight": "edge_weight", "edge_features": "edge_attr"}
    names = {piece: title_of(data, title, field) for piece, field in names.items()}
    own = np.broadcast_to(np.int64(0), (2, len(ends.source)))  # of which only how many there are is looked at
    check_edge_numbers(
        RawGraph(edges=own, edge_weight=ends.weight, edge_features=ends.features, names=names, whole=True)
    )
    return ends


def _edge_features(given: list[np.ndarray | None], counts: list[int]) -> np.ndarray | None:
    """Those of each relation, one after the other, with zeros behind those that have fewer; None where none has any."""
    columns = max(0 if rows is None else rows.shape[1] for rows in given)
    found = np.zeros((sum(counts), columns), _common([rows for rows in given if rows is not None]))
    for first, rows in zip(np.cumsum([0, *counts]), given):
        if rows is not None:
            found[first : first + len(rows), : rows.shape[1]] = rows
    return found if columns else None


def _common(arrays: list[np.ndarray]) -> np.dtype:
    """The type that has the numbers of all, and in which what a float32 does not hold of any is seen to be rounded."""
    types = [array.dtype for array in arrays] if any(map(rounds, arrays)) else []
    return np.result_type(*types or [np.dtype(np.float32)])


def _features(fields: Mapping[str, Any], counts: Mapping[str, int], names: list[str]) -> Any:
    parts = [fields[kind]["features"] for kind in fields]
    if all(part is None for part in parts):
        return None
    blank = {kind: np.zeros((count, 0), np.float32) for kind, count in counts.items()}  # as those without x have
    parts = [blank[kind] if part is None else part for kind, part in zip(fields, parts, strict=True)]
    dense = [part.toarray() if hasattr(part, "toarray") else part for part in parts]
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
    edges "weight", "feat" and "etype"; other data of the graph are left out, which preprocessing says.

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
        *pair, number = map(np.asarray, graph.edges(form="all", order=None, etype=key))  # a CSC has no order "eid"
        ends = np.stack(pair).astype(np.int64)[:, np.argsort(number)]
        place = "edata" if len(graph.canonical_etypes) == 1 else f"edges[{key!r}].data"
        stores[key] = _fields(graph.edges[key].data, OF_EDGES, place, edge_index=ends)
        stores[key].own_names["edge_index"] = "edges()" if place == "edata" else f"edges(etype={key!r})"
    if len(stores) == 2:
        vertices, edges = stores.values()
        both = {name: getattr(vertices, name) | getattr(edges, name) for name in ("own_names", "unread")}
        return SimpleNamespace(**vars(vertices) | vars(edges) | both)
    return TypedGraph(list(graph.ntypes), list(graph.canonical_etypes), stores)


def unread_of_dgl(data: Any) -> list[str]:
    """A note on data of a graph of DGL, of what ``from_dgl`` gave, that are left out, if there are some."""
    stores = data.stores.values() if isinstance(data, TypedGraph) else [data]
    unread = {place: keys for store in stores for place, keys in getattr(store, "unread", {}).items()}
    return said_unread(
        unread,
        "of vertices 'feat', 'label', 'train_mask', 'val_mask' and 'test_mask' are, of edges 'weight', 'feat' and "
        "'etype'",
    )


def _fields(data: Mapping[str, Any], names: Mapping[str, tuple[str, ...]], place: str, **more: Any) -> SimpleNamespace:
    """By torch_geometric's names, with ``own_names``, where each is, or would be, in the graph, and ``unread``, which
    others there are, by place."""
    own = {name: next((key for key in known if key in data), known[0]) for name, known in names.items()}
    found = {name: data[key] for name, key in own.items() if key in data}
    left = {key for key in data if key not in own.values() and not (str(key).startswith("_"))}
    own_names = {name: f"{place}[{key!r}]" for name, key in own.items()}
    return SimpleNamespace(**found, **more, own_names=own_names, unread={place: left})

"""DGL's graphs, of one or several types of vertices and edges, by torch_geometric's names; no import of DGL."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from hongtu.errors import InputError
from hongtu.preprocess.read.formats.hetero_data import TypedGraph
from hongtu.preprocess.read.graph import SPLIT_NAMES

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

"""NetworkX graphs, for small things: Python objects per vertex and edge."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from hongtu.errors import InputError
from hongtu.graph.given import as_array
from hongtu.preprocess.read.formats.pyg_data import from_data, said_unread
from hongtu.preprocess.read.graph import SPLIT_NAMES, RawGraph
from hongtu.preprocess.read.source import to_names

MASKS = [f"{name}_mask" for names in SPLIT_NAMES.values() for name in names]
WEIGHTS = ("weight", "edge_weight")
MISSING = dict.fromkeys(MASKS, False) | dict.fromkeys(WEIGHTS, 1.0) | {"y": np.nan}


def is_networkx(data: Any) -> bool:
    """Whether this looks like a NetworkX graph."""
    return all(hasattr(data, name) for name in ("nodes", "edges", "is_directed", "is_multigraph"))


def from_networkx(graph: Any) -> RawGraph:
    """Vertices in the graph's own order, with their names as ids; an undirected edge stands for both directions.

    Attributes are fields of a ``Data`` by torch_geometric's names, as ``to_networkx`` writes them, and the edge
    attribute "weight" is the weight. Where some lack one, a weight is 1, a mask False and a label unknown.

    Raises:
        InputError: when a weight is no number, or some lack another attribute.
    """
    order = list(graph.nodes)
    number = {node: k for k, node in enumerate(order)}
    of_vertices, of_edges = _columns(graph.nodes(data=True)), _columns(graph.edges(data=True))
    source, destination = np.array([(number[u], number[v]) for u, v in graph.edges()], np.int64).reshape(-1, 2).T
    known = {key: key for key in (*MASKS, "x", "y") if key in of_vertices}
    fields = {key: _filled(of_vertices[key], "nodes", key) for key in known}
    back = source[:0] if graph.is_directed() else np.flatnonzero(source != destination)  # a self-loop is one edge
    twice = np.concatenate([np.arange(len(source)), back])
    weight = next((key for key in ("weight", "edge_weight") if key in of_edges), "weight")
    own = {"edge_weight": weight, "edge_attr": "edge_attr", "edge_type": "edge_type"}
    fields |= {name: _filled(of_edges[key], "edges", key)[twice] for name, key in own.items() if key in of_edges}
    ends = np.stack([np.append(source, destination[back]), np.append(destination, source[back])])
    names = {key: f"nodes(data={key!r})" for key in (*MASKS, "x", "y")}
    names |= {name: f"edges(data={key!r})" for name, key in own.items()} | {"edge_index": "edges()"}
    raw = from_data(SimpleNamespace(**fields, edge_index=ends, num_nodes=len(order), own_names=names))
    unread = {"nodes": of_vertices.keys() - names.keys(), "edges": of_edges.keys() - {*own.values()}}
    raw.notes += said_unread(
        unread,
        "of nodes 'x', 'y', 'train_mask', 'val_mask' and 'test_mask' are, of edges 'weight', 'edge_attr' and "
        "'edge_type'",
    )
    raw.ids, raw.numbered = _ids(order), True
    return raw


def _columns(items: Iterable[Any]) -> dict[Any, list[Any]]:
    """By name the attribute of each, None where one lacks it."""
    held = [item[-1] for item in items]
    names = dict.fromkeys(name for one in held for name, value in one.items() if value is not None)
    return {name: [one.get(name) for one in held] for name in names}


def _filled(values: list[Any], of: str, name: str) -> np.ndarray:
    lacking = sum(value is None for value in values)
    if lacking and name not in MISSING:
        raise InputError(
            f"data: {lacking} of {len(values)} {of} lack the attribute {name!r}; give it to all, or to none"
        )
    forms = {np.shape(value) for value in values if value is not None}
    if name not in WEIGHTS and any(isinstance(value, str) for value in values):
        raise InputError(f"data: the attribute {name!r} of {of} is text, expected numbers; number the kinds from 0")
    if len(forms) > 1:
        found = " and ".join(str(prod(form)) for form in sorted(forms))
        raise InputError(f"data: the attribute {name!r} of {of} has {found} numbers, expected as many for each")
    (form,) = forms  # of several labels all are unknown
    values = [np.full(form, MISSING[name]) if value is None else value for value in values]
    if name == "x" and form == ():
        values = [[value] for value in values]
    try:
        values = list(map(float, values)) if name in WEIGHTS else values
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"data: an edge weight is no number ({error}); remove or mend the attribute {name!r}"
        ) from None
    return as_array(f"data.{of}(data={name!r})", values)


def _ids(order: list[Any]) -> Any:
    """Integers, or names; None for numbers from 0, in order."""
    whole = all(
        isinstance(node, int | np.integer) and not isinstance(node, bool) and -(2**63) <= node < 2**63 for node in order
    )
    ids: Any = np.array(order, dtype=np.int64) if whole else to_names("data", order)
    if not whole and len({*ids}) < len(ids):
        raise InputError("data: two vertices have the same name as text; rename them")
    return None if whole and np.array_equal(ids, np.arange(len(order))) else ids

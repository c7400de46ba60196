"""NetworkX graphs, for small things: Python objects per vertex and edge."""

from __future__ import annotations

from typing import Any

import numpy as np

from hongtu.errors import InputError
from hongtu.preprocess.read.graph import RawGraph
from hongtu.preprocess.read.source import array_blocks, to_names


def is_networkx(data: Any) -> bool:
    """Whether this looks like a NetworkX graph."""
    return all(hasattr(data, name) for name in ("nodes", "edges", "is_directed", "is_multigraph"))


def from_networkx(graph: Any) -> RawGraph:
    """Vertices in the graph's own order, with their names as ids; an undirected edge stands for both directions.

    The edge attribute "weight" is the weight, 1 where it is missing; if no edge has one there are no weights.

    Raises:
        InputError: when a weight is no number.
    """
    order = list(graph.nodes)
    number = {node: k for k, node in enumerate(order)}
    ends = np.array([(number[u], number[v]) for u, v in graph.edges()], dtype=np.int64).reshape(-1, 2)
    stored = [w for _, _, w in graph.edges(data="weight")]
    try:
        weight = np.array([1.0 if w is None else float(w) for w in stored])
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"data: an edge weight is no number ({error}); remove or mend the attribute 'weight'"
        ) from None
    source, destination = ends.T
    if not graph.is_directed():
        back = source != destination  # a self-loop is one edge
        source, destination = np.concatenate([source, destination[back]]), np.concatenate([destination, source[back]])
        weight = np.concatenate([weight, weight[back]])
    whole = all(
        isinstance(node, int | np.integer) and not isinstance(node, bool) and -(2**63) <= node < 2**63 for node in order
    )
    ids: Any = np.array(order, dtype=np.int64) if whole else to_names("data", order)
    if not whole and len({*ids}) < len(ids):
        raise InputError("data: two vertices have the same name as text; rename them")
    if whole and np.array_equal(ids, np.arange(len(order))):  # plain numbers already
        ids = None
    blocks = array_blocks("data", source, destination, weight if any(w is not None for w in stored) else None)
    return RawGraph(title="data", blocks=blocks, num_vertices=len(order), ids=ids, numbered=True)

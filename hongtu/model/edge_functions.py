"""What a traced forward may do to edges, which are an artifact's, by the names of torch_geometric's functions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import fx

from hongtu.errors import InputError
from hongtu.model.expression import label

DRAW_EDGES = ("dropout_edge", "dropout_adj", "dropout_node", "dropout_path", "add_random_edge")
CHANGE_EDGES = (
    "add_self_loops", "add_remaining_self_loops", "remove_self_loops", "remove_isolated_nodes", "to_undirected",
    "coalesce", "sort_edge_index", "subgraph", "degree",
)  # fmt: skip


def functions_of_edges() -> dict[str, Callable[..., Any]]:
    """Those of torch_geometric, where it is there."""
    utils = sys.modules.get("torch_geometric.utils")
    return {name: getattr(utils, name) for name in (*DRAW_EDGES, *CHANGE_EDGES) if hasattr(utils, name)}


def is_of_edges(node: fx.Node) -> bool:
    """Whether a trace calls one of them."""
    return getattr(node.target, "__name__", "") in (*DRAW_EDGES, *CHANGE_EDGES)


@contextmanager
def functions_of_edges_seen() -> Iterator[None]:
    """Inside, ``torch_geometric.utils.dropout_edge(...)`` is a traced call, too: torch.fx misses it by that name."""
    utils, before = sys.modules.get("torch_geometric.utils"), functions_of_edges()

    def seen(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        proxy = next((value for value in (*args, *kwargs.values()) if isinstance(value, fx.Proxy)), None)
        traced = None if proxy is None else proxy.tracer.create_proxy("call_function", function, args, kwargs)
        return function(*args, **kwargs) if traced is None else traced

    try:
        for name, function in before.items():
            setattr(utils, name, partial(seen, function))
        yield
    finally:
        for name, function in before.items():
            setattr(utils, name, function)


def refuse_edges(node: fx.Node, title: str) -> None:
    """Refuse a function of the graph's edges.

    Raises:
        InputError: always, with what to do in its place.
    """
    name = label(node)
    if name in DRAW_EDGES:
        raise InputError(
            f"{title}.forward calls {name}, which draws edges anew in every epoch, and those of an artifact are fixed; "
            "leave it out, and drop elements of rows, torch.nn.functional.dropout(x, p, training=self.training), or of "
            "attention, GATConv(dropout=p)"
        )
    if name == "flip" or (name == "getitem" and node.args[1] in ([1, 0], [-1, 0])):
        raise InputError(
            f"{title}.forward turns edges round ({name}); where it only takes them so, turn those of the Data before "
            "hongtu.preprocess_graph; where it takes both directions, give it edges both ways, with edge_type 0 and 1, "
            "and train hongtu.nn.RGCNConv(columns, columns, 2), which has weights of its own for each"
        )
    raise InputError(
        f"{title}.forward calls {name} on edges; change edges before hongtu.preprocess_graph, as data.edge_index = "
        f"{name}(...), and leave it out of forward"
    )

"""What a traced forward may do to edges, which are an artifact's, by the names of torch_geometric's functions."""

from __future__ import annotations

import inspect
import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, update_wrapper
from typing import Any

import torch
from torch import fx, nn

from hongtu.errors import InputError
from hongtu.model.edge_inputs import FEATURES, WEIGHTS
from hongtu.model.expression import label
from hongtu.nn.dropout import EdgeDropout

GCN = "torch_geometric.nn.conv.gcn_conv"  # whose gcn_norm forwards call, too
DROP_EDGES = "dropout_edge"
DRAW_EDGES = ("dropout_adj", "dropout_node", "dropout_path", "add_random_edge", "negative_sampling")
DRAWING = (
    "torch_geometric.utils.dropout",
    "torch_geometric.utils.augmentation",
    "torch_geometric.utils._negative_sampling",
)
CHANGE_EDGES = (
    "add_self_loops", "add_remaining_self_loops", "remove_self_loops", "remove_isolated_nodes", "to_undirected",
    "coalesce", "sort_edge_index", "subgraph", "degree", "get_laplacian", "gcn_norm",
)  # fmt: skip

AS_THEY_ARE = "long", "int", "to", "cpu", "cuda", "contiguous", "clone", "detach"  # methods that give the same edges
_REPLACED = ("select", "index_select")
_FACTORIES = ("zeros", "ones", "full", "arange", "eye", "empty", "rand", "randn")
ALONG_EDGES = "scatter", "segment", "softmax"
_APART = (
    *ALONG_EDGES, "edge_index[0]", "edge_index[1]", "unbind", "size", "shape", "numel", "max", "select", "chunk",
    "split",
)  # fmt: skip


def functions_of_edges() -> dict[str, Callable[..., Any]]:
    """Those of torch_geometric, where it is there."""
    rooms = [sys.modules.get(name) for name in ("torch_geometric.utils", GCN)]
    names = DROP_EDGES, *DRAW_EDGES, *CHANGE_EDGES, *ALONG_EDGES
    return {name: getattr(room, name) for name in names for room in rooms[::-1] if hasattr(room, name)}


def is_of_edges(node: fx.Node) -> bool:
    """Whether a trace calls one of them that layers do not do."""
    return getattr(node.target, "__name__", "") in (*DRAW_EDGES, *CHANGE_EDGES)


def drops_edges(node: fx.Node) -> bool:
    """Whether a trace calls ``dropout_edge``."""
    return getattr(node.target, "__name__", "") == DROP_EDGES


@contextmanager
def functions_of_edges_seen() -> Iterator[None]:
    """Inside, ``torch_geometric.utils.dropout_edge(...)`` is a traced call wherever it is called: torch.fx sees those
    of a module's own file alone. So are torch's functions in whose place torch_geometric has put some that
    look at sizes, and those that make tensors of sizes, where the rows are."""
    named = {id(function): name for name, function in functions_of_edges().items()}
    before: list[tuple[Any, str, Any]] = [
        (module, name, held[name])
        for module in [*sys.modules.values()]
        if not _calls_its_own(module)
        for held in [getattr(module, "__dict__", {})]
        for name in (named.values() if _is_installed(module) else [*held])  # by other names in files of people's own
        if id(held.get(name)) in named
    ]
    replaced = [getattr(torch, name) for name in _REPLACED]
    before += [(torch, *found) for found in zip(_REPLACED, replaced, strict=True) if inspect.isfunction(found[1])]

    def seen(name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        found = list[Any]()
        fx.node.map_aggregate(
            (args, kwargs), lambda value: found.append(value) if isinstance(value, fx.Proxy) else value
        )
        if not found:
            return function(*args, **kwargs)
        proxy = found[0]
        if name in _FACTORIES:
            kwargs["device"] = proxy.tracer.rows(proxy).device
        if function in replaced:
            args = (kwargs.pop("input"), *args) if "input" in kwargs else args
            return proxy.tracer.create_proxy("call_method", name, args, kwargs)
        return proxy.tracer.create_proxy("call_function", function, args, kwargs)

    before += [(torch, name, getattr(torch, name)) for name in _FACTORIES]
    try:
        for module, name, function in before:
            setattr(module, name, update_wrapper(partial(seen, name, function), function))
        yield
    finally:
        for module, name, function in before:
            setattr(module, name, function)


def _is_installed(module: Any) -> bool:
    return "-packages" in (getattr(module, "__file__", None) or "")


def _calls_its_own(module: Any) -> bool:
    """Whether it is a file of torch_geometric or of ours, whose functions are traced as they are."""
    name = getattr(module, "__name__", "")
    ours = name.startswith(("torch_geometric.", "hongtu."))
    return ours and name not in ("torch_geometric.utils", *DRAWING, GCN)


def refuse_edges(node: fx.Node, title: str) -> None:
    """Refuse a function of the graph's edges.

    Raises:
        InputError: always, with what to do in its place.
    """
    name = label(node)
    if name in DRAW_EDGES:
        known = "torch_geometric.utils.dropout_edge(edge_index, p, training=self.training)"
        remedy = {
            "negative_sampling": "hongtu.LinkLoss draws negatives, of the links that a loss scores",
            "add_random_edge": "add some once, before hongtu.preprocess_graph",
        }.get(name, f"of the functions that do, layers know {known}")
        raise InputError(f"{title}.forward calls {name}, which draws edges anew in every epoch; {remedy}")
    if name == "flip" or (name == "getitem" and node.args[1] in ([1, 0], [-1, 0])):
        raise InputError(
            f"{title}.forward turns edges round ({name}); where it only takes them so, turn those of the Data before "
            "hongtu.preprocess_graph; where it takes both directions, give it edges both ways, with edge_type 0 and 1, "
            "and train hongtu.nn.RGCNConv(columns, columns, 2), which has weights of its own for each"
        )
    if name == "degree":
        end = first.args[1] if (first := node.all_input_nodes[0]).target is operator.getitem else 1
        raise InputError(
            f"{title}.forward calls degree on edges; make columns of x of it before hongtu.preprocess_graph, as data.x "
            f"= torch.cat([data.x, degree(data.edge_index[{end}], data.num_nodes).view(-1, 1)], dim=1), and leave it "
            "out of forward"
        )
    if name == "getitem":
        name = f"edge_index[{node.args[1]}]" if isinstance(node.args[1], int) else "edge_index[...]"
    if name in _APART:
        raise InputError(
            f"{title}.forward takes edges apart ({name}), of which a chunk has some; what goes along edges is the work "
            "of a convolution, such as a MessagePassing with message(self, x_i, x_j); a number, such as how many there "
            "are, of __init__; and what vertices have of edges, such as degrees, are columns of data.x"
        )
    raise InputError(
        f"{title}.forward calls {name} on edges; change edges before hongtu.preprocess_graph, as "
        f"{_beforehand(node, name)}"
    )


def _beforehand(node: fx.Node, name: str) -> str:
    """A call of a trace that changes edges, as it is made of a ``Data``, and what is left of forward."""
    left = ", and leave it out of forward"
    if name == "remove_isolated_nodes":
        return f"data = torch_geometric.transforms.RemoveIsolatedNodes()(data){left}"
    if name not in CHANGE_EDGES:
        called = f"data.edge_index.{name}(...)" if node.op == "call_method" else f"torch.{name}(...)"
        return f"data.edge_index = {'data.edge_index[:, ...]' if name == 'edge_index[...]' else called}{left}"
    takes = inspect.signature(node.target).parameters  # type: ignore[arg-type]
    given = inspect.signature(node.target).bind(*node.args, **node.kwargs).arguments  # type: ignore[arg-type]
    taken = [str(other.target) for other in node.all_input_nodes if other.target in (WEIGHTS, FEATURES)]
    beside = (*taken, WEIGHTS if WEIGHTS in takes else FEATURES)[0]
    options = {key: value for key, value in given.items() if not isinstance(value, fx.Node) and value is not None}
    options |= {"num_nodes": _written(given["num_nodes"])} if given.get("num_nodes") is not None else {}
    said = ["subset"] * ("subset" in takes) + [f"data.edge_index, data.{beside}"]
    said += [
        f"{key}={value if key == 'num_nodes' else repr(value)}"
        for key, value in options.items()
        if key not in ("subset", "edge_index", WEIGHTS, FEATURES)
    ]
    makes = f"{left}, which takes edge_weight then" if WEIGHTS in takes and not taken else left
    return f"data.edge_index, data.{beside} = {name}({', '.join(said)}){makes}"


def _written(count: Any) -> str:
    """How many vertices a forward says there are, as it is written of a ``Data``, or of types of a ``HeteroData``."""
    if isinstance(count, tuple | list):
        return f"({', '.join(map(_written, count))})"
    if not isinstance(count, fx.Node):
        return repr(count)
    while count.all_input_nodes and not (count.target is operator.getitem and isinstance(count.args[1], str)):
        count = count.all_input_nodes[0]
    return f"data[{count.args[1]!r}].num_nodes" if count.all_input_nodes else "data.num_nodes"


class EdgesLeft:
    """What ``dropout_edge`` leaves of edges in a trace, and of what lies beside them."""

    def __init__(self) -> None:
        self.by: dict[fx.Node, EdgeDropout | None] = {}  # of its calls, and of edges, masks and values behind them

    def takes(
        self, node: fx.Node, edges: set[fx.Node], values: dict[fx.Node, Any], base: dict[fx.Node, fx.Node],
        title: str,
    ) -> bool:  # fmt: skip
        """Whether it is such a call, one of the two things that this returns, or values picked by its mask.

        Raises:
            InputError: for anything else that is done with these.
        """
        first, *others = node.all_input_nodes or [node]
        if node.op == "call_method" and node.target in AS_THEY_ARE and node.args[0] in edges:
            edges.add(node)
            self.by |= {node: self.by[first]} if first in self.by else {}
            return True
        if drops_edges(node):
            if first not in edges or first in self.by or first.target == "adj_t":
                raise InputError(
                    f"{title}.forward calls {DROP_EDGES} on {first}, expected the edge_index that it takes"
                )
            p = node.kwargs.get("p", 0.5)
            self.by[node] = EdgeDropout(p) if p else None  # type: ignore[arg-type]
            return True
        item = node.args[1] if node.target is operator.getitem else None
        if first in self.by and drops_edges(first) and item in (0, 1):
            self.by[node] = self.by[first]
            edges.update([node] if item == 0 else [])
            return True
        masks = [other for other in node.all_input_nodes if self._is_mask(other)]
        if masks and (others != masks or first not in values or item is not masks[0] or first in self.by):
            remedy = "which may only index tensors of edges, as edge_attr[mask]"
            if first.target == FEATURES and item is masks[0]:  # the first state of edges
                remedy = "and edges whose values a layer updates, as a MetaLayer does, stay as they are; leave it out"
            raise InputError(f"{title}.forward calls {label(node)} with the mask that {DROP_EDGES} returns, {remedy}")
        if masks:
            values[node], base[node], self.by[node] = values[first], base[first], self.by[masks[0]]
        return bool(masks)

    def _is_mask(self, node: fx.Node) -> bool:
        return node in self.by and node.target is operator.getitem and node.args[1:] == (1,)

    def follow(self, node: fx.Node, value: fx.Node, called: nn.Module | None, title: str) -> None:
        """A module gives a row for each edge that is left; a function might look at all.

        Raises:
            InputError: for a function.
        """
        if value in self.by and called is None:
            raise InputError(
                f"{title}.forward calls {label(node)} with what {DROP_EDGES} has left of the edges' values; do that "
                "first, and pick by the mask last"
            )
        if value in self.by:
            self.by[node] = self.by[value]

    def of_call(self, given: list[fx.Node], call: str) -> EdgeDropout | None:
        """What has dropped edges of those that a module is given, and rows of what lies beside them.

        Raises:
            InputError: where that is not the same.
        """
        found = {self.by.get(node) for node in given}
        if len(found) > 1:
            raise InputError(
                f"{call} with edges that {DROP_EDGES} has left and with what all edges have, or with those of two "
                "calls; pick by its mask: edge_index, mask = dropout_edge(...), and edge_attr[mask]"
            )
        return next(iter(found), None)

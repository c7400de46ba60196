"""What each value of a traced forward for typed graphs is: how many hops from the features, and rows of which type."""

from __future__ import annotations

import inspect
import operator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from hongtu.errors import InputError
from hongtu.graph.vertex_types import VertexTypes
from hongtu.model.checks import modes_kept
from hongtu.model.expression import label
from hongtu.model.in_place import gives_rows, settle
from hongtu.model.random_state import kept_random_state
from hongtu.model.tracer import is_convolution
from hongtu.model.typed_attention import ByRelation, TypedConv, attended, is_han, scores
from hongtu.model.typed_hop import gcn_degrees, gcn_loop, is_gcn
from hongtu.model.typed_trace import EDGE_INDEX, EXAMPLE, TypedRoot, base_of, trace_typed


@dataclass
class _Value:
    """What a node of the trace gives.

    Attributes:
        hop: convolutions between it and the features.
        kind: the type of the vertices that it has rows of; None: of several, or of none.
        free: it is made of no rows: of parameters, or of what edges have.
        last: the hop that takes it last.
    """

    hop: int = 0
    kind: str | None = None
    free: bool = False
    last: int = 0


class TypedValues:
    """A traced forward, node by node."""

    def __init__(self, root: TypedRoot, types: VertexTypes, title: str) -> None:
        self._root, self._types, self._title = root, types, title
        self._made = 0  # modules
        self._counts = {name: len(rows) for name, rows in root.examples["x"].items()}
        self._graph = trace_typed(root, title)
        settle(self._graph, self._module, title)
        for node in self._graph.nodes:
            self._leave_out_size(node)
        for node in reversed(self._graph.nodes):
            if not node.users and node.op not in ("placeholder", "output"):
                self._graph.erase_node(node)
        self._know_degrees()
        self._attend_later()
        self._values: dict[fx.Node, _Value] = {}
        for node in self._graph.nodes:
            if node.op != "output":
                self._values[node] = self._value(node)

    def _leave_out_size(self, node: fx.Node) -> None:
        """How many sources and destinations a convolution is given is known of their rows, and other in every chunk."""
        conv = self._conv(node)
        given = {} if conv is None else inspect.signature(conv.forward).bind(*node.args, **node.kwargs).arguments
        size, counts = given.get("size"), list[Any]()
        fx.node.map_arg((size,), lambda other: counts.append(other.meta[EXAMPLE]))
        if conv is None or not any(
            isinstance(count, int | torch.Size) for count in counts
        ):  # None, or something else of that name
            return
        called = str(node.target).removeprefix("model.")
        if isinstance(x := given.get("x"), tuple | list) and x[1] is None:
            raise InputError(
                f"{self._title}.forward calls {called} with (x, None) and a size; give it the rows of both, (x_source, "
                "x_destination), and make it with root_weight=False where those of destinations do not count"
            )
        node.args = tuple(value for value in node.args if value is not size)
        node.kwargs = {name: value for name, value in node.kwargs.items() if name != "size"}
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda other: other.meta[EXAMPLE])
        same = False
        errors = suppress(TypeError, RuntimeError, ValueError, IndexError)
        with errors, torch.no_grad(), kept_random_state(), modes_kept(conv):
            same = torch.equal(conv.eval()(*args, **kwargs), node.meta[EXAMPLE])
        if not same:
            raise InputError(
                f"{self._title}.forward calls {called} with a size, which is another in every chunk, and it gives "
                "other rows without; have it take none, and find that of the rows that it is given, as "
                "size=(x[0].size(0), x[1].size(0))"
            )

    def _know_degrees(self) -> None:
        """Have degrees be values of the first hop, which a GCNConv takes of sources, too."""
        known: dict[tuple[Any, ...], fx.Node] = {}
        for node in [*self._graph.nodes]:
            conv = self._conv(node)
            if conv is None or not is_gcn(conv):
                continue
            given = inspect.signature(conv.forward).bind(*node.args, **node.kwargs).arguments
            x, edges, weight = (given.get(name) for name in ("x", "edge_index", "edge_weight"))
            relation = self._relation(node)
            if relation is None or not isinstance(x, fx.Node):
                raise InputError(f"{self._title}: {label(node)} expects rows of one type, and edges of one relation")
            key = edges, weight, gcn_loop(conv)
            if key not in known:
                before = next(other for other in self._graph.nodes if other.op == "call_module")
                with self._graph.inserting_before(before if weight is None else node):
                    known[key] = self._graph.call_function(gcn_degrees, (relation[2], edges, weight, gcn_loop(conv)))
                known[key].meta[EXAMPLE] = torch.ones(self._counts[relation[2]])
            node.args, node.kwargs = (x, edges, weight, known[key]), {}

    def _attend_later(self) -> None:
        """Have a HANConv be two steps, the second of which takes means over all vertices."""
        for node in [*self._graph.nodes]:
            conv = self._conv(node)
            if conv is None or not is_han(conv):
                continue
            known, name, node.target = node.meta[EXAMPLE], label(node), self._made_module(ByRelation(conv))
            given = inspect.signature(conv.forward).bind(*node.args, **node.kwargs).arguments
            node.args, node.kwargs = (given["x_dict"], given["edge_index_dict"]), {}
            for user in [*node.users]:
                kind = user.args[1] if user.target is operator.getitem else None
                if not isinstance(known, dict) or kind not in known:
                    raise InputError(
                        f"{self._title} takes the semantic attention weights of {name}, which no layer gives; leave "
                        "return_semantic_attention_weights out"
                    )
                last = user
                for function in (scores, attended):
                    with self._graph.inserting_after(last):
                        last = self._graph.call_function(function, (user,) if function is scores else (user, last))
                user.replace_all_uses_with(last, lambda other: other.target not in (scores, attended))
                relations = sum(relation[2] == kind for relation in given["edge_index_dict"])
                rows, columns = known[kind].shape
                last.meta[EXAMPLE], user.meta[EXAMPLE] = known[kind], torch.zeros(rows, relations, columns + 1)
                last.args[1].meta[EXAMPLE] = torch.zeros(rows, relations)

    def _made_module(self, module: nn.Module) -> str:
        """Its name in the traced model."""
        name, self._made = f"{type(module).__name__.lower()}_{self._made}", self._made + 1
        self._root.add_module(name, module)
        return name

    def _value(self, node: fx.Node) -> _Value:
        inputs = [self._values[other] for other in node.all_input_nodes]
        if node.op == "get_attr" and (kind := self._root.kind_of(str(node.target))) is not None:
            return _Value(kind=kind)
        if node.op == "get_attr" or (node.op == "placeholder" and node.target != "x"):
            return _Value(free=True)
        if node.op == "placeholder":
            return _Value()
        if base_of(node) == "x":
            return _Value(kind=node.args[1])  # type: ignore[arg-type]
        if node.target is gcn_degrees:
            return _Value(1, node.args[0])  # type: ignore[arg-type]
        if node.target is attended:
            return _Value(1 + inputs[0].hop, inputs[0].kind)
        conv = self._conv(node)
        rows = [value for value in inputs if not value.free]
        if conv is not None:
            relation = self._relation(node)
            self._check_between(node, conv, relation)
            return _Value(1 + max(value.hop for value in rows), None if relation is None else relation[2])
        if not rows:
            return _Value(free=True)
        if self._of_edges(*node.all_input_nodes):
            raise InputError(
                f"{self._title}.forward calls {label(node)} with rows of vertices and of edges; a convolution has both"
            )
        hop, kinds = max(value.hop for value in rows), {value.kind for value in rows}
        key = node.args[1] if node.target is operator.getitem else None
        if isinstance(key, str) and key in self._types.names and kinds == {None}:
            return _Value(hop, key)
        if isinstance(node.meta[EXAMPLE], dict):
            return _Value(hop)
        if len(kinds) > 1:
            both = " and ".join(sorted(str(kind) for kind in kinds))
            raise InputError(
                f"{self._title}.forward calls {label(node)} with rows of {both}, which are of different vertices"
            )
        return _Value(hop, kinds.pop())

    def _check_between(self, node: fx.Node, conv: nn.Module, relation: Any) -> None:
        """Refuse a convolution between two types that is given one, or adds self-loops."""
        if relation is None or relation[0] == relation[2]:
            return
        given = node.args[0] if node.args else node.kwargs.get("x")
        call = f"{self._title}.forward calls {str(node.target).removeprefix('model.')}"
        if isinstance(given, fx.Node) and not self._values[given].free and isinstance(given.meta[EXAMPLE], Tensor):
            raise InputError(
                f"{call} with rows of {self._values[given].kind} alone, and its edges are {relation}; give it a pair, "
                "(x_source, x_destination)"
            )
        if getattr(conv, "add_self_loops", False):
            raise InputError(
                f"{call}, a {type(conv).__name__} that adds self-loops, with edges {relation}, between vertices of two "
                "types; make it with add_self_loops=False"
            )

    def _of_edges(self, *nodes: fx.Node) -> bool:
        """Whether any is made of what edges have."""
        return any(
            self._values[node].free and (node.op == "placeholder" or self._of_edges(*node.all_input_nodes))
            for node in nodes
        )

    def _module(self, node: fx.Node) -> nn.Module | None:
        return self._root.get_submodule(str(node.target)) if node.op == "call_module" else None

    def _conv(self, node: fx.Node) -> nn.Module | None:
        """The convolution that a node calls."""
        module = self._module(node)
        return module if module is not None and (is_convolution(module) or isinstance(module, TypedConv)) else None

    def _relation(self, node: fx.Node) -> tuple[str, str, str] | None:
        """Of a convolution's edges; None: several."""
        found = {other.args[1] for other in node.all_input_nodes if base_of(other) == EDGE_INDEX}
        given = [*node.args, *node.kwargs.values()]
        return found.pop() if len(found) == 1 and not any(isinstance(x, dict) for x in given) else None  # type: ignore

    def _is_rows(self, node: fx.Node) -> bool:
        """Whether it has a row of floats for each vertex of a type."""
        found, kind = node.meta[EXAMPLE], self._values[node].kind
        floats = isinstance(found, Tensor) and found.is_floating_point() and found.ndim > 0
        return kind is not None and floats and len(found) == self._counts[kind] and gives_rows(node)

    def _shape(self, node: fx.Node) -> tuple[int, ...]:
        return tuple(node.meta[EXAMPLE].shape[1:])

    def _kind(self, node: fx.Node) -> int:
        return self._types.names.index(str(self._values[node].kind))

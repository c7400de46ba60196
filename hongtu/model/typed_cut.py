"""A traced model for typed graphs, cut into hops.

The hop of a value is how many convolutions lie between it and the features. All convolutions of one hop, with what is
computed of them before the next, become one layer, a :class:`~hongtu.model.typed_hop.TypedHop`.
"""

from __future__ import annotations

import inspect
import operator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from hongtu.errors import InputError
from hongtu.graph.vertex_types import VertexTypes
from hongtu.kernels.torch_private import compiled_from, is_dropout
from hongtu.model.expression import label
from hongtu.model.in_place import gives_rows, settle
from hongtu.model.tracer import is_convolution
from hongtu.model.typed_hop import NormalizedGcn, Packing, TypedHop, first_rows, gcn_degrees, gcn_loop, is_gcn, rows_at
from hongtu.model.typed_trace import EDGE_INDEX, EXAMPLE, OF_EDGES, PREFIX, TypedRoot, base_of, trace_typed
from hongtu.nn.dropout import Dropout
from hongtu.nn.layers.pyg import check_convolution, takes_pair


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


@dataclass
class _Part:
    """What one hop computes: nodes, and values of earlier hops that they take of sources, too, or of destinations."""

    nodes: set[fx.Node] = field(default_factory=set)
    all: set[fx.Node] = field(default_factory=set)
    own: set[fx.Node] = field(default_factory=set)


class Hops:
    """A traced forward, node by node, and the layers that do what it does."""

    def __init__(self, root: TypedRoot, types: VertexTypes, title: str) -> None:
        self._root, self._types, self._title = root, types, title
        self._counts = {name: len(rows) for name, rows in root.examples["x"].items()}
        self._graph = trace_typed(root, title)
        settle(self._graph, self._module, title)
        for node in reversed(self._graph.nodes):
            if not node.users and node.op not in ("placeholder", "output"):
                self._graph.erase_node(node)
        self._made = 0  # modules
        self._degrees: dict[fx.Node, fx.Node] = {}  # of the calls of GCNConv that normalise
        self._know_degrees()
        self._values: dict[fx.Node, _Value] = {}
        self._output: Any = self._graph.output_node().args[0]
        for node in self._graph.nodes:
            if node.op != "output":
                self._values[node] = self._value(node)
        found = self._output.values() if isinstance(self._output, dict) else [self._output]
        self._given: list[fx.Node] = [*found]
        if not all(isinstance(node, fx.Node) and self._is_rows(node) for node in self._given) or not self._given:
            raise InputError(
                f"{title}.forward returns {self._output}, expected rows of one type of vertices, or a dictionary of "
                "such rows by type"
            )
        self._count = max(value.hop for value in self._values.values())
        if self._count == 0:
            raise InputError(f"{title}.forward calls no convolution with edge_index_dict")

    def layers(self) -> list[TypedHop]:
        """One for each hop."""
        parts = [_Part()] + [self._part(hop) for hop in range(1, self._count + 1)]
        for hop, part in enumerate(parts):
            for node in part.all | part.own:
                self._values[node].last = max(self._values[node].last, hop)
        for node in self._given:
            self._values[node].last = self._count + 1
        takes = [self._taken(hop, part.all) for hop, part in enumerate([*parts, _Part()])]
        for node in self._live(1):
            self._place(node, parts[0], 0)
        places = {id(own): name for name, own in self._root.model.state_dict(keep_vars=True).items()}
        layers = []
        for hop in range(1, self._count + 1):
            front = self._module_of(parts[0], 0) if hop == 1 else None
            made = self._module_of(parts[hop], hop)
            layer = TypedHop(self._types, made, takes[hop], takes[hop + 1], front)
            layer.pyg_names = {  # type: ignore[assignment]
                name: places[id(own)] for name, own in layer.state_dict(keep_vars=True).items()
            }
            layers.append(layer)
        columns = {self._kind(node): self._shape(node)[-1] if self._shape(node) else 1 for node in self._given}
        layers[-1].returns = self._types.names[min(columns)] if self._output is self._given[0] else "", columns
        return layers

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

    # ------------------------------------------------------------------------------------------------- what values are

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
        conv = self._conv(node)
        rows = [value for value in inputs if not value.free]
        if conv is not None:
            relation = self._relation(node)
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
        return module if module is not None and is_convolution(module) else None

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

    # -------------------------------------------------------------------------------------------- which hop takes what

    def _part(self, hop: int) -> _Part:
        part = _Part()
        for node, value in self._values.items():
            if value.hop == hop and not value.free:
                self._place(node, part, hop)
        return part

    def _place(self, node: fx.Node, part: _Part, hop: int) -> None:
        """Compute a node in a hop, and find what that takes."""
        if node in part.nodes or base_of(node):
            return
        part.nodes.add(node)
        conv = self._conv(node)
        of_sources = set() if conv is None else self._sources(node, conv)
        for other in node.all_input_nodes:
            value = self._values[other]
            if other.op == "placeholder" or (base_of(other) and base_of(other) != "x"):
                continue
            if not value.free and (value.hop < hop or base_of(other) == "x") and hop and self._is_rows(other):
                (part.all if other in of_sources else part.own).add(other)
            elif value.hop < hop and self._conv(other) is not None:
                raise InputError(f"{self._title}.forward takes {label(other)} of a convolution, expected its rows")
            else:
                self._place(other, part, hop)

    def _sources(self, node: fx.Node, conv: nn.Module) -> set[fx.Node]:
        """The rows that a convolution takes of sources."""
        found: set[fx.Node] = set()
        for given in (*node.args, *node.kwargs.values()):
            if isinstance(given, tuple | list):
                given = given[0]
            fx.node.map_arg(given, found.add)
        return {other for other in found if not self._values[other].free}

    def _live(self, hop: int) -> list[fx.Node]:
        """The values of earlier hops that it or later ones take, in order."""
        return [
            node for node, value in self._values.items()
            if value.hop < hop <= value.last and node.op != "placeholder"
        ]  # fmt: skip

    def _taken(self, hop: int, of_sources: set[fx.Node]) -> tuple[Packing, Packing]:
        """What a hop takes of sources, and what else of destinations."""
        packings = Packing(), Packing()
        for node in self._live(hop):
            packings[node not in of_sources].add(self._kind(node), node.name, self._shape(node))
        return packings

    # ---------------------------------------------------------------------------------------------- a hop as a function

    def _module_of(self, part: _Part, hop: int) -> fx.GraphModule:
        """What a hop computes, and what later ones need of it or of what it is given."""
        graph, outputs = fx.Graph(), self._live(hop + 1)
        own: dict[fx.Node, fx.Node] = {}
        every: dict[fx.Node, fx.Node] = {}
        inputs = {other for node in part.nodes for other in node.all_input_nodes} | {*outputs}
        for node in self._values:
            base = base_of(node)
            if base in OF_EDGES and node in inputs:
                relation = self._types.relations.index(node.args[1])
                own[node] = graph.placeholder(f"{base}_{relation}")
            elif hop == 0 and base == "x" and node in inputs:
                own[node] = graph.placeholder(f"x_{self._kind(node)}")
            elif hop and node not in part.nodes and (node in part.all | part.own or node in outputs):
                own[node] = graph.placeholder(f"own_{node.name}")
                if node in part.all:
                    every[node] = graph.placeholder(f"all_{node.name}")
        known = [node for node in self._values if node in part.nodes]
        drops = [node for node in known if self._drops(node) is not None or node.target is gcn_degrees]
        learned = [node for node in known if node.op == "get_attr" and not self._values[node].free]
        ids = {kind: graph.placeholder(f"ids_{kind}") for kind in sorted({*map(self._kind, [*drops, *learned])})}
        for node in known:
            p, conv = self._drops(node), self._conv(node)
            if node in learned:
                at = ids[self._kind(node)], self._types.starts[self._kind(node)]
                own[node] = graph.call_function(rows_at, (graph.node_copy(node), *at))
            elif node.target is gcn_degrees:
                own[node] = graph.node_copy(node, own.__getitem__)
                own[node].args = (ids[self._kind(node)], *own[node].args[1:])
            elif p is not None:
                (rows,) = node.all_input_nodes
                own[node] = (
                    own[rows] if p == 0 else graph.call_module(self._dropout(p), (own[rows], ids[self._kind(node)]))
                )
            elif conv is not None:
                own[node] = self._call(graph, node, conv, own, every)
            else:
                own[node] = graph.node_copy(node, own.__getitem__)
        graph.output({node.name: own[node] for node in outputs})
        return fx.GraphModule(self._root, graph, "Hop")

    def _call(
        self,
        graph: fx.Graph,
        node: fx.Node,
        conv: nn.Module,
        own: dict[fx.Node, fx.Node],
        every: dict[fx.Node, fx.Node],
    ) -> fx.Node:
        """A convolution, with rows of sources and of destinations; what it gives of destinations."""
        relation, title = self._relation(node), f"{self._title}.forward calls {str(node.target).removeprefix(PREFIX)}"
        check_convolution(conv)
        if is_gcn(conv):
            x, edges, weight, degrees = node.args
            of_edges = own[edges], None if weight is None else own[weight]  # type: ignore[index]
            given = every[x], *of_edges, every[degrees], own[x]  # type: ignore[index]
            return graph.call_module(self._made_module(NormalizedGcn(conv)), given)
        cut: Any = None

        def changed(given: Any) -> Any:
            nonlocal cut
            if isinstance(given, tuple | list) and len(given) == 2:
                rows = [other for other in given if isinstance(other, fx.Node)]
                kinds = [self._values[other].kind for other in rows]
                if relation is None or kinds != [relation[0], relation[2]][: len(kinds)] or given[0] is None:
                    raise InputError(f"{title} with rows of {kinds}, expected those of {relation}")
                return every[given[0]], None if given[1] is None else own.get(given[1]) or every[given[1]]
            found = fx.node.map_arg(given, lambda other: own[other] if self._values[other].free else every[other])
            if isinstance(given, fx.Node) and not self._values[given].free:
                if relation is not None and relation[0] != relation[2]:
                    raise InputError(
                        f"{title} with rows of {self._values[given].kind} alone, and its edges are {relation}; give it "
                        "a pair, (x_source, x_destination)"
                    )
                if takes_pair(conv) and type(conv).__module__.startswith("torch_geometric."):
                    return found, own[given]
                cut = cut or own[given]
            elif isinstance(given, dict) and not any(self._values[other].free for other in given.values()):
                cut = {key: own[other] for key, other in given.items()}
            return found

        args = tuple(changed(given) for given in node.args)
        kwargs = {name: changed(given) for name, given in node.kwargs.items()}
        found = graph.call_module(str(node.target), args, kwargs)
        return found if cut is None else graph.call_function(first_rows, (found, cut))

    def _drops(self, node: fx.Node) -> float | None:
        """The probability of a dropout of rows; None: it is another node."""
        if node.target is nn.functional.dropout:
            return float(node.kwargs.get("p", 0.5))  # type: ignore[arg-type]
        module = self._module(node)
        if module is None or not is_dropout(module) or type(compiled_from(module)) is not nn.Dropout:
            return None
        return module.p if module.training else 0.0  # type: ignore[return-value]

    def _dropout(self, p: float) -> str:
        return self._made_module(Dropout(p))

    def _made_module(self, module: nn.Module) -> str:
        name, self._made = f"{type(module).__name__.lower()}_{self._made}", self._made + 1
        self._root.add_module(name, module)
        return name

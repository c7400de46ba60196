"""A traced model for typed graphs, cut into hops.

The hop of a value is how many convolutions lie between it and the features. All convolutions of one hop, with what is
computed of them before the next, become one layer, a :class:`~hongtu.model.typed_hop.TypedHop`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import fx, nn

from hongtu.errors import InputError
from hongtu.graph.vertex_types import VertexTypes
from hongtu.kernels.torch_private import compiled_from, has_hooks, is_dropout, is_pyg, with_hooks_of
from hongtu.model.expression import label
from hongtu.model.typed_attention import ByRelation, TypedStatistics, attended
from hongtu.model.typed_hop import EDGE_INDEX, EDGES, NormalizedGcn, TypedHop, first_rows, gcn_degrees, is_gcn, rows_at
from hongtu.model.typed_kernels import HgtWithKernels, OnFewEdges, WithKernels, has_kernels
from hongtu.model.typed_rows import Packing
from hongtu.model.typed_trace import OF_EDGES, PREFIX, TypedRoot, base_of
from hongtu.model.typed_values import TypedValues
from hongtu.nn.dropout import Dropout
from hongtu.nn.layers.pyg import check_convolution, takes_pair
from hongtu.nn.message_dropout import ByEdge, may_drop


@dataclass
class _Part:
    """What one hop computes: nodes, and values of earlier hops that they take of sources, too, or of destinations."""

    nodes: set[fx.Node] = field(default_factory=set)
    all: set[fx.Node] = field(default_factory=set)
    own: set[fx.Node] = field(default_factory=set)


@dataclass
class _Graph:
    """The graph of a hop that is being made.

    Attributes:
        own, every: by a node of the trace, what stands for it here: the rows of destinations, and those of all.
        ids: by a type's number, those of its destinations.
        edges: by relation, what tells its edges apart.
    """

    graph: fx.Graph = field(default_factory=fx.Graph)
    own: dict[fx.Node, fx.Node] = field(default_factory=dict)
    every: dict[fx.Node, fx.Node] = field(default_factory=dict)
    ids: dict[int, fx.Node] = field(default_factory=dict)
    edges: dict[Any, fx.Node] = field(default_factory=dict)


class Hops(TypedValues):
    """The layers that do what a traced forward does."""

    def __init__(self, root: TypedRoot, types: VertexTypes, title: str) -> None:
        super().__init__(root, types, title)
        self._output: Any = self._graph.output_node().args[0]
        by_key: dict[str, Any] = self._output if isinstance(self._output, dict) else {"": self._output}
        self._given: list[fx.Node] = [*by_key.values()]
        wrong = [key for key, node in by_key.items() if not isinstance(node, fx.Node) or not self._is_rows(node)]
        if wrong or not by_key:
            several = self._output if isinstance(self._output, tuple | list) else ()
            what = f"{len(several)} values" if several else "something else"
            if isinstance(self._output, dict):
                what = f"a dictionary with something else at {wrong[0]!r}" if wrong else "an empty dictionary"
            raise InputError(
                f"{title}.forward returns {what}, expected rows of one type of vertices, or a dictionary of such rows "
                "by type" + "; return the first of them alone, if it is that" * bool(several)
            )
        self._count = max(value.hop for value in self._values.values())
        if self._count == 0:
            raise InputError(f"{title}.forward calls no convolution with edge_index_dict")
        self._of_statistics = {value.hop for node, value in self._values.items() if node.target is attended}
        beside = [n for n, value in self._values.items() if value.hop in self._of_statistics and self._conv(n)]
        if beside:
            raise InputError(
                f"{title}.forward calls {label(beside[0])} as many hops from the features as the second step of a "
                "HANConv, attention over relations; call it behind the HANConv, or before"
            )

    def layers(self) -> list[TypedHop | TypedStatistics]:
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
        layers: list[Any] = []
        for hop in range(1, self._count + 1):
            front = self._module_of(parts[0], 0) if hop == 1 else None
            made = self._module_of(parts[hop], hop)
            layer: Any = TypedHop(self._types, made, takes[hop], takes[hop + 1], front)
            layer = TypedStatistics(layer) if hop in self._of_statistics else layer
            layer.pyg_names = {name: places[id(own)] for name, own in layer.state_dict(keep_vars=True).items()}
            layers.append(layer)
        columns = {self._kind(node): self._shape(node)[-1] if self._shape(node) else 1 for node in self._given}
        layers[-1].returns = self._types.names[min(columns)] if self._output is self._given[0] else "", columns
        return layers

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
        of_sources = set() if conv is None else self._sources(node)
        if node.target is attended:
            of_sources = {node.all_input_nodes[1]}
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

    def _sources(self, node: fx.Node) -> set[fx.Node]:
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
        packings = Packing(apart=hop in self._of_statistics), Packing()
        for node in self._live(hop):
            packings[node not in of_sources].add(self._kind(node), node.name, self._shape(node))
        return packings

    # ---------------------------------------------------------------------------------------------- a hop as a function

    def _module_of(self, part: _Part, hop: int) -> fx.GraphModule:
        """What a hop computes, and what later ones need of it or of what it is given."""
        made, outputs = _Graph(), self._live(hop + 1)
        self._add_inputs(made, part, hop, outputs)
        for node in self._values:
            if node in part.nodes:
                made.own[node] = self._copied(made, node)
        made.graph.output({node.name: made.own[node] for node in outputs})
        return fx.GraphModule(self._root, made.graph, "Hop")

    def _add_inputs(self, made: _Graph, part: _Part, hop: int, outputs: list[fx.Node]) -> None:
        taken = {other for node in part.nodes for other in node.all_input_nodes} | {*outputs}
        for node in self._values:
            base = base_of(node)
            if base in OF_EDGES and node in taken:
                made.own[node] = made.graph.placeholder(f"{base}_{self._types.relations.index(node.args[1])}")
            elif hop == 0 and base == "x" and node in taken:
                made.own[node] = made.graph.placeholder(f"x_{self._kind(node)}")
            elif hop and node not in part.nodes and (node in part.all | part.own or node in outputs):
                made.own[node] = made.graph.placeholder(f"own_{node.name}")
                if node in part.all:
                    made.every[node] = made.graph.placeholder(f"all_{node.name}")
        by_vertex = [node for node in self._values if node in part.nodes and self._reads_ids(node)]
        made.ids = {kind: made.graph.placeholder(f"ids_{kind}") for kind in sorted({*map(self._kind, by_vertex)})}
        by_edge = {
            edges.args[1]
            for node in self._values
            if node in part.nodes and self._drops_messages(node)
            for edges in node.all_input_nodes
            if base_of(edges) == EDGE_INDEX
        }
        made.edges = {
            relation: made.graph.placeholder(f"{EDGES}_{k}")
            for k, relation in enumerate(self._types.relations)
            if relation in by_edge
        }

    def _reads_ids(self, node: fx.Node) -> bool:
        """Whether what a node gives depends on which vertices its rows are: dropout, degrees, rows that are learned."""
        return self._drops(node) is not None or node.target is gcn_degrees or self._is_learned(node)

    def _is_learned(self, node: fx.Node) -> bool:
        return node.op == "get_attr" and not self._values[node].free

    def _copied(self, made: _Graph, node: fx.Node) -> fx.Node:
        """A node in the graph of its hop."""
        p, conv = self._drops(node), self._conv(node)
        if self._is_learned(node):
            ids, first = made.ids[self._kind(node)], self._types.starts[self._kind(node)]
            return made.graph.call_function(rows_at, (made.graph.node_copy(node), ids, first))
        if p is not None:
            rows, module = made.own[node.all_input_nodes[0]], self._module(node)
            if p == 0 and not (module and has_hooks(module)):
                return rows
            return made.graph.call_module(self._dropout(p, module), (rows, made.ids[self._kind(node)]))
        if conv is not None:
            return self._call_gcn(made, node, conv) if is_gcn(conv) else self._call(made, node, conv)
        if node.target is attended:
            rows, means = node.all_input_nodes
            return made.graph.call_function(attended, (made.own[rows], made.every[means]))
        copied = made.graph.node_copy(node, made.own.__getitem__)
        if node.target is gcn_degrees:
            copied.args = (made.ids[self._kind(node)], *copied.args[1:])
        return copied

    def _call_gcn(self, made: _Graph, node: fx.Node, conv: nn.Module) -> fx.Node:
        """A GCNConv that normalises, by degrees that are known."""
        check_convolution(conv)
        x, edges, weight, degrees = node.args
        of_edges = made.own[edges], None if weight is None else made.own[weight]  # type: ignore[index]
        given = made.every[x], *of_edges, made.every[degrees], made.own[x]  # type: ignore[index]
        return made.graph.call_module(self._made_module(NormalizedGcn(conv)), given)

    def _call(self, made: _Graph, node: fx.Node, conv: nn.Module) -> fx.Node:
        """A convolution, with rows of sources and of destinations; what it gives of destinations."""
        relation, title = self._relation(node), f"{self._title}.forward calls {str(node.target).removeprefix(PREFIX)}"
        check_convolution(conv)
        cut: Any = None  # own rows, by which the rows of destinations are told among those that it gives

        def changed(given: Any) -> Any:
            nonlocal cut
            if isinstance(given, tuple | list) and len(given) == 2:
                rows = [other for other in given if isinstance(other, fx.Node)]
                kinds = [self._values[other].kind for other in rows]
                if relation is None or kinds != [relation[0], relation[2]][: len(kinds)] or given[0] is None:
                    raise InputError(f"{title} with rows of {kinds}, expected those of {relation}")
                return made.every[given[0]], None if given[1] is None else made.own.get(given[1]) or made.every[
                    given[1]
                ]
            found = fx.node.map_arg(given, lambda x: made.own[x] if self._values[x].free else made.every[x])
            if isinstance(given, fx.Node) and not self._values[given].free:
                if takes_pair(conv) and is_pyg(conv) and not has_hooks(conv):
                    return found, made.own[given]
                cut = cut or made.own[given]
            elif isinstance(given, dict) and not any(self._values[other].free for other in given.values()):
                cut = {key: made.own[other] for key, other in given.items()}
            return found

        args = tuple(changed(given) for given in node.args)
        kwargs = {name: changed(given) for name, given in node.kwargs.items()}
        if type(conv).__name__ == "HGTConv" and has_kernels(conv):
            return made.graph.call_module(self._made_module(HgtWithKernels(conv)), args, kwargs | {"own": cut})
        module = conv
        if self._drops_messages(node):
            module = conv if relation is None else ByEdge(conv)
            kwargs["edges"] = made.edges.copy() if relation is None else made.edges[relation]
        if has_kernels(conv):
            module = WithKernels(conv, module)
        elif relation is not None and args and isinstance(args[0], tuple) and None not in args[0]:
            module = OnFewEdges(module)
        target = str(node.target) if module is conv else self._made_module(module)
        found = made.graph.call_module(target, args, kwargs)
        return found if cut is None else made.graph.call_function(first_rows, (found, cut))

    def _drops_messages(self, node: fx.Node) -> bool:
        """Whether it calls a convolution that may, and whose relation is known."""
        conv = self._conv(node)
        if isinstance(conv, ByRelation):
            return may_drop(conv.conv)
        return conv is not None and may_drop(conv) and self._relation(node) is not None and not is_gcn(conv)

    def _drops(self, node: fx.Node) -> float | None:
        """The probability of a dropout of rows; None: it is another node."""
        if node.target is nn.functional.dropout:
            return float(node.kwargs.get("p", 0.5))  # type: ignore[arg-type]
        module = self._module(node)
        if module is None or not is_dropout(module) or type(compiled_from(module)) is not nn.Dropout:
            return None
        return module.p if module.training else 0.0  # type: ignore[return-value]

    def _dropout(self, p: float, module: nn.Module | None) -> str:
        return self._made_module(Dropout(p) if module is None else with_hooks_of(module, Dropout(p)))

"""Models for typed graphs, ``forward(x_dict, edge_index_dict)``: traced for the types of a graph, and cut into hops.

The hop of a value is how many convolutions lie between it and the features. All convolutions of one hop, with what is
computed of them before the next, become one layer, a :class:`~hongtu.model.typed_hop.TypedHop`.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from hongtu.errors import InputError
from hongtu.graph.artifact import Artifact
from hongtu.graph.vertex_types import VertexTypes
from hongtu.kernels.torch_private import compiled_from, is_dropout
from hongtu.model.checks import modes_kept
from hongtu.model.edge_functions import refuse_edges
from hongtu.model.expression import label
from hongtu.model.in_place import gives_rows, settle
from hongtu.model.traced import line_of_forward
from hongtu.model.tracer import Tracer, is_convolution, traced
from hongtu.model.typed_hop import (
    EDGE_ATTR,
    EDGE_INDEX,
    EDGE_WEIGHT,
    NormalizedGcn,
    Packing,
    TypedHop,
    first_rows,
    gcn_degrees,
    gcn_loop,
    is_gcn,
    rows_at,
)
from hongtu.nn.dropout import Dropout
from hongtu.nn.layers.pyg import check_convolution, takes_pair

OF_EDGES = EDGE_INDEX, EDGE_ATTR, EDGE_WEIGHT
EXAMPLE = "example"  # of a node's metadata: what it gives on a small graph
PREFIX = "model."
_CALLS = nn.Module.__call__, nn.Module.__getattr__  # torch.fx puts its own there while it traces


class TypedModel(nn.Module):
    """Stands in a list for the layers of a model whose forward takes dictionaries by type, until a Trainer knows the
    types of its graph.

    Args:
        model: whose copy trains.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @property
    def pyg_names(self) -> dict[str, str]:
        """Its weights' names in the model, by their names here."""
        return {f"{PREFIX}{name}": name for name in self.model.state_dict()}

    def layers(self, artifact: Artifact) -> list[TypedHop]:
        """Those of the model on this graph, with its weights.

        Raises:
            InputError: naming what cannot be done hop by hop, or what the graph lacks.
        """
        title = f"from_pyg: {type(self.model).__name__}"
        types = artifact.types
        if types is None:
            raise InputError(
                f"{title}.forward takes dictionaries by type, and {artifact.path} has no named types; preprocess a "
                "HeteroData, without undirected or self_loops (torch_geometric.transforms.ToUndirected adds reverse "
                "relations)"
            )
        layers = _Hops(_Root(self.model, artifact, types, title), types, title).layers()
        _check_labelled(artifact, types, layers[-1].returns, title)
        called = {name for layer in layers for name in layer.pyg_names.values()}
        for layer in layers:
            layer.pyg_uncalled = {*self.model.state_dict()} - called  # type: ignore[assignment]
        return layers


def with_types(layers: Any, artifact: Artifact) -> Any:
    """A layer list in which what stands for a model of types has become its layers.

    Raises:
        InputError: where it stands beside others.
    """
    if not isinstance(layers, list | tuple) or not any(isinstance(entry, TypedModel) for entry in layers):
        return layers
    if len(layers) > 1:
        raise InputError(
            f"layers[0] ({type(layers[0]).__name__}): the layers of a model of types stand alone; put what is beside "
            "them into its forward"
        )
    return layers[0].layers(artifact)


def _check_labelled(artifact: Artifact, types: VertexTypes, returns: Any, title: str) -> None:
    """Refuse a model whose output for vertices that have labels is not there, or has fewer columns than another's."""
    columns = {types.names[kind]: width for kind, width in returns[1].items()}
    used = np.any([*artifact.masks.values()], axis=0)
    kinds = np.unique(np.searchsorted(types.starts, artifact.original_id[used], side="right") - 1)
    for name in (types.names[kind] for kind in kinds):
        if name not in columns:
            raise InputError(f"{title}.forward returns rows of {', '.join(columns)}, and labels are of {name}")
        widest = max(columns, key=columns.__getitem__)
        if columns[name] < columns[widest]:
            raise InputError(
                f"{title}.forward returns {columns[name]} columns for {name}, which has the labels, and "
                f"{columns[widest]} for {widest}; return the rows of {name} alone, or as many columns for both"
            )


class _Data:
    """A ``HeteroData`` as a forward may read it."""

    def __init__(self, stores: dict[Any, dict[str, Any]]) -> None:
        self._stores = stores
        for name in ("x", *OF_EDGES):
            found = {key: store[name] for key, store in stores.items() if name in store}
            if found:
                setattr(self, f"{name}_dict", found)

    def __getitem__(self, *key: Any) -> _Data:
        found = key[0] if len(key) == 1 else key
        one = object.__new__(_Data)
        vars(one).update(self._stores[found])
        return one


class _Root(nn.Module):
    """Calls the model with dictionaries of rows and of edges, or with one ``HeteroData``."""

    def __init__(self, model: nn.Module, artifact: Artifact, types: VertexTypes, title: str) -> None:
        super().__init__()
        self.model, self.types, self.title = model, types, title
        of_edges = any(types.edge_columns), artifact.stored.edge_weight is not None
        self.has = [name for name, given in zip(OF_EDGES, (True, *of_edges), strict=True) if given]
        parameters = inspect.signature(model.forward).parameters.values()
        several = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
        self.names = [argument.name for argument in parameters if argument.kind not in several]
        needed = [p.name for p in parameters if p.default is p.empty and p.kind not in several]
        self.of_data = len(needed) == 1 and len(self.names) == 1
        self.beside = {}
        for name in () if self.of_data else self.names[2:]:
            known = name.removesuffix("_dict")
            if known in self.has[1:]:
                self.beside[name] = known
            elif name in needed:
                raise InputError(
                    f"{title}.forward asks for {name!r}, and there are x_dict, "
                    f"{', '.join(f'{known}_dict' for known in self.has)} of the graph; give it a default, or "
                    "preprocess a HeteroData that has it"
                )

    def forward(self, x: Any, edge_index: Any, edge_attr: Any, edge_weight: Any) -> Any:
        rows = {name: x[name] for name, width in zip(self.types.names, self.types.widths, strict=True) if width}
        given = {EDGE_INDEX: edge_index, EDGE_ATTR: edge_attr, EDGE_WEIGHT: edge_weight}
        columns = dict(zip(self.types.relations, self.types.edge_columns, strict=True))
        edges = {name: {r: given[name][r] for r in columns if name != EDGE_ATTR or columns[r]} for name in self.has}
        if self.of_data:
            stores: dict[Any, dict[str, Any]] = {name: {} for name in self.types.names}
            stores |= {relation: {} for relation in self.types.relations}
            for name, of in {"x": rows, **edges}.items():
                for key, value in of.items():
                    stores[key][name] = value
            return self.model(_Data(stores))
        beside = {name: edges[known] for name, known in self.beside.items()}
        return self.model(rows, edges[EDGE_INDEX], **beside)

    def kind_of(self, target: str) -> str | None:
        """The type without features that a parameter has a row for each vertex of; the one in its name, of several."""
        found, types = operator.attrgetter(target)(self), self.types
        if not isinstance(found, nn.Parameter) or found.ndim != 2:
            return None
        sizes = zip(types.names, types.counts, types.widths, strict=True)
        kinds = [name for name, count, width in sizes if width == 0 and count == len(found)]
        return next((name for name in kinds if name in target.split(".")), kinds[0] if len(kinds) == 1 else None)

    def examples(self) -> dict[str, Any]:
        """By the names of forward's arguments: a few rows of every type, and edges of every relation."""
        floats = (p.dtype for p in self.model.parameters() if p.is_floating_point())
        dtype, types = next(floats, torch.get_default_dtype()), self.types
        counts = dict(zip(types.names, range(4, 4 + len(types.names)), strict=True))
        x = {name: _numbers(counts[name], width, dtype) for name, width in zip(types.names, types.widths, strict=True)}
        ends = {}
        for relation in types.relations:
            at = torch.arange(2 * counts[relation[2]])
            ends[relation] = torch.stack([(at * 3 + 1) % counts[relation[0]], at % counts[relation[2]]])
        of_edges = {relation: len(at[0]) for relation, at in ends.items()}
        columns = zip(of_edges.items(), types.edge_columns, strict=True)
        attr = {relation: _numbers(count, width, dtype) for (relation, count), width in columns}
        weight = {relation: 1.5 + _numbers(count, 1, dtype)[:, 0] for relation, count in of_edges.items()}
        return {"x": x, EDGE_INDEX: ends, EDGE_ATTR: attr, EDGE_WEIGHT: weight}


def _numbers(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    return torch.sin(torch.arange(rows * columns, dtype=dtype)).view(rows, columns)


class _Tracer(Tracer):
    """Runs a small graph through the model, too: what gives a dictionary is one, and lazy weights get their shapes."""

    def __init__(self, title: str, examples: Mapping[str, Any]) -> None:
        super().__init__(title)
        self._examples = examples

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        chain = type(m) in (nn.Sequential, nn.ModuleDict)
        return not chain and super().is_leaf_module(m, module_qualified_name)

    def create_node(self, *given: Any, **more: Any) -> fx.Node:
        node = super().create_node(*given, **more)
        if node.op != "output":
            with _untraced(), torch.no_grad():
                node.meta[EXAMPLE] = self._run(node)
        return node

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *others: Any, **more: Any) -> Any:
        proxy = super().create_proxy(kind, target, args, kwargs, *others, **more)
        shown = proxy.node.meta.get(EXAMPLE)
        if kind == "placeholder" or isinstance(shown, torch.Size):
            return proxy
        if isinstance(shown, dict):
            return {key: None if value is None else proxy[key] for key, value in shown.items()}
        if isinstance(shown, tuple | list):
            parts = [proxy[k] for k in range(len(shown))]
            return parts if type(shown) in (tuple, list) else type(shown)(parts)  # torch.max's has names
        return proxy

    def _run(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return self._examples[str(node.target)]
        if node.op == "get_attr":
            found = operator.attrgetter(str(node.target))(self.root)
            kind = self.root.kind_of(str(node.target))  # type: ignore[operator]
            rows = 0 if kind is None else len(self._examples["x"][kind])
            return _numbers(rows, found.shape[1], found.dtype) if rows else found
        if node.op != "call_module" and any(_base(other) == EDGE_INDEX for other in node.all_input_nodes):
            refuse_edges(node, self.title)
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda other: other.meta[EXAMPLE])
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        if node.op == "call_function":
            return node.target(*args, **kwargs)  # type: ignore[operator]
        module = self.root.get_submodule(str(node.target))
        with modes_kept(module):
            module.eval()
            found = module(*args, **kwargs)
            if is_convolution(module) and not is_gcn(module):
                _check_local(module, (args, kwargs), found, self.title)
        return found


def _base(node: fx.Node) -> str:
    """Of what the forward is called with for one type or relation: which argument; else ""."""
    first = node.args[0] if node.target is operator.getitem else None
    return str(first.target) if isinstance(first, fx.Node) and first.op == "placeholder" else ""


@contextmanager
def _untraced() -> Iterator[None]:
    """Inside, calls of modules are no part of a trace."""
    traced_calls = nn.Module.__call__, nn.Module.__getattr__
    nn.Module.__call__, nn.Module.__getattr__ = _CALLS  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__call__, nn.Module.__getattr__ = traced_calls  # type: ignore[method-assign]


def _check_local(conv: nn.Module, given: Any, found: Any, title: str) -> None:
    """Refuse a convolution that gives other rows for some destinations where only their in-edges, and these edges'
    sources, are known."""
    last = 2  # destinations 0 and 1 of every type
    edges = [x for x in _tensors(given) if not x.is_floating_point() and x.ndim == 2 and len(x) == 2]
    kept = {ends.shape[1]: ends[1] < last for ends in edges}
    if len(kept) < len({ends.shape[1] for ends in edges}) or not edges:
        return
    needed = {0, 1, *(int(v) for ends in edges for v in ends[0, ends[1] < last])}

    def part(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: part(of) for key, of in value.items()}
        if isinstance(value, tuple | list):
            return tuple(part(of) for of in value)
        if any(value is ends for ends in edges):
            return value[:, value[1] < last]
        if isinstance(value, Tensor) and value.ndim and len(value) in kept:
            return value[kept[len(value)]]
        if isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 1:
            value = value.clone()
            value[[row for row in range(len(value)) if row not in needed]] = torch.nan
        return value

    args, kwargs = part(given)
    again = conv(*args, **kwargs)
    for whole, few in zip(_tensors(found), _tensors(again), strict=True):
        if not torch.allclose(whole[:last], few[:last], rtol=1e-4, atol=1e-5):
            raise InputError(
                f"{title}: {type(conv).__name__} gives rows that depend on more than a vertex's in-edges and their "
                "sources, all that a chunk has; use a convolution that does not, such as SAGEConv, GraphConv, GATConv "
                "or HGTConv"
            )


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return [x for part in value for x in _tensors(part)]
    return [value] if isinstance(value, Tensor) else []


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


class _Hops:
    """A traced forward, node by node, and the layers that do what it does."""

    def __init__(self, root: _Root, types: VertexTypes, title: str) -> None:
        self._root, self._types, self._title = root, types, title
        examples = root.examples()
        self._counts = {name: len(rows) for name, rows in examples["x"].items()}
        try:
            self._graph = traced(root, title, lambda: _Tracer(title, examples))
        except InputError:
            raise
        except Exception as error:  # whatever a forward does
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            reason = f"{reason}; in {line}" if (line := line_of_forward(error)) else reason
            raise InputError(
                f"{title}.forward cannot be traced ({reason}); it is called with x_dict and edge_index_dict of the "
                f"types {', '.join(types.names)} on a small graph, and its way must not depend on values"
            ) from None
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
                ids = torch.arange(self._counts[relation[2]])
                numbers = [None if other is None else other.meta[EXAMPLE] for other in (edges, weight)]
                known[key].meta[EXAMPLE] = gcn_degrees(ids, *numbers, gcn_loop(conv))
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
        if _base(node) == "x":
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
        found = {other.args[1] for other in node.all_input_nodes if _base(other) == EDGE_INDEX}
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
        if node in part.nodes or _base(node):
            return
        part.nodes.add(node)
        conv = self._conv(node)
        of_sources = set() if conv is None else self._sources(node, conv)
        for other in node.all_input_nodes:
            value = self._values[other]
            if other.op == "placeholder" or (_base(other) and _base(other) != "x"):
                continue
            if not value.free and (value.hop < hop or _base(other) == "x") and hop and self._is_rows(other):
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
            base = _base(node)
            if base in OF_EDGES and node in inputs:
                relation = self._types.relations.index(node.args[1])  # type: ignore[arg-type]
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
                if takes_pair(conv):
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

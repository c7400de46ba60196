"""What the forward of a model for typed graphs calls: torch.fx's trace, while a small graph runs through the model."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn

from hongtu.errors import InputError
from hongtu.graph.artifact import Artifact
from hongtu.graph.vertex_types import VertexTypes
from hongtu.kernels.torch_private import has_hooks
from hongtu.model.checks import modes_kept
from hongtu.model.edge_functions import AS_THEY_ARE, refuse_edges
from hongtu.model.expression import label
from hongtu.model.questions import untraced
from hongtu.model.random_state import kept_random_state
from hongtu.model.tracer import Tracer, is_convolution, traced
from hongtu.model.typed_answers import EXAMPLE, answer_of, base_of, is_of_form
from hongtu.model.typed_attention import TypedConv, is_han
from hongtu.model.typed_bases import by_type
from hongtu.model.typed_hop import EDGE_ATTR, EDGE_INDEX, EDGE_WEIGHT, is_gcn
from hongtu.model.untraceable import SAME_WAY, line_of_forward

OF_EDGES = EDGE_INDEX, EDGE_ATTR, EDGE_WEIGHT
PREFIX = "model."
_READS = " of a HeteroData, where there are "


def trace_typed(root: TypedRoot, title: str) -> fx.Graph:
    """What a model does in training, by node; each has what it gives on a small graph in its metadata.

    Raises:
        InputError: where it cannot be traced, or does something else in evaluation.
    """
    try:
        with by_type(root, root.model):
            return traced(root, title, lambda: _Tracer(title, root))
    except InputError:
        raise
    except Exception as error:  # whatever a forward does
        if not root.rows_are_named:  # parameters may have as many rows as a type has vertices, and be none
            root.rows_are_named = True
            with suppress(InputError):
                return trace_typed(root, title)
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        remedy = (
            f"it is called with x_dict and edge_index_dict of the types {', '.join(root.types.names)} on a small "
            "graph, and its way must not depend on values"
        )
        if isinstance(error, fx.proxy.TraceError):
            remedy = SAME_WAY
        elif isinstance(error, KeyError) and error.args and isinstance(error.args[0], str | tuple):
            known = (*root.types.names, *root.types.relations)
            lacks = f"there are {', '.join(map(str, known))}"[:300]
            lacks = "nothing before gives rows of it" if error.args[0] in known else lacks
            reason = f"it asks for {error.args[0]!r}, and {lacks}"
        elif "scalar types: Long" in reason:
            remedy = "x and edge_attr are floats there; look kinds up as x.long(), or edge_attr.long()"
        elif _READS in reason:
            remedy = (
                "make what is of the whole graph in __init__, and return the rows of all vertices: the Trainer takes "
                "its loss over the train mask"
            )
        reason = f"{reason}; in {line}" if (line := line_of_forward(error)) else reason
        raise InputError(f"{title}.forward cannot be traced ({reason}); {remedy}") from None


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

    def __getattr__(self, name: str) -> Any:
        has = ", ".join(known for known in vars(self) if known != "_stores")
        raise AttributeError(f"it reads {name}{_READS}{has}")


class TypedRoot(nn.Module):
    """Calls the model with dictionaries of rows and of edges, or with one ``HeteroData``."""

    def __init__(self, model: nn.Module, artifact: Artifact, types: VertexTypes, title: str) -> None:
        super().__init__()
        self.model, self.types, self.title = model, types, title
        of_edges = any(types.edge_columns), artifact.stored.edge_weight is not None
        self.has = [name for name, given in zip(OF_EDGES, (True, *of_edges), strict=True) if given]
        parameters = inspect.signature(model.forward).parameters.values()
        several = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
        names = [argument.name for argument in parameters if argument.kind not in several]
        needed = [p.name for p in parameters if p.default is p.empty and p.kind not in several]
        known = {name: "edge_index" if "adj" in name else name.removesuffix("_dict") for name in names}
        first = {base: name for name, base in reversed(known.items())}
        self.named = {name: base for base, name in first.items() if base in ("x", *self.has)}
        self.of_data = len(needed) == 1 and EDGE_INDEX not in self.named.values()
        self.rows_are_named = False
        for name in () if self.of_data else needed:
            left = [base for base in ("x", EDGE_INDEX) if base not in self.named.values()]
            if name in self.named:
                continue
            if not left or known[name] in OF_EDGES:
                raise InputError(
                    f"{title}.forward asks for {name!r}, and there are x_dict, "
                    f"{', '.join(f'{base}_dict' for base in self.has)} of the graph; give it a default"
                    + f", or preprocess a HeteroData with data[relation].{known[name]}"
                    * (known[name] in OF_EDGES)
                )
            self.named[name] = left[0]

    def forward(self, x: Any, edge_index: Any, edge_attr: Any, edge_weight: Any) -> Any:
        rows = {name: x[name] for name, width in zip(self.types.names, self.types.widths, strict=True) if width}
        given = {EDGE_INDEX: edge_index, EDGE_ATTR: edge_attr, EDGE_WEIGHT: edge_weight}
        columns = dict(zip(self.types.relations, self.types.edge_columns, strict=True))
        edges = {name: {r: given[name][r] for r in columns if name != EDGE_ATTR or columns[r]} for name in self.has}
        if self.of_data:
            stores: dict[Any, dict[str, Any]] = {name: {} for name in self.types.names}
            stores |= {relation: {} for relation in self.types.relations}
            by_base: dict[str, dict[Any, Any]] = {"x": rows, **edges}
            for name, of in by_base.items():
                for key, value in of.items():
                    stores[key][name] = value
            return self.model(_Data(stores))
        by_name = {name: rows if base == "x" else edges[base] for name, base in self.named.items()}
        return self.model(**by_name) if by_name else self.model(rows, edges[EDGE_INDEX])

    def kind_of(self, target: str) -> str | None:
        """The type without features that a parameter has a row for each vertex of; the one in its name, of several.
        With ``rows_are_named`` only embeddings, and parameters with a type in their names, have such rows."""
        found, types = operator.attrgetter(target)(self), self.types
        if not isinstance(found, nn.Parameter) or found.ndim != 2:
            return None
        sizes = zip(types.names, types.counts, types.widths, strict=True)
        kinds = [name for name, count, width in sizes if width == 0 and count == len(found)]
        owner = operator.attrgetter(target.rpartition(".")[0])(self)
        alone = len(kinds) == 1 and (not self.rows_are_named or isinstance(owner, nn.Embedding))
        return next((name for name in kinds if name in target.split(".")), kinds[0] if alone else None)

    @cached_property
    def examples(self) -> dict[str, Any]:
        """By the names of forward's arguments: a few rows of every type, and edges of every relation."""
        floats = (p.dtype for p in self.model.parameters() if p.is_floating_point())
        dtype, types = next(floats, torch.get_default_dtype()), self.types
        least = 4 + len(types.names)  # so that no type has as many rows as a relation has edges, for _check_local
        counts = dict(zip(types.names, range(least, least + len(types.names)), strict=True))
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

    def __init__(self, title: str, root: TypedRoot) -> None:
        super().__init__(title)
        self._root, self._examples = root, root.examples

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        chain = type(m) in (nn.Sequential, nn.ModuleDict) or type(m).__name__ == "TrimToLayer"  # of GraphSAGE, ...
        return isinstance(m, TypedConv) or (not chain and super().is_leaf_module(m, module_qualified_name))

    def rows(self, of: fx.Proxy) -> fx.Proxy:
        node = of.node
        while node.all_input_nodes and not isinstance(node.meta[EXAMPLE], Tensor):
            node = node.all_input_nodes[0]
        return self.proxy(node) if node.all_input_nodes else self._features()

    def _features(self) -> fx.Proxy:
        """Those of the first type."""
        return self.proxy(next(other for other in self.graph.nodes if base_of(other) == "x"))

    def answer(self, proxy: fx.Proxy, ask: Callable[[Any], Any]) -> Any:
        """What it is on the small graph, for what dimensions and columns say, which the graph has, too.

        Raises:
            fx.proxy.TraceError: for what says more.
        """
        shown = proxy.node.meta[EXAMPLE]
        return len(shown) if ask is len and isinstance(shown, torch.Size) else ask(answer_of(proxy.node, ask))

    def create_node(self, *given: Any, **more: Any) -> fx.Node:
        node = super().create_node(*given, **more)
        if node.op != "output":
            with untraced(), torch.no_grad(), kept_random_state():
                node.meta[EXAMPLE] = self._run(node)
        sizes: Any = node.args[1:] if node.target in ("view", "reshape", torch.reshape) else ()
        sizes = sizes[0] if sizes and isinstance(sizes[0], tuple | list) else sizes
        if -1 in sizes[1:] and any(isinstance(size, fx.Node) for size in sizes):  # of no rows -1 may be any number
            known = zip(sizes, node.meta[EXAMPLE].shape, strict=True)
            node.args = node.args[0], tuple(there if size == -1 else size for size, there in known)
        return node

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *others: Any, **more: Any) -> Any:
        if args and isinstance(args[0], fx.Proxy) and base_of(args[0].node) == EDGE_INDEX:
            if kind == "call_method" and target in AS_THEY_ARE:
                return args[0]
            if target is getattr and args[1] in ("device", "is_cuda"):
                args = self._features(), args[1]
        sizes = args[0].node.meta[EXAMPLE] if args and isinstance(args[0], fx.Proxy) else None
        if target is operator.getitem and isinstance(sizes, torch.Size) and isinstance(args[1], slice):
            return tuple(args[0][k] for k in range(len(sizes))[args[1]])
        casts = [*args[1:], *kwargs.values()] if target in ("to", "type", "type_as") else []
        if casts and all(_has_all_rows(x, args[0]) for x in casts):
            return args[0]
        proxy: Any = super().create_proxy(kind, target, args, kwargs, *others, **more)
        shown = proxy.node.meta.get(EXAMPLE)
        if isinstance(shown, int) and target is not getattr and is_of_form(proxy.node):
            return shown
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
            kind = self._root.kind_of(str(node.target))
            rows = 0 if kind is None else len(self._examples["x"][kind])
            return _numbers(rows, found.shape[1], found.dtype) if rows else found
        if node.op != "call_module" and not is_of_form(node):
            for other in node.all_input_nodes:
                sized = isinstance(other.meta[EXAMPLE], torch.Size)
                of, asks = (other.all_input_nodes[0], other) if sized else (other, node)
                whole = label(asks) == "shape" or (label(asks) == "size" and len(asks.args) + len(asks.kwargs) == 1)
                if base_of(of) == EDGE_INDEX and (sized or not whole):
                    self._refuse_edges(asks, of.args[1])
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda other: other.meta[EXAMPLE])
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        if node.op == "call_function":
            return node.target(*args, **kwargs)  # type: ignore[operator]
        module = self.root.get_submodule(str(node.target))
        with modes_kept(module):
            module.eval()
            found = module(*args, **kwargs)
            if isinstance(module, TypedConv) or (is_convolution(module) and not is_gcn(module) and not is_han(module)):
                _check_local(module, (args, kwargs), found, self.title)
        return found

    def _refuse_edges(self, node: fx.Node, relation: Any) -> None:
        """Refuse a function of a relation's edges, as of those of a ``Data``."""
        if (name := label(node)).startswith("dropout"):
            raise InputError(
                f"{self.title}.forward calls {name}, which draws edges anew in every epoch; drop messages in the "
                "convolution: GATConv(dropout=0.5), or torch.nn.functional.dropout in a message of your own"
            )
        try:
            refuse_edges(node, self.title)
        except InputError as error:
            said, kind = str(error), relation[0 if "edge_index[0], data.num_nodes" in str(error) else 2]
            if " turns edges round " in said:
                reverse = "torch_geometric.transforms.ToUndirected()(data) gives every relation a reverse one to take"
                said = f"{said.partition(';')[0]}; {reverse}"
            if not self._root.types.edge_columns[self._root.types.relations.index(relation)]:
                said = said.replace(", data.edge_attr =", ", _ =").replace("data.edge_attr", "None")
            for name, of in (("edge_", relation), ("x", kind), ("num_nodes", kind)):
                said = said.replace(f"data.{name}", f"data[{of!r}].{name}")
            raise InputError(said) from None


def _has_all_rows(to: Any, given: fx.Proxy) -> bool:
    """Whether ``given.to(to)`` is as given: all rows of a chunk are in one place, and in one dtype."""
    if not isinstance(to, fx.Proxy):
        return False
    found, of = to.node.meta[EXAMPLE], given.node.meta[EXAMPLE]
    found = found.dtype if isinstance(found, Tensor) else found
    return isinstance(found, torch.device) or (isinstance(of, Tensor) and found == of.dtype)


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
            name = type(getattr(conv, "conv", conv)).__name__
            remedy = "use a convolution that does not, such as SAGEConv, GraphConv, GATConv or HGTConv"
            if has_hooks(getattr(conv, "conv", conv)):
                remedy = "leave out what its hooks make of other rows"
            raise InputError(
                f"{title}: {name} gives rows that depend on more than a vertex's in-edges and their sources, all that "
                f"a chunk has; {remedy}"
            )


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return [x for part in value for x in _tensors(part)]
    return [value] if isinstance(value, Tensor) else []

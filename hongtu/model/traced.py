"""A model written for torch_geometric as a list of layers: its forward is traced, nothing of it is executed on data.

Every call of a module, and every function of rows between them, becomes an entry; skips become names.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, fx, nn

from hongtu.errors import InputError
from hongtu.kernels.torch_private import compiled_from, times_written
from hongtu.model.checks import drops
from hongtu.model.edge_inputs import FEATURES, MATRIX, TYPES, WEIGHTS
from hongtu.model.expression import Own, expression, is_expression, label
from hongtu.model.in_place import ChangesTracer, gives_rows, settle
from hongtu.model.wiring import FIRST_NAME, Entry

Part = tuple[nn.Module, str]  # and its name
EdgeValue = tuple[str, list[Part]]  # an argument of the forward, and the modules that it has gone through
Convert = Callable[[nn.Module, str, bool, dict[str, EdgeValue], set[str]], list[nn.Module]]
_CONSTANT = re.compile(r"(?<=_tensor_constant)\d+")  # tensors that a forward makes are numbered through
_OF_EDGES = (WEIGHTS, FEATURES, TYPES)  # arguments of a model, and of convolutions, that have a row for each edge
_WHAT = {WEIGHTS: "edge weights", FEATURES: "edge features", TYPES: "edge types"}


_DRAW_EDGES = ("dropout_edge", "dropout_adj", "dropout_node", "dropout_path", "add_random_edge")
_CHANGE_EDGES = (
    "add_self_loops", "add_remaining_self_loops", "remove_self_loops", "remove_isolated_nodes", "to_undirected",
    "coalesce", "sort_edge_index", "subgraph", "degree",
)  # fmt: skip


class _Root(nn.Module):
    """Calls the model with rows, edges and what it asks of edges, or with one ``Data`` of them all; everything else has
    its default.

    Args:
        optional: what it takes of edges with a default, or as a field of a ``Data``, is given, too; else it is None.
    """

    def __init__(self, model: nn.Module, optional: bool) -> None:
        super().__init__()
        self.model = model
        given = inspect.signature(model.forward).parameters.values()
        several = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
        needed = [argument for argument in given if argument.default is argument.empty and argument.kind not in several]
        self.asked = [argument.name for argument in needed]
        others = [argument.name for argument in given if argument.name not in self.asked]
        edges = [name for name in (*self.asked[1:2], *others) if name in ("edge_index", MATRIX, "adj")]
        self.edges_by_name = edges[0] if len(self.asked) == 1 and edges else ""
        self.of_matrix = bool(edges) and edges[0] != "edge_index"
        self.of_data = len(self.asked) == 1 and not edges
        self.optional = {*_OF_EDGES} if self.of_data else {*_OF_EDGES} & {*others}
        self.given = {*_OF_EDGES} - (set() if optional else self.optional)

    def forward(
        self, x: Any, edge_index: Any, adj_t: Any = None, edge_weight: Any = None, edge_attr: Any = None,
        edge_type: Any = None,
    ) -> Any:  # fmt: skip
        of_edges = dict(zip(_OF_EDGES, (edge_weight, edge_attr, edge_type), strict=True))
        of_edges = {name: value if name in self.given else None for name, value in of_edges.items()}
        if self.of_data:
            return self.model(SimpleNamespace(x=x, edge_index=edge_index, adj_t=adj_t, **of_edges))
        wanted = {name: of_edges[name] for name in (*self.asked, *self.optional & self.given) if name in of_edges}
        edges = adj_t if self.of_matrix else edge_index
        return (
            self.model(x, **{self.edges_by_name: edges}, **wanted)
            if self.edges_by_name
            else self.model(x, edges, **wanted)
        )


class _Tracer(ChangesTracer):
    """Looks into modules that hold convolutions, and into no other; those that the forward makes join the model."""

    def __init__(self, title: str) -> None:
        utils = sys.modules.get("torch_geometric.utils")
        found = (getattr(utils, name, None) for name in (*_DRAW_EDGES, *_CHANGE_EDGES))
        super().__init__(autowrap_functions=tuple(function for function in found if function is not None))
        self.title, self.made = title, list[nn.Module]()

    def path_of_module(self, mod: nn.Module) -> str:
        try:
            return super().path_of_module(mod)
        except NameError:  # it is no part of the model
            kind = type(mod).__name__
            if any(True for _ in (*mod.parameters(), *mod.buffers())):
                raise InputError(
                    f"{self.title}.forward makes a {kind}, whose weights are new in every call, so that nothing trains "
                    f"them; make it in __init__, as self.{kind.lower()}, and call that"
                ) from None
            if drops(mod):
                raise InputError(
                    f"{self.title}.forward makes a {kind}, which drops in evaluation, too; make it in __init__, or "
                    "call torch.nn.functional.dropout(x, p, training=self.training)"
                ) from None
            name = f"made_in_forward_{len(self.made)}"
            self.made.append(mod)
            self.root.get_submodule("model").add_module(name, mod)
            return f"model.{name}"

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if type(m).__name__ == "MLP":  # torch_geometric's: functions and normalisations between linear maps
            return False
        return is_convolution(m) or not any(is_convolution(part) for part in m.modules())


def is_convolution(module: nn.Module) -> bool:
    """Whether it is a convolution of torch_geometric, or derived from one."""
    return any(base.__name__ == "MessagePassing" for base in type(module).__mro__)


def traced_layers(model: nn.Module, convert: Convert) -> list[Entry]:
    """The entries of a layer list that does what ``model(x, edge_index)`` does.

    Args:
        convert: (module, its name, whether it takes edges, what it is called with that has a row for each edge, by its
            own argument, which of these may be None) -> the modules that stand for it, none for one that does nothing.

    Raises:
        InputError: naming what has no place in such a list.
    """
    title = f"from_pyg: {type(model).__name__}"
    root = _Root(model, optional=True)
    if root.asked == ["edge_index"]:
        raise InputError(
            f"{title}.forward takes no rows; give its convolutions as a list, on an artifact of features='embedding:D'"
        )
    unknown = [name for name in root.asked[2:] if name not in _OF_EDGES]
    if unknown and _is_edge_set(model, unknown[0]):
        raise InputError(
            f"{title}.forward asks for {unknown[0]!r}, a second set of edges, and a graph has one; put the edges of "
            "both into edge_index, with edge_type 0 and 1, and train hongtu.nn.RGCNConv(columns, columns, 2), with "
            "weights of its own for the sum, or the mean, over each"
        )
    if unknown:
        raise InputError(
            f"{title}.forward asks for {unknown[0]!r}, expected rows, edges and some of {', '.join(_OF_EDGES)}; give "
            "it a default, or one of these names"
        )
    try:
        root, graph = _with_optional(root, title)
    except InputError:
        raise
    except Exception as error:  # whatever a forward does with what is no tensor
        reason = " ".join(str(error).split())[:150] or type(error).__name__
        remedy = (
            "its way must not depend on values, and what it makes must be made of rows, as torch.ones_like(x[:, :1]): "
            "give its layers as a list"
        )
        if isinstance(error, AttributeError) and isinstance(error.obj, SimpleNamespace):
            reason, remedy = (
                f"it asks for {error.name!r}",
                f"there are {', '.join(vars(error.obj))}: put other rows into x",
            )
        raise InputError(f"{title}.forward cannot be traced ({reason}); {remedy}") from None
    settle(graph, lambda node: root.get_submodule(str(node.target)) if node.op == "call_module" else None, title)
    for node in reversed(graph.nodes):
        if not node.users and node.op not in ("placeholder", "output"):  # nothing takes what it gives
            graph.erase_node(node)
    rows, *of_edges = (node for node in graph.nodes if node.op == "placeholder")
    names = {rows: FIRST_NAME}
    entries: list[tuple[nn.Module, tuple[str, ...], str]] = []
    values: dict[fx.Node, EdgeValue] = {node: (str(node.target), []) for node in of_edges if node.target in _OF_EDGES}
    base = {node: node for node in values}  # the argument or the module's result that each is a function of
    dtypes: dict[fx.Node, Own] = {}  # those of rows, as a number that has it
    edges = {node for node in of_edges if node not in values}
    made: dict[str, tuple[dict[str, EdgeValue], list[nn.Module]]] = {}  # what is called twice keeps one set of weights
    own: dict[fx.Node, Own] = {}  # tensors of the model itself
    fixed: set[fx.Node] = set()  # these, and what is made of them alone
    output = rows
    for node in graph.nodes:
        if node.op in ("placeholder", "output"):
            output = node.args[0] if node.op == "output" else output
            continue
        place = str(node.target).removeprefix("model.")
        if node.op == "get_attr":
            own[node] = place, _tensor_at(root, node, title)
        if node.op == "get_attr" or (is_expression(node) and fixed.issuperset(node.all_input_nodes)):
            fixed.add(node)
            continue
        called = model.get_submodule(place) if node.op == "call_module" else None
        call = f"{title}.forward calls {place}"
        arguments = {"": node.all_input_nodes} if called is None else _given(node, called, call)
        taken = [other for given in arguments.values() for other in given if other not in {*edges, *values}]
        valued = [other for other in node.all_input_nodes if other in values]
        of_values = valued and fixed.issuperset({*node.all_input_nodes} - {*valued, *dtypes})
        if of_values and len({base[other] for other in valued}) == 1 and not (called and is_convolution(called)):
            first = base[valued[0]] if called is None else valued[0]
            modules = [called] if called is not None else expression(node, {first: FEATURES}, own | dtypes)[1]
            values[node] = values[first][0], [*values[first][1], *((module, place) for module in modules)]
            base[node] = first if called is None else node
            continue
        if node.target is getattr and node.args[1] == "dtype":
            dtypes[node] = "", torch.zeros(())
        if (called is not None or node.target is nn.functional.dropout) and not fixed.isdisjoint(taken):
            raise InputError(
                f"{title}.forward calls {place if called is not None else 'dropout'} with a parameter or buffer; give "
                "it rows, or write a hongtu.nn.Layer"
            )
        if isinstance(called, nn.Embedding):
            raise InputError(
                f"{title}.forward calls {place}, an Embedding, with rows; learned rows of vertices are features "
                "(features='embedding:D'), of few kinds hongtu.nn.TypedLinear"
            )
        reads = not edges.isdisjoint(node.all_input_nodes)
        if called is not None:
            inputs = _edge_inputs(arguments, values, edges, call)
            if place not in made:
                made[place] = inputs, convert(called, place, reads, inputs, root.optional)
            given, modules = made[place]
            if inputs != given:
                what = next(_WHAT[name] for name in _OF_EDGES if inputs.get(name) != given.get(name))
                raise InputError(f"{call} with {what} in two forms; give each its own")
        elif reads or valued or not taken:
            if reads:
                _refuse_edges(node, title)
            if len(valued) > 1 and not taken:
                raise InputError(
                    f"{title}.forward calls {label(node)} with several things that edges have; do that once before "
                    "hongtu.preprocess_graph, as data.edge_attr = ..., and take edge_attr"
                )
            raise InputError(f"{title}.forward calls {label(node)}, no function of rows alone; write a hongtu.nn.Layer")
        elif node.target is not nn.functional.dropout and all(map(is_expression, node.users)):
            continue  # a part of what its users compute, such as a size for a view
        elif not gives_rows(node):
            raise InputError(
                f"{title}.forward takes {label(node)} of rows, which is a chunk's; write a hongtu.nn.Layer"
            )
        else:
            taken, modules = expression(node, names, own)
        source = tuple(names[other] for other in taken)
        for module in modules:
            entries.append((module, source, f"v_{node.name}"))
            source = (f"v_{node.name}",)
        names[node] = source[0]
    if not isinstance(output, fx.Node) or output not in names:
        raise InputError(f"{title}.forward returns {output}, expected the rows of one tensor")
    if entries and entries[-1][2] != names[output]:
        entries.append((nn.Identity(), (names[output],), "out"))
    return _unnamed(entries)


def _with_optional(root: _Root, title: str) -> tuple[_Root, fx.Graph]:
    """What a model does with all that it takes of edges. Where it does something else without what is optional, and can
    do without, what it does without."""
    if not root.optional:
        return root, _traced(root, title)
    without, found, errors = _Root(root.model, optional=False), list[tuple[_Root, fx.Graph]](), list[Exception]()
    for one in (root, without):
        try:
            found.append((one, _traced(one, title)))
        except Exception as error:  # whatever a forward does with what is no tensor, or is None
            errors.append(error)
    if not found:
        raise errors[1]
    if found[-1][0] is root:
        root.optional = set()  # it cannot do without
    elif len(found) == 2 and _calls(found[0][1]) != _calls(found[1][1]):
        return found[1]
    return found[0]


def _calls(graph: fx.Graph) -> list[tuple[str, str, list[int]]]:
    """What is called with rows, in order, with the numbers of the calls that these come from."""
    first, *others = graph.nodes
    number, found = {first: 0}, list[tuple[str, str, list[int]]]()
    for node in others:
        rows = [number[other] for other in node.all_input_nodes if other in number]
        if rows or node.op == "output":
            number[node] = len(found) + 1
            found.append((node.op, _CONSTANT.sub("", str(node.target)), rows))
    return found


def _edge_inputs(
    arguments: dict[str, list[fx.Node]], values: dict[fx.Node, EdgeValue], edges: set[fx.Node], call: str
) -> dict[str, EdgeValue]:
    """What a module is called with that has a row for each edge, by its own argument.

    Raises:
        InputError: for an argument that nothing is known of.
    """
    found = {name: values[given[0]] for name, given in arguments.items() if given and given[0] in values}
    for name, (source, _) in found.items():
        if name not in _OF_EDGES or len(arguments[name]) > 1:
            raise InputError(
                f"{call} with {source} as its {name}, which no layer takes of edges; expected one of its arguments "
                f"{', '.join(_OF_EDGES)}"
            )
    if any(node.target == MATRIX for given in arguments.values() for node in given if node in edges):
        found.setdefault(WEIGHTS, (MATRIX, []))  # of a matrix the values come along
    return found


def _traced(root: nn.Module, title: str) -> fx.Graph:
    """What a model does in training; functions of dropout that do nothing then are left out.

    Raises:
        InputError: where it does something else in evaluation, but for dropout.
    """
    flags = {module: module.training for module in root.modules()}
    buffers = [(buffer, times_written(buffer)) for buffer in root.buffers()]
    try:
        tracers = _Tracer(title), _Tracer(title)
        with _functions_of_edges_seen():
            training, evaluation = (tracer.trace(root.train(mode)) for tracer, mode in zip(tracers, (True, False)))
    finally:
        for module, flag in flags.items():
            module.training = flag
    for (buffer, times), now in zip(buffers, root.buffers(), strict=True):
        if now is not buffer or times_written(now) != times:
            raise InputError(f"{title}.forward changes a buffer of its own; leave that out")
    for node in training.nodes:
        if getattr(node.target, "__name__", "") in (*_DRAW_EDGES, *_CHANGE_EDGES):
            _refuse_edges(node, title)
    off = set[str]()  # what drops nothing in training
    for node in [*training.nodes, *evaluation.nodes]:
        if node.target is nn.functional.dropout:
            given = inspect.signature(nn.functional.dropout).bind(*node.args, **node.kwargs).arguments
            trains = given.pop("training", True)
            if trains is False and node.graph is training:
                off.add(node.name)
            if trains and node.graph is evaluation and given.get("p", 0.5):
                raise InputError(
                    f"{title}.forward calls dropout so that it drops in evaluation, too; pass training=self.training"
                )
            node.args = (given.pop("input"),)
            node.kwargs = {**given, "p": 0.0} if node.name in off else given
    calls = [[_CONSTANT.sub("", str(node.format_node())) for node in graph.nodes] for graph in (training, evaluation)]
    if calls[0] != calls[1] or len({str(tracer.made) for tracer in tracers}) > 1:
        raise InputError(
            f"{title}.forward does something else in evaluation (self.training) than in training; only "
            "torch.nn.functional.dropout may: leave the rest to modules, or to what is done with the predictions"
        )
    for one, other in zip(training.nodes, evaluation.nodes, strict=True):
        found = [_tensor_at(root, node, title) for node in (one, other) if node.op == "get_attr"]
        if found and found[0] is not found[1] and not torch.equal(*found):
            raise InputError(f"{title}.forward makes other numbers in every call; make them once, as a buffer")
    return training


@contextmanager
def _functions_of_edges_seen() -> Iterator[None]:
    """Inside, ``torch_geometric.utils.dropout_edge(...)`` is a traced call, too: torch.fx misses it by that name."""
    utils = sys.modules.get("torch_geometric.utils")
    before = {name: getattr(utils, name) for name in (*_DRAW_EDGES, *_CHANGE_EDGES) if hasattr(utils, name)}

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


def _refuse_edges(node: fx.Node, title: str) -> None:
    """Refuse a function of the graph's edges.

    Raises:
        InputError: always, with what to do in its place.
    """
    name = label(node)
    if name in _DRAW_EDGES:
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


def _is_edge_set(model: nn.Module, name: str) -> bool:
    """Whether a convolution of a model takes an argument of its forward for edges."""
    try:
        graph = _Tracer("").trace(model)
        calls = [(node, model.get_submodule(str(node.target))) for node in graph.nodes if node.op == "call_module"]
        edges = [_given(node, module, "").get("edge_index", []) for node, module in calls if is_convolution(module)]
    except Exception:  # whatever a forward does with what is no tensor
        return False
    return any(node.target == name for given in edges for node in given)


def _tensor_at(root: nn.Module, node: fx.Node, title: str) -> Tensor:
    """A parameter, a buffer or a constant tensor, which no module that is called has, too.

    Raises:
        InputError: where one does, whose counterpart has a copy.
    """
    owner, _, name = str(node.target).rpartition(".")
    found = getattr(root.get_submodule(owner), name)
    places = [place for place, parameter in root.named_parameters(remove_duplicate=False) if parameter is found]
    called = [f"{other.target}." for other in node.graph.nodes if other.op == "call_module"]
    if len(places) > 1 or f"{owner}.".startswith(tuple(called)):
        raise InputError(
            f"{title}.forward uses {node.target}, a weight of a module that it calls as well; call that module, or "
            "write a hongtu.nn.Layer"
        )
    return found


def _given(node: fx.Node, module: nn.Module, call: str) -> dict[str, list[fx.Node]]:
    """What a module is called with, by its arguments in their order.

    Raises:
        InputError: for what an entry of a list of layers cannot pass on: plain values, and arguments behind gaps.
    """
    found: dict[str, list[fx.Node]] = {}
    gap = False
    try:
        signature = inspect.signature(compiled_from(module).forward)
    except ValueError:  # a module of torch.jit has none
        signature = inspect.signature(lambda *rows: None)
    try:
        arguments = signature.bind(*node.args, **node.kwargs).arguments
    except TypeError as error:
        raise InputError(f"{call}: {error}") from None
    for name, argument in signature.parameters.items():
        values: list[Any] = []
        fx.node.map_aggregate(arguments.get(name), values.append)
        if all(value is None or value == argument.default for value in values):
            gap = True
        elif (gap and not is_convolution(module)) or not all(isinstance(value, fx.Node) for value in values):
            raise InputError(
                f"{call} with {name}={arguments[name]}, which no entry of a list of layers passes on; leave it out, or "
                "write a hongtu.nn.Layer"
            )
        else:
            found[name] = values
    return found


def _unnamed(entries: list[tuple[nn.Module, tuple[str, ...], str]]) -> list[Entry]:
    """Without headers where every module takes what the one before it gave, and only that."""
    given = (FIRST_NAME, *(gives for _, _, gives in entries))
    if all(takes == (before,) for (_, takes, _), before in zip(entries, given)):
        return [module for module, _, _ in entries]
    return [(module, f"{', '.join(takes)} -> {gives}") for module, takes, gives in entries]

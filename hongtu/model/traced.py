"""A model written for torch_geometric as a list of layers: its forward is traced, nothing of it is executed on data.

Every call of a module, and every function of rows between them, becomes an entry; skips become names.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import fx, nn

from hongtu.errors import InputError
from hongtu.kernels.torch_private import compiled_from
from hongtu.model.asked import Asked
from hongtu.model.checks import check_embedding
from hongtu.model.edge_functions import EdgesLeft, refuse_edges
from hongtu.model.edge_inputs import FEATURES, MATRIX, TYPES, WEIGHTS
from hongtu.model.expression import LookUp, Own, embeddings, expression, is_expression, label, parts
from hongtu.model.in_place import gives_rows, settle
from hongtu.model.left_out import leave_out
from hongtu.model.root import OF_EDGES, Root
from hongtu.model.tracer import Tracer, is_convolution, tensor_at, trace_forward
from hongtu.model.untraceable import untraceable
from hongtu.model.wiring import FIRST_EDGES, FIRST_NAME, Entry
from hongtu.nn.dropout import check_drop_edges
from hongtu.nn.layers.pyg import PyGLayer

Part = tuple[nn.Module, str]  # and its name
EdgeValue = tuple[str, list[Part]]  # an argument of the forward, and the modules that it has gone through


Convert = Callable[..., list[nn.Module]]  # as for ``traced_layers``
_WHAT = {WEIGHTS: "edge weights", FEATURES: "edge features", TYPES: "edge types"}


def traced_layers(model: nn.Module, convert: Convert, without: Collection[str]) -> list[Entry]:
    """The entries of a layer list that does what ``model(x, edge_index)`` does.

    Args:
        convert: (module, its name, whether it takes edges, what it is called with that has a row for each edge, by its
            own argument, which of these may be None, whether it gives rows of vertices and of edges) -> the modules
            that stand for it, none for one that does nothing.
        without: its optional arguments of edges that are None.

    Raises:
        InputError: naming what has no place in such a list.
    """
    title = f"from_pyg: {type(model).__name__}"
    root = Root(model, without)
    if root.asked[:1] in (["edge_index"], [MATRIX]) and {*root.asked[1:]} <= {*OF_EDGES}:
        raise InputError(
            f"{title}.forward takes no rows; have it take x first. Where the first convolution is called with None, "
            "which is one row of weights for each vertex, x is the identity: preprocess_graph(features=torch.eye(N)); "
            "or give its convolutions as a list, on an artifact of features='embedding:D'"
        )
    unknown = [name for name in root.asked if name not in (root.rows, root.edges, *OF_EDGES)]
    if unknown and _is_edge_set(model, unknown[0]):
        raise InputError(
            f"{title}.forward asks for {unknown[0]!r}, a second set of edges, and a graph has one; put the edges of "
            "both into edge_index, with edge_type 0 and 1, and train hongtu.nn.RGCNConv(columns, columns, 2), with "
            "weights of its own for the sum, or the mean, over each"
        )
    if unknown:
        raise InputError(
            f"{title}.forward asks for {unknown[0]!r}, expected rows, edges and some of {', '.join(OF_EDGES)}; put "
            "what else vertices have into x, and edges into edge_attr, or give it one of these names, or a default"
        )
    try:
        root, graph = trace_forward(root, title)
    except InputError:
        raise
    except Exception as error:  # whatever a forward does with what is no tensor
        raise untraceable(error, root, title) from None
    leave_out(graph, root)
    settle(
        graph, lambda node: root.get_submodule(str(node.target)) if node.op == "call_module" else None, title,
        root.questions.writes,
    )  # fmt: skip
    for node in reversed(graph.nodes):
        if not node.users and node.op not in ("placeholder", "output"):  # nothing takes what it gives
            graph.erase_node(node)
    rows, *of_edges = (node for node in graph.nodes if node.op == "placeholder")
    names = {rows: FIRST_NAME}
    entries: list[tuple[nn.Module, tuple[str, ...], str]] = []
    values: dict[fx.Node, EdgeValue] = {node: (str(node.target), []) for node in of_edges if node.target in OF_EDGES}
    pairs = _pairs(graph, root)
    if pairs:  # then edges have names, too
        names |= {node: FIRST_EDGES for node in [*values] if values[node][0] == FEATURES and values.pop(node)}
    base = {node: node for node in values}  # the argument or the module's result that each is a function of
    dtypes: dict[fx.Node, Own] = {}  # those of rows, as a number that has it
    edges = {node for node in of_edges if node not in values and node not in names}
    left = EdgesLeft()
    made: dict[str, tuple[Any, list[nn.Module]]] = {}  # what is called twice keeps one set of weights
    own: dict[fx.Node, Own] = {}  # tensors of the model itself
    fixed: set[fx.Node] = set()  # these, and what is made of them alone
    output = rows
    for node in graph.nodes:
        if node.op in ("placeholder", "output"):
            output = node.args[0] if node.op == "output" else output
            continue
        if node in names:  # a part of what a module gave
            continue
        place = str(node.target).removeprefix("model.")
        if node.op == "get_attr":
            own[node] = place, tensor_at(root, node, title)
        if node.op == "get_attr" or (is_expression(node) and fixed.issuperset(node.all_input_nodes)):
            fixed.add(node)
            continue
        if left.takes(node, edges, values, base, title):
            continue
        called = model.get_submodule(place) if node.op == "call_module" else None
        call = f"{title}.forward calls {place}"
        alone = names.keys() >= {*node.all_input_nodes} and not isinstance(called, nn.Embedding)
        if (
            called is not None
            and alone
            and not is_convolution(called)
            and (several := parts(node, called, place, title))
        ):
            for end, (taken, module) in several.items():
                entries.append((module, tuple(names[other] for other in taken), f"v_{end.name}"))
                names[end] = f"v_{end.name}"
            continue
        arguments = {"": node.all_input_nodes} if called is None else _given(node, called, call)
        taken = [other for given in arguments.values() for other in given if other not in {*edges, *values}]
        valued = [other for other in node.all_input_nodes if other in values]
        of_values = valued and fixed.issuperset({*node.all_input_nodes} - {*valued, *dtypes})
        if of_values and len({base[other] for other in valued}) == 1 and not (called and is_convolution(called)):
            first = base[valued[0]] if called is None else valued[0]
            modules = [called] if called is not None else expression(node, {first: FEATURES}, own | dtypes)[1]
            values[node] = values[first][0], [*values[first][1], *((module, place) for module in modules)]
            base[node] = first if called is None else node
            left.follow(node, valued[0], called, title)
            continue
        if node.target is getattr and node.args[1] == "dtype":
            dtypes[node] = "", torch.zeros(())
        reads = not edges.isdisjoint(node.all_input_nodes)
        if called is not None and reads and edges.issuperset(node.all_input_nodes) and not is_convolution(called):
            raise InputError(
                f"{call} with edges alone, and what a module does to edges is not seen; write it into forward itself, "
                "as dropout_edge(edge_index, p, training=self.training) of torch_geometric.utils"
            )
        if called is not None and is_convolution(called) and not edges.issuperset(arguments.get("edge_index", ())):
            given = ", ".join(map(_shown, arguments["edge_index"]))
            raise InputError(
                f"{call} with {given} in place of edges, and those of the graph are the second argument of forward; "
                "take them, as forward(self, x, edge_index), and pass them on; edges that follow from rows, as of the "
                "nearest, are made once, before hongtu.preprocess_graph"
            )
        of_module = called is not None or node.target is nn.functional.dropout
        if of_module and not (node.all_input_nodes and fixed.isdisjoint(taken)):
            given = "a parameter or buffer" if node.all_input_nodes else "no rows"
            if isinstance(called, nn.Embedding):
                raise InputError(
                    f"{call}, an Embedding, with {given}, and one takes kinds that x says; for rows of its own take "
                    f"them, as self.{place}.weight[0], and for one of each vertex features='embedding:D'"
                )
            if called is None:
                raise InputError(f"{title}.forward calls dropout with {given}, and it drops by vertex; give it rows")
            raise InputError(
                f"{title}.forward calls {place} with {given}; give it rows of x, or call it inside of a module that "
                "takes rows, as h + self.lin(self.bias) (rows that are learned for each vertex are the x of an "
                "artifact with features='embedding:D')"
            )
        if isinstance(called, nn.Embedding):
            _check_look_up(called, place, node, rows, own, title)
        if called is not None:
            inputs = _edge_inputs(arguments, values, edges, call)
            if pairs and names.keys() >= {*arguments.get(FEATURES, [None])}:
                inputs[FEATURES] = FEATURES, []
            dropout = left.of_call([other for other in node.all_input_nodes if other in {*edges, *values}], call)
            if place not in made:
                optional = dict.fromkeys(root.optional, "field" if root.of_data else "argument")
                modules = convert(called, place, reads, inputs, optional, pair=node in pairs)
                if dropout is not None:
                    modules[0].drop_edges = dropout
                    check_drop_edges(modules[0], f"{call} with edges of dropout_edge, and {type(called).__name__}")
                made[place] = (inputs, dropout), modules
            (given, before), modules = made[place]
            beside = [name for name, nodes in arguments.items() if not names.keys().isdisjoint(nodes)][1:]
            if modules and isinstance(modules[0], PyGLayer) and (unknown := [x for x in beside if x != FEATURES]):
                raise InputError(
                    f"{call} with {unknown[0]}, and a convolution that runs as it is has rows of one value, edges, and "
                    "what edges have; of the whole graph no chunk has anything: leave that out, and what each vertex "
                    "has besides put beside its rows, as torch.cat([x, x0], dim=1)"
                )
            if inputs != given or dropout is not before:
                different = (_WHAT[name] for name in OF_EDGES if inputs.get(name) != given.get(name))
                raise InputError(f"{call} with {next(different, 'edges')} in two forms; give each its own")
            if modules and _looks_up(node, root, rows, own):
                (kinds,) = node.all_input_nodes
                made_of = None if kinds is rows else expression(kinds, {rows: FIRST_NAME}, own)[1][0]
                taken, modules = [rows], [LookUp(modules[0], _names(modules[0], place), made_of), *modules[1:]]
        elif reads or valued or not taken:
            if reads:
                refuse_edges(node, title)
            if len(valued) > 1 and not taken:
                learned = any([*module.parameters()] for other in valued for module, _ in values[other][1])
                remedy = (
                    "do that in the forward of one module, which takes edge_attr alone, as self.encoder(edge_attr), "
                    "with what else edges have, such as types, in columns of data.edge_attr"
                    if learned
                    else "do that once before hongtu.preprocess_graph, as data.edge_attr = ... (or edge_weight), and "
                    "take that in forward"
                )
                raise InputError(f"{title}.forward calls {label(node)} with several things that edges have; {remedy}")
            raise InputError(f"{title}.forward calls {label(node)}, no function of rows alone; write a hongtu.nn.Layer")
        elif node.target is not nn.functional.dropout and all(
            is_expression(user) or _looks_up(user, root, rows, own) for user in node.users
        ):
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
        if node in pairs:
            names |= {part: f"{source[0]}_e" if part.args[1] else source[0] for part in node.users}
            gives = dict.fromkeys((source[0], *(names[part] for part in node.users)))
            entries[-1] = (*entries[-1][:2], ", ".join(gives))
    if not isinstance(output, fx.Node) or output not in names:
        raise InputError(
            f"{title}.forward returns {_shown(output)}, expected the rows of one tensor; return what the loss takes "
            "(trainer.embed gives what layers before the last one give)"
        )
    if entries and entries[-1][2] != names[output]:
        entries.append((nn.Identity(), (names[output],), "out"))
    if entries and root.questions.asked != Asked():
        entries[0][0].asked = root.questions.asked  # type: ignore[assignment]
    return _unnamed(entries)


def _shown(value: Any) -> str:
    """A traced value, by the name of what gave it."""
    return str(value).replace("model_", "")


def _pairs(graph: fx.Graph, root: nn.Module) -> set[fx.Node]:
    """The calls of convolutions that give rows of vertices and of edges, (x, edge_attr)."""
    calls = (node for node in graph.nodes if node.op == "call_module" and node.users)
    return {
        node
        for node in calls
        if is_convolution(root.get_submodule(str(node.target)))
        and all(user.target is operator.getitem and user.args[1] in (0, 1) for user in node.users)
    }


def _looks_up(node: fx.Node, root: nn.Module, rows: fx.Node, own: dict[fx.Node, Own]) -> bool:
    """Whether a call is of a module with Embeddings, and of the features or functions of them alone."""
    if node.op != "call_module" or len(node.all_input_nodes) != 1:
        return False
    called = root.get_submodule(str(node.target))
    return bool(embeddings(called)) and not is_convolution(called) and _of_features(node.all_input_nodes[0], rows, own)


def _of_features(value: fx.Node, rows: fx.Node, own: dict[fx.Node, Own]) -> bool:
    if value is rows or not is_expression(value) or label(value) == "arange":
        return value is rows
    before = [other for other in value.all_input_nodes if other not in own]
    return bool(before) and all(_of_features(other, rows, own) for other in before)


def _before(node: fx.Node) -> Iterator[fx.Node]:
    """What a value is made of, itself included."""
    yield node
    for other in node.all_input_nodes:
        yield from _before(other)


def _names(module: nn.Module, place: str) -> dict[str, str]:
    return getattr(module, "pyg_names", {own: f"{place}.{own}" for own in module.state_dict()})


def _check_look_up(
    embedding: nn.Embedding, place: str, node: fx.Node, rows: fx.Node, own: dict[fx.Node, Own], title: str
) -> None:
    """
    Raises:
        InputError: for an Embedding that is called with anything but functions of the features, or changes in forward.
    """
    (kinds,) = node.all_input_nodes
    if not _of_features(kinds, rows, own):
        if "arange" in (label(other) for other in _before(kinds)):
            raise InputError(
                f"{title}.forward calls {place}, an Embedding, with the places of rows, which a chunk has not; take "
                "them from data.x = torch.arange(N).view(-1, 1), as x[:, 0].long(), or have features='embedding:D' "
                "learned"
            )
        raise InputError(
            f"{title}.forward calls {place}, an Embedding, with rows that a module has changed; it takes x or columns "
            "of x, kinds as whole numbers. One learned row for each vertex is features='embedding:D'"
        )
    check_embedding(f"{title}: {place}", embedding)


def _edge_inputs(
    arguments: dict[str, list[fx.Node]], values: dict[fx.Node, EdgeValue], edges: set[fx.Node], call: str
) -> dict[str, EdgeValue]:
    """What a module is called with that has a row for each edge, by its own argument.

    Raises:
        InputError: for an argument that nothing is known of.
    """
    found = {name: values[given[0]] for name, given in arguments.items() if given and given[0] in values}
    for name, (source, _) in found.items():
        if name not in OF_EDGES or len(arguments[name]) > 1:
            raise InputError(
                f"{call} with {source} as its {name}, which no layer takes of edges; expected one of its arguments "
                f"{', '.join(OF_EDGES)}"
            )
    if any(node.target == MATRIX for given in arguments.values() for node in given if node in edges):
        found.setdefault(WEIGHTS, (MATRIX, []))  # of a matrix the values come along
    return found


def _is_edge_set(model: nn.Module, name: str) -> bool:
    """Whether a convolution of a model takes an argument of its forward for edges."""
    try:
        graph = Tracer("").trace(model)
        calls = [(node, model.get_submodule(str(node.target))) for node in graph.nodes if node.op == "call_module"]
        edges = [_given(node, module, "").get("edge_index", []) for node, module in calls if is_convolution(module)]
    except Exception:  # whatever a forward does with what is no tensor
        return False
    return any(node.target == name for given in edges for node in given)


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
        if name == "lambda_max" and is_convolution(module):  # of a ChebConv
            number = arguments.get(name)
            if not isinstance(number, float | int | None):
                raise InputError(f"{call} with {name}={number}, expected a number, as float(self.lambda_max)")
            if vars(module).setdefault(name, number) != number:
                raise InputError(f"{call} with {name} {number} and with another; make two of them")
            continue
        fx.node.map_aggregate(arguments.get(name), values.append)
        if is_convolution(module) and isinstance(arguments.get(name), tuple | list) and len(values) == 2:
            if values[0] is not values[1]:
                pair = f"a pair, {_shown(values[0])} and {_shown(values[1])},"
                raise InputError(
                    f"{call} with {pair} as its {name}, and layers take one tensor, of sources and destinations; call "
                    "it with that, or write a hongtu.nn.Layer"
                )
            values.pop()  # as it makes it of one itself
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

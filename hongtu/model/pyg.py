"""From torch_geometric's models to lists of layers with their weights, and back.

torch_geometric itself is not imported: its modules are known by their names.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor, fx, nn

from hongtu.errors import InputError, refused_as
from hongtu.kernels.torch_private import compiled_from, copied, is_pyg, parameter_hooks
from hongtu.model.checks import drops, is_altered
from hongtu.model.edge_inputs import FEATURES, TYPES, WEIGHTS, EdgeInput
from hongtu.model.expression import label
from hongtu.model.pyg_layers import Named, chain, layers_of, named
from hongtu.model.pyg_names import places_in_model, uncalled_in_model
from hongtu.model.root import OF_EDGES
from hongtu.model.traced import EdgeValue, Part, traced_layers
from hongtu.model.tracer import is_convolution
from hongtu.model.typed import TypedModel
from hongtu.model.wiring import Entry, RowFunction
from hongtu.nn import Dropout, GATConv, GATv2Conv, PyGLayer


def from_pyg(model: Any, *, without: Collection[str] = ()) -> list[Entry]:
    """The layers of a model made of torch_geometric's convolutions, with copies of its weights: what a
    :class:`hongtu.Trainer` takes.

    Convolutions become hongtu's where there is one of the same result, else :class:`hongtu.nn.PyGLayer`. What stands
    between them, functions and skips included, is found by tracing ``model(x, edge_index)``.

    Args:
        model: one of ``torch_geometric.nn.models``, a ``torch_geometric.nn.Sequential``, a module of your own whose
            forward takes (x, edge_index, ...), or one convolution.
        without: those of its forward's optional arguments ``edge_weight``, ``edge_attr`` and ``edge_type`` that stay
            None. The others get the graph's field of their name, where it has one.

    Raises:
        InputError: naming the part that has no counterpart, and what to use instead.
    """
    name = type(model).__name__
    if name == "MLP" and is_pyg(model):
        layers = [_tagged(named(part, at.removeprefix(".")), "") for part, at in chain(copied(model), "")]
        return [*layers]
    if not isinstance(model, nn.Module) or not any(map(is_convolution, model.modules())):
        raise InputError(
            f"from_pyg: got {name} of {type(model).__module__}, expected a MessagePassing, as most convolutions of "
            "torch_geometric.nn are, or a module with some inside, such as GCN, GraphSAGE, GIN, GAT or Sequential"
        )
    if name in ("LabelPropagation", "CorrectAndSmooth") and is_pyg(model):
        raise InputError(
            f"from_pyg: {name} has nothing to learn; call hongtu.{name}, which has the same arguments, with a "
            "hongtu.Propagation of the artifact in place of edges"
        )
    if any(type(part).__name__ == "DirGNNConv" for part in model.modules()):
        raise InputError(
            f"from_pyg: {name} has a DirGNNConv, which adds up out-edges, too, and layers in-edges alone; preprocess "
            "edges both ways, with edge_type 0 and 1, and train hongtu.nn.RGCNConv(columns, columns, 2)"
        )
    if any(isinstance(part, PyGLayer) for part in model.modules()):
        raise InputError(
            f"from_pyg: {name} has a hongtu.nn.PyGLayer, which stands in a list of layers; give the module the "
            "convolution itself, or write the model as a list"
        )
    for place, parameter in model.named_parameters():
        if any(parameter_hooks(parameter)):
            raise InputError(
                f"from_pyg: {name}.{place} has hooks, which copies have not; register them on what is trained, the "
                "parameters of trainer.model"
            )
    for place, part in model.named_modules():
        if part is not model and compiled_from(part) is not part and is_convolution(compiled_from(part)):
            raise InputError(
                f"from_pyg: {name}.{place} is a convolution that torch.compile wraps; give it uncompiled, its "
                "_orig_mod, and compile modules that take rows alone"
            )
    remedy = "torch.nn.utils.parametrizations can be, and a function of torch.jit where no module holds it"
    with refused_as(f"from_pyg: {name} cannot be copied", remedy):
        model = copied(compiled_from(model))  # as a whole: what is shared stays so
    if not model.training:
        model.train()  # its own, which may leave a part in evaluation
    for part in model.modules():  # one with a way of its own to train may do so, too
        if part.training and type(part).train is not nn.Module.train:
            part.train()
    without = {without} if isinstance(without, str) else {*without}
    if _is_heterogeneous(model):
        if without:
            raise InputError(
                f"from_pyg: without={sorted(without)}: {name}.forward takes dictionaries by type, and without is for "
                "forward(x, edge_index, ...); leave it out, and preprocess a HeteroData without what stays None"
            )
        return [TypedModel(model)]
    for place, parameter in model.named_parameters():
        if isinstance(parameter, nn.UninitializedParameter):
            raise InputError(
                f"from_pyg: {name}.{place} is lazy, it has no numbers yet; give its module the columns that it takes, "
                "as in_channels or in_features, or run the model once first"
            )
    arguments = inspect.signature(model.forward).parameters
    if unknown := without - {key for key in OF_EDGES if key in arguments and arguments[key].default is None}:
        raise InputError(
            f"from_pyg: without={sorted(without)}: {sorted(unknown)[0]!r} is no optional argument of {name}.forward"
            f"{inspect.signature(model.forward)}, expected some of {', '.join(OF_EDGES)} that it has with a default"
        )
    if is_convolution(model):
        layers = [_tagged(layer, "") for layer in layers_of(model, name, FEATURES not in without)]
        if not layers[0].updates_edges:
            edges = {key: (key, list[Part]()) for key in OF_EDGES if key in arguments and key not in without}
            may_be_none = [WEIGHTS, FEATURES] if name == "GENConv" else [WEIGHTS]
            _give_edges(layers[0], edges, dict.fromkeys(may_be_none, "argument"), name)
        _tie(model, layers)
        return [*layers]

    def convert(
        module: nn.Module,
        place: str,
        edges: bool,
        inputs: dict[str, EdgeValue],
        optional: dict[str, str],
        *,
        pair: bool,
    ) -> list[nn.Module]:
        if type(module) in (nn.Dropout, nn.Identity) and not is_altered(module):
            return [Dropout(module.p)] if isinstance(module, nn.Dropout) and module.p > 0 and module.training else []
        index = re.sub(r"[.]([0-9]+)", r"[\1]", place)
        if edges:
            found = layers_of(module, f"{name}.{index}", FEATURES in inputs, updates_edges=pair)
        else:  # a chain's normalisations have to stand in the list
            found = [named(part, at.removeprefix(".")) for part, at in chain(module, "")]
        layers = [_tagged(layer, place) for layer in found]
        if edges:
            _give_edges(layers[0], inputs, optional, f"{name}.{index}")
        return layers

    entries = traced_layers(model, convert, without)
    layers = list(_modules(entries))
    _tie(model, layers)
    called = {name for layer in layers for name in getattr(layer, "pyg_names", {}).values()}
    for layer in layers:
        layer.pyg_uncalled = set(model.state_dict()) - called  # type: ignore
    return entries


def _tie(model: nn.Module, layers: Sequence[nn.Module]) -> None:
    """Have what is one parameter in several places of the model be one in the layers, too."""
    once = {*model.named_parameters()}
    again = {place: p for place, p in model.named_parameters(remove_duplicate=False) if (place, p) not in once}
    several, first = {*again.values()}, dict[nn.Parameter, nn.Parameter]()
    places = {place: p for place, p in once if p in several} | again
    for layer in layers if places else ():
        for own, place in getattr(layer, "pyg_names", {}).items():
            if place in places:
                inside, _, name = own.rpartition(".")
                setattr(layer.get_submodule(inside), name, first.setdefault(places[place], layer.get_parameter(own)))


def _is_heterogeneous(model: nn.Module) -> bool:
    """Whether it takes a dictionary by type; ``to_hetero`` gives a graph that asks for one."""
    takes = inspect.signature(model.forward).parameters
    kinds = {type(part).__name__ for part in model.modules()}
    graphs = (part.graph for part in model.modules() if isinstance(part, fx.GraphModule))
    typed = any(label(call) == "get_dict" for graph in graphs for call in graph.nodes)
    return (
        typed
        or not {"x_dict", "edge_index_dict"}.isdisjoint(takes)
        or not kinds.isdisjoint({"HeteroConv", "HGTConv", "HANConv", "HeteroBasisConv"})
    )


def _modules(layers: Iterable[Any]) -> Iterator[nn.Module]:
    return (entry[0] if isinstance(entry, tuple) else entry for entry in layers)


def _tagged(found: Named, place: str) -> nn.Module:
    """The layer, which remembers whose weights it has."""
    layer, names = found
    layer.pyg_names = {own: f"{place}.{name}" if place else name for own, name in names.items()}  # type: ignore
    return layer


def _give_edges(layer: Any, inputs: dict[str, EdgeValue], optional: dict[str, str], title: str) -> None:
    """Tell a layer what it is called with of edges; edge features go through modules first."""
    uses = {WEIGHTS: layer.weighted, FEATURES: layer.uses_edge_features, TYPES: layer.uses_edge_type}
    layer.edge_inputs = {}
    for argument, (given, parts) in inputs.items():
        if not uses[argument]:
            continue
        if any(drops(module) for module, _ in parts):
            what = {WEIGHTS: "edge weights", FEATURES: "edge features", TYPES: "edge types"}[argument]
            raise InputError(f"from_pyg: {title} takes {what} from which a dropout has taken some; leave that out")
        change = nn.Sequential(*(module for module, _ in parts)) if parts else None
        if change is not None and isinstance(layer, GATConv | GATv2Conv):  # a number of an edge is a column there
            change.append(RowFunction(lambda rows: rows.view(len(rows), -1)))
        if change is not None and argument == FEATURES:
            layer.encode_edges, change = change, None
            for k, (module, place) in enumerate(parts):
                names = getattr(module, "pyg_names", {own: f"{place}.{own}" for own in module.state_dict()})
                layer.pyg_names |= {f"encode_edges.{k}.{own}": name for own, name in names.items()}
        elif change is not None and any(p.requires_grad for p in change.parameters()):
            raise InputError(
                f"from_pyg: {title} takes {argument} made with parameters, and weights of edges get no gradient; "
                "use a convolution that takes edge_attr, such as GATConv(edge_dim=1) or NNConv"
            )
        layer.edge_inputs[argument] = EdgeInput(given, optional.get(given, ""), change)


def to_pyg(layers: Sequence[Any], model: Any) -> Any:
    """Copy the weights of layers into a torch_geometric model of the same form.

    Args:
        layers: what ``from_pyg(model)`` gave, trained since, or ``trainer.model``.
        model: changed in place, compiled or not; what ``from_pyg``'s never called stays as it is.

    Returns:
        the model.

    Raises:
        InputError: naming the first weight that does not fit.
    """
    modules = list(_modules(layers))
    places, own = places_in_model(modules), nn.ModuleList(modules).state_dict()
    state = {places[name]: value for name, value in own.items()}
    _load(compiled_from(model), state, type(compiled_from(model)).__name__, uncalled_in_model(modules))
    return model


def _load(module: nn.Module, state: dict[str, Tensor], title: str, uncalled: set[str]) -> None:
    whole = module.state_dict()
    keys = {name: (value.data_ptr(), value.numel() or name) for name, value in whole.items()}
    first = {key: name for name, key in reversed(keys.items())}  # of a module in several places
    own = {name: whole[name] for name in first.values()}
    state = {first[keys[name]] if name in keys else name: value for name, value in state.items()}
    for name in (*state, *(name for name in own if name not in uncalled)):
        if name not in own or name not in state or own[name].shape != state[name].shape:
            found = "nothing" if name not in state else f"shape {tuple(state[name].shape)}"
            expected = "nothing of that name" if name not in own else f"shape {tuple(own[name].shape)}"
            raise InputError(f"to_pyg: {title}.{name}: the layers have {found}, the model has {expected}")
    module.load_state_dict(state, strict=False)

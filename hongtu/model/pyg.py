"""From torch_geometric's models to lists of layers with their weights, and back.

torch_geometric itself is not imported: its modules are known by their names.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hongtu.errors import InputError
from hongtu.model.pyg_names import convolution_state, to_pyg_names
from hongtu.model.wiring import RowFunction
from hongtu.nn import Dropout, GATConv, GCNConv, GINConv, PyGLayer, SAGEConv

MODELS = ("GCN", "GraphSAGE", "GIN", "GAT")  # of torch_geometric.nn.models


def from_pyg(model: Any) -> list[nn.Module]:
    """The layers of a torch_geometric model, with copies of its weights: what a :class:`hongtu.Trainer` takes.

    Convolutions become hongtu's where there is one of the same result, else :class:`hongtu.nn.PyGLayer`.

    Args:
        model: ``GCN``, ``GraphSAGE``, ``GIN`` or ``GAT`` of ``torch_geometric.nn.models``, a
            ``torch_geometric.nn.Sequential`` in which every module takes what the one before it gives, or one
            convolution.

    Raises:
        InputError: naming the part that has no counterpart, and what to use instead.
    """
    name = type(model).__name__
    if not type(model).__module__.startswith("torch_geometric.nn"):
        raise InputError(
            f"from_pyg: got {name} of {type(model).__module__}, expected one of {', '.join(MODELS)}, Sequential or a "
            "convolution of torch_geometric.nn; convert its convolutions one by one"
        )
    if hasattr(model, "_children") and name == "Sequential":
        layers = _from_sequential(model)
    elif hasattr(model, "convs"):
        layers = _from_basic(model)
    else:
        layers = [_convolution(model, name)]
    return [layer.train() for layer in layers]  # a Trainer leaves a single norm in the mode that it finds


def to_pyg(layers: Sequence[nn.Module], model: Any) -> Any:
    """Copy the weights of layers into a torch_geometric model of the same form.

    Args:
        layers: what ``from_pyg(model)`` gave, trained since, or ``trainer.model``.
        model: changed in place.

    Returns:
        the model.

    Raises:
        InputError: naming the first weight that does not fit.
    """
    layers = list(layers)
    if hasattr(model, "_children") and type(model).__name__ == "Sequential":
        if len(layers) != len(model._children):
            raise InputError(f"to_pyg: {len(layers)} layers for a Sequential of {len(model._children)} modules")
        for layer, child in zip(layers, model._children, strict=True):
            _load(getattr(model, child.name), convolution_state(type(layer).__name__, layer.state_dict()), child.name)
    elif hasattr(model, "convs"):
        state = nn.ModuleList(layers).state_dict()
        _load(model, to_pyg_names(state, [type(layer).__name__ for layer in layers]), type(model).__name__)
    elif len(layers) == 1:
        _load(model, convolution_state(type(layers[0]).__name__, layers[0].state_dict()), type(model).__name__)
    else:
        raise InputError(f"to_pyg: {len(layers)} layers for one {type(model).__name__}")
    return model


def _load(module: nn.Module, state: dict[str, Tensor], title: str) -> None:
    own = module.state_dict()
    for name in (*state, *own):
        if name not in own or name not in state or own[name].shape != state[name].shape:
            found = "nothing" if name not in state else f"shape {tuple(state[name].shape)}"
            expected = "nothing of that name" if name not in own else f"shape {tuple(own[name].shape)}"
            raise InputError(f"to_pyg: {title}.{name}: the layers have {found}, the model has {expected}")
    module.load_state_dict(state)


def _from_basic(model: Any) -> list[nn.Module]:
    kind = type(model).__name__
    if kind not in MODELS:
        raise InputError(f"from_pyg: {kind} has no counterpart, expected one of {', '.join(MODELS)}")
    jumps = getattr(model, "jk_mode", None)
    if jumps not in (None, "last"):
        raise InputError(f"from_pyg: {kind}(jk={jumps!r}) joins layers that are not neighbours; use jk=None or 'last'")
    layers: list[nn.Module] = []
    for k, (conv, norm) in enumerate(zip(model.convs, model.norms, strict=True)):
        layers.append(_convolution(conv, f"{kind}.convs[{k}]"))
        if k == model.num_layers - 1 and jumps is None:
            break
        between = [*_norm(norm), *_activation(model.act)]
        layers += reversed(between) if model.act_first else between
        if model.dropout.p > 0:
            layers.append(Dropout(model.dropout.p))
    if hasattr(model, "lin"):
        layers.append(copy.deepcopy(model.lin))
    return layers


def _from_sequential(model: Any) -> list[nn.Module]:
    layers: list[nn.Module] = []
    made: dict[int, list[nn.Module]] = {}  # a module that stands in several places keeps one set of weights
    given = None
    for child in model._children:
        module = getattr(model, child.name)
        title = f"Sequential.{child.name} ({type(module).__name__})"
        rows = child.param_names[:1]
        if (given is not None and rows != given) or len(child.return_names) != 1:
            raise InputError(
                f"from_pyg: {title} takes {', '.join(child.param_names)}, expected {(given or ['x'])[0]}: every module "
                "must take what the one before it gives; write skips as a hongtu.nn.Layer"
            )
        given = child.return_names
        if id(module) not in made:
            made[id(module)] = _entry(module, title, takes_edges=len(child.param_names) > 1)
        layers += made[id(module)]
    return layers


def _entry(module: Any, title: str, *, takes_edges: bool) -> list[nn.Module]:
    if not isinstance(module, nn.Module):
        return [RowFunction(module)]
    if type(module) is nn.Dropout:
        return [Dropout(module.p)]
    return [_convolution(module, title)] if takes_edges else _norm(module)


def _activation(act: Any) -> list[nn.Module]:
    if act is None:
        return []
    return [copy.deepcopy(act) if isinstance(act, nn.Module) else RowFunction(act)]


def _norm(norm: nn.Module) -> list[nn.Module]:
    """A normalisation or row-wise module; which can be exact is the Trainer's to check."""
    return [] if isinstance(norm, nn.Identity) else [copy.deepcopy(norm)]


def _norm_inside(norm: nn.Module, title: str) -> list[nn.Module]:
    name = type(norm).__name__
    if "Batch" in name or (name == "LayerNorm" and getattr(norm, "mode", "node") != "node"):
        raise InputError(
            f"from_pyg: {title} ({name}) takes statistics over vertices inside of a layer; use norm=None, or "
            "norm='layer_norm' with norm_kwargs={'mode': 'node'}"
        )
    return _norm(norm)


def _convolution(conv: nn.Module, title: str) -> nn.Module:
    make = _COUNTERPARTS.get(type(conv).__name__)
    if any(isinstance(p, nn.UninitializedParameter) for p in conv.parameters()):
        raise InputError(f"from_pyg: {title} has lazy parameters; give its in_channels, or run the model once first")
    if make is not None and conv.flow != "source_to_target":
        raise InputError(
            f"from_pyg: {title} has flow={conv.flow!r}, expected 'source_to_target'; turn the edges instead"
        )
    layer = None if make is None else make(conv, title)
    if layer is None:
        return PyGLayer(copy.deepcopy(conv))
    if not isinstance(layer, GINConv):  # which has its weights already
        layer.load_state_dict(conv.state_dict())
    return layer.to(next((p.dtype for p in conv.parameters()), torch.float32))


def _sums(conv: Any) -> bool:
    return conv.aggr in ("add", "sum")


def _check_sum(conv: Any, title: str) -> None:
    if not _sums(conv):
        raise InputError(
            f"from_pyg: {title} has aggr={conv.aggr!r}, which only its sum has a counterpart for; leave it out"
        )


def _gcn(conv: Any, title: str) -> nn.Module | None:
    _check_sum(conv, title)
    if conv.improved:
        raise InputError(
            f"from_pyg: {title} is improved, which torch_geometric leaves out for graphs without edge weights; for "
            "loops of weight 2 on any graph use hongtu.nn.GCNConv(improved=True)"
        )
    return GCNConv(
        conv.in_channels, conv.out_channels, add_self_loops=conv.add_self_loops,
        normalize=conv.normalize, bias=conv.bias is not None,
    )  # fmt: skip


def _sage(conv: Any, title: str) -> nn.Module | None:
    if conv.project or conv.aggr not in ("mean", "sum", "add") or not isinstance(conv.in_channels, int):
        return None
    return SAGEConv(
        conv.in_channels, conv.out_channels, conv.aggr, normalize=conv.normalize, root_weight=conv.root_weight,
        bias=conv.lin_l.bias is not None,
    )  # fmt: skip


def _gin(conv: Any, title: str) -> nn.Module | None:
    if not _sums(conv):
        return None
    layer = GINConv(_mlp(conv.nn, title), conv.initial_eps, isinstance(conv.eps, nn.Parameter))
    with torch.no_grad():
        layer.eps.copy_(conv.eps)
    return layer


def _mlp(module: Any, title: str) -> nn.Module:
    """torch_geometric's ``MLP`` as a ``torch.nn.Sequential``; other modules as they are."""
    if type(module).__name__ != "MLP" or not hasattr(module, "lins"):
        return copy.deepcopy(module)
    parts: list[nn.Module] = []
    last = len(module.lins) - 1
    for k, lin in enumerate(module.lins):
        made = nn.Linear(lin.in_channels, lin.out_channels, bias=lin.bias is not None)
        made.load_state_dict(lin.state_dict())
        parts.append(made)
        if k < last or not module.plain_last:
            between = [*_norm_inside(module.norms[k], f"{title}.nn.norms[{k}]"), *_activation(module.act)]
            parts += reversed(between) if module.act_first else between
            if module.dropout[k] > 0:
                parts.append(Dropout(module.dropout[k]))
    return nn.Sequential(*parts)


def _gat(conv: Any, title: str) -> nn.Module | None:
    _check_sum(conv, title)
    if conv.lin is None or getattr(conv, "residual", False):
        raise InputError(f"from_pyg: {title}: in_channels as a pair and residual have no counterpart; leave them out")
    return GATConv(
        conv.in_channels, conv.out_channels, conv.heads, conv.concat, conv.negative_slope, conv.dropout,
        conv.add_self_loops, conv.edge_dim, conv.fill_value, bias=conv.bias is not None,
    )  # fmt: skip


_COUNTERPARTS: dict[str, Callable[[Any, str], nn.Module | None]] = {
    "GCNConv": _gcn, "SAGEConv": _sage, "GINConv": _gin, "GATConv": _gat,
}  # fmt: skip

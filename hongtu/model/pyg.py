"""From torch_geometric's models to lists of layers with their weights, and back.

torch_geometric itself is not imported: its modules are known by their names.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hongtu.errors import InputError
from hongtu.model.pyg_names import convolution_state, to_pyg_names
from hongtu.model.traced import is_convolution, traced_layers
from hongtu.model.wiring import Entry, RowFunction
from hongtu.nn import Dropout, GATConv, GATv2Conv, GCNConv, GINConv, PyGLayer, SAGEConv, TransformerConv


def from_pyg(model: Any) -> list[Entry]:
    """The layers of a model made of torch_geometric's convolutions, with copies of its weights: what a
    :class:`hongtu.Trainer` takes.

    Convolutions become hongtu's where there is one of the same result, else :class:`hongtu.nn.PyGLayer`. What stands
    between them, functions and skips included, is found by tracing ``model(x, edge_index)``.

    Args:
        model: one of ``torch_geometric.nn.models``, a ``torch_geometric.nn.Sequential``, a module of your own whose
            forward takes (x, edge_index, ...), or one convolution.

    Raises:
        InputError: naming the part that has no counterpart, and what to use instead.
    """
    name = type(model).__name__
    if not isinstance(model, nn.Module) or not any(map(is_convolution, model.modules())):
        raise InputError(
            f"from_pyg: got {name} of {type(model).__module__}, expected a convolution of torch_geometric.nn or a "
            "module with some of them inside, such as GCN, GraphSAGE, GIN, GAT or Sequential"
        )
    if is_convolution(model):
        return [_tagged(_convolution(model, name), "").train()]

    def convert(module: nn.Module, place: str, takes_edges: bool) -> list[nn.Module]:
        if type(module) is nn.Dropout:
            return [Dropout(module.p)] if module.p > 0 else []
        index = re.sub(r"[.]([0-9]+)", r"[\1]", place)
        found = [_convolution(module, f"{name}.{index}")] if takes_edges else _norm(module)
        return [_tagged(made, place).train() for made in found]  # a Trainer leaves a norm in the mode that it finds

    return traced_layers(model, convert)


def _tagged(layer: nn.Module, place: str) -> nn.Module:
    """The layer, which remembers whose weights it has."""
    layer.pyg_place = place  # type: ignore[assignment]
    return layer


def to_pyg(layers: Sequence[Any], model: Any) -> Any:
    """Copy the weights of layers into a torch_geometric model of the same form.

    Args:
        layers: what ``from_pyg(model)`` gave, trained since, or ``trainer.model``.
        model: changed in place.

    Returns:
        the model.

    Raises:
        InputError: naming the first weight that does not fit.
    """
    modules = [entry[0] if isinstance(entry, tuple) else entry for entry in layers]
    state: dict[str, Tensor] = {}
    for layer in modules:
        own = convolution_state(type(layer).__name__, layer.state_dict())
        place = getattr(layer, "pyg_place", None)
        if own and place is None:  # not from_pyg's
            state = to_pyg_names(nn.ModuleList(modules).state_dict(), [type(module).__name__ for module in modules])
            break
        state |= {f"{place}.{name}" if place else name: value for name, value in own.items()}
    _load(model, state, type(model).__name__)
    return model


def _load(module: nn.Module, state: dict[str, Tensor], title: str) -> None:
    whole = module.state_dict()
    first = {(value.data_ptr(), value.numel() or name): name for name, value in reversed(whole.items())}
    own = {name: whole[name] for name in first.values()}  # of a module in several places the first
    for name in (*state, *own):
        if name not in own or name not in state or own[name].shape != state[name].shape:
            found = "nothing" if name not in state else f"shape {tuple(state[name].shape)}"
            expected = "nothing of that name" if name not in own else f"shape {tuple(own[name].shape)}"
            raise InputError(f"to_pyg: {title}.{name}: the layers have {found}, the model has {expected}")
    module.load_state_dict(state, strict=False)


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
        try:
            return PyGLayer(copy.deepcopy(conv))
        except ValueError as error:
            raise InputError(f"from_pyg: {title}: {error}") from None
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


def _gatv2(conv: Any, title: str) -> nn.Module | None:
    if not _sums(conv) or not isinstance(conv.in_channels, int):
        return None
    return GATv2Conv(
        conv.in_channels, conv.out_channels, conv.heads, conv.concat, conv.negative_slope, conv.dropout,
        conv.add_self_loops, conv.edge_dim, conv.fill_value, bias=conv.bias is not None,
        share_weights=conv.share_weights, residual=conv.residual,
    )  # fmt: skip


def _transformer(conv: Any, title: str) -> nn.Module | None:
    if not _sums(conv) or not isinstance(conv.in_channels, int):
        return None
    return TransformerConv(
        conv.in_channels, conv.out_channels, conv.heads, conv.concat, conv.beta, conv.dropout, conv.edge_dim,
        bias=conv.lin_key.bias is not None, root_weight=conv.root_weight,
    )  # fmt: skip


_COUNTERPARTS: dict[str, Callable[[Any, str], nn.Module | None]] = {
    "GCNConv": _gcn, "SAGEConv": _sage, "GINConv": _gin, "GATConv": _gat, "GATv2Conv": _gatv2,
    "TransformerConv": _transformer,
}  # fmt: skip

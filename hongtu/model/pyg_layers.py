"""Convolutions of torch_geometric as hongtu's layers with their weights.

torch_geometric itself is not imported: its modules are known by their names.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from hongtu import nn as hnn
from hongtu.errors import InputError
from hongtu.kernels.torch_private import has_hooks, is_known, is_pyg, with_hooks_of
from hongtu.model.checks import is_altered
from hongtu.model.wiring import RowFunction
from hongtu.nn.layer import is_chain
from hongtu.nn.message_dropout import MessageDropout
from hongtu.nn.whole_graph import rules_of

_SUM = "add", "sum"
_OF_NETWORK = ("GINConv", "GINEConv")
_SIMPLE = {f"{name}Aggregation" for name in ("Sum", "Mean", "Max", "Min")}
_OF_COLUMNS = "GCNConv", "GCN2Conv", "SGConv", "SSGConv", "TAGConv", "ChebConv", "APPNP", "LGConv"  # each alone
Named = tuple[nn.Module, dict[str, str]]  # a module, and for each of its weights the name in what it stands for


def named(module: nn.Module, place: str = "") -> Named:
    """Weights that keep their names, behind that of a part."""
    return module, {name: f"{place}.{name}" if place else name for name in module.state_dict()}


def layers_of(conv: nn.Module, title: str, edge_features: bool, *, updates_edges: bool = False) -> list[Named]:
    """What stands for a convolution: a layer, and of a ``GINConv`` what of its network needs the whole graph behind it.

    Args:
        title: what messages call it.
        edge_features: whether its model calls it with those of the graph, if it has some.
        updates_edges: it gives rows of vertices and of edges.

    Raises:
        InputError: when it has no counterpart, with what to use instead.
    """
    name = type(conv).__name__ if is_pyg(conv) else "one's own"
    make = _COUNTERPARTS.get(name) if name != "GENConv" else partial(_gen, edge_features=edge_features)
    of_network = name in _OF_NETWORK
    if (make is not None or of_network) and conv.flow != "source_to_target":
        raise InputError(
            f"from_pyg: {title} has flow={conv.flow!r}, expected 'source_to_target'; turn the edges instead"
        )
    dtype = next((p.dtype for p in conv.parameters()), torch.float32)
    if getattr(conv, "decomposed_layers", 1) > 1 and name in _OF_COLUMNS:
        conv.decomposed_layers = 1  # type: ignore[assignment]
        vars(conv).pop("propagate", None)  # which it had for these
    altered = "" if make is None and not of_network else _altered(conv)
    if of_network and conv.aggr in _SUM and not altered and (name == "GINConv" or edge_features):
        return _gin(conv)
    option = ""
    try:
        layer = None if make is None or altered else make(conv, title)
        if layer is not None:
            layer.to(dtype).load_state_dict(conv.state_dict())
    except InputError:
        raise
    except (AttributeError, RuntimeError):
        layer, altered = None, "it has other parts than its class makes"
    except ValueError as error:  # of ours, for an option that theirs has
        layer, option = None, f"has another option than hongtu.nn.{error}"
    if not edge_features and getattr(layer, "edge_dim", None) is not None:
        raise InputError(
            f"from_pyg: {title} has an edge_dim and is called without edge_attr; leave one out, or pass the other"
        )
    if updates_edges:
        layer = None
    if layer is None:
        try:
            wrapped = hnn.PyGLayer(conv, updates_edges=updates_edges)
        except ValueError as error:
            if option:
                raise InputError(f"from_pyg: {title} {option}") from None
            of_rows = re.fullmatch("it has (forward|backward)( pre)? hooks", altered)
            remedy = "hook a torch.nn.Identity() before or behind it" if of_rows else "write a hongtu.nn.Layer"
            reason = altered and f"{altered}, which hongtu.nn.{name} does not have; {remedy}"
            raise InputError(f"from_pyg: {title}: {reason or error}") from None
        wrapped.uses_edge_features &= edge_features
        return [(wrapped, {name: name.removeprefix("conv.") for name in wrapped.state_dict()})]
    given = dict(conv.named_parameters(remove_duplicate=False))
    for place, parameter in layer.named_parameters():  # what is frozen stays so
        parameter.requires_grad_(given[place].requires_grad)
    return [named(layer if conv.training else layer.eval())]


def _altered(conv: Any) -> str:
    """What of a convolution somebody has changed, so that its class does not say what it does; "" where nothing."""
    of_network = type(conv).__name__ in _OF_NETWORK  # whose parts are taken as they are
    network = {*conv.nn.modules()} if of_network else set()
    for place, part in conv.named_modules():
        if part in network:
            continue
        title = f"its {place}" if place else "it"
        known = type(part).__module__.startswith(("torch_geometric.", "torch.nn.modules."))
        if not known:
            return f"{title} is a {type(part).__name__}"
        for name, value in vars(part).items():
            if name.endswith("_hooks") and "state_dict" not in name and value:
                return f"{title} has {name.strip('_').replace('_', ' ')}"
            if callable(value) and name not in ("act", "activation") and hasattr(type(part), name):
                return f"{title} has a {name} of its own"
    kind = f"{str(getattr(conv, 'aggr', None)).capitalize()}Aggregation"
    aggregation = type(getattr(conv, "aggr_module", None)).__name__
    same = {"AddAggregation": "SumAggregation"}.get(kind, kind)
    if same in _SIMPLE and aggregation != same:
        return f"it has a {aggregation} for aggr={conv.aggr!r}"
    return ""


def _gin(conv: Any) -> list[Named]:
    """Of ``GINConv`` and ``GINEConv``. A chain's first part is the layer's network; from a normalisation over the graph
    on, its parts stand behind."""
    parts = chain(conv.nn, "nn")
    cut = next((k for k, (part, _) in enumerate(parts) if rules_of(part) is not None), len(parts))
    whole = len(parts) == 1 == cut
    make = hnn.GINConv if type(conv).__name__ == "GINConv" else hnn.GINEConv
    layer = make(
        parts[0][0] if whole else nn.Sequential(*(part for part, _ in parts[:cut])),
        conv.initial_eps, isinstance(conv.eps, nn.Parameter),
    )  # fmt: skip
    layer.eps.data = conv.eps.data
    if not all(map(is_known, layer.nn.modules())):
        layer.message_dropout = MessageDropout()
    names = {"eps": "eps"}
    if getattr(conv, "lin", None) is not None:  # of edge features
        layer.lin = _alone(conv.lin)
        names |= {f"lin.{name}": f"lin.{name}" for name in layer.lin.state_dict()}
    for k, (part, place) in enumerate(parts[:cut]):
        names |= {f"nn.{name}" if whole else f"nn.{k}.{name}": f"{place}.{name}" for name in part.state_dict()}
    return [(layer, names), *(named(part, place) for part, place in parts[cut:])]


def chain(module: Any, place: str) -> list[tuple[nn.Module, str]]:
    """The parts of a ``torch.nn.Sequential`` or of torch_geometric's ``MLP``, and where each is; of another module that
    alone."""
    if is_chain(module):
        return [found for k, part in enumerate(module) for found in chain(part, f"{place}.{k}")]
    if type(module).__name__ != "MLP" or not hasattr(module, "lins") or has_hooks(module):
        return [(_alone(module), place)]
    parts: list[tuple[nn.Module, str]] = []
    last = len(module.lins) - 1
    for k, lin in enumerate(module.lins):
        parts.append((_alone(lin), f"{place}.lins.{k}"))
        if k < last or not module.plain_last:
            norm = [] if isinstance(module.norms[k], nn.Identity) else [(_alone(module.norms[k]), f"{place}.norms.{k}")]
            act = (
                []
                if module.act is None
                else [(module.act if isinstance(module.act, nn.Module) else RowFunction(module.act), f"{place}.act")]
            )
            parts += act + norm if module.act_first else norm + act
            if module.dropout[k] > 0 and module.training:
                parts.append((hnn.Dropout(module.dropout[k]), place))
    return parts


def _alone(module: nn.Module) -> nn.Module:
    """The module, or one of torch's kind or ours that does the same."""
    if type(module) is nn.Dropout:
        return with_hooks_of(module, hnn.Dropout(module.p if module.training else 0.0))
    if type(module).__name__ == "Linear" and is_pyg(module) and not is_altered(module):
        made = nn.Linear(module.in_channels, module.out_channels, bias=module.bias is not None)  # type: ignore[arg-type]
        made.to(next(module.parameters()).dtype).load_state_dict(module.state_dict())
        for name, parameter in module.named_parameters():  # what is frozen stays so
            made.get_parameter(name).requires_grad_(parameter.requires_grad)
        return made
    return module


def _like(kind: type[nn.Module], conv: Any, **other: Any) -> Any:
    """A layer with the options that a convolution has under the same names, and some others."""
    names = inspect.signature(kind.__init__).parameters
    options = {name: getattr(conv, name) for name in names if hasattr(conv, name)}
    if "bias" in options:
        options["bias"] = conv.bias is not None
    return kind(**options | other)


def _sage(conv: Any, title: str) -> nn.Module | None:
    if conv.project or conv.aggr not in (*_SUM, "mean") or not isinstance(conv.in_channels, int):
        return None
    if not conv.root_weight and hasattr(conv, "lin_r"):  # switched off later, as DirGNNConv does
        return None
    return _like(hnn.SAGEConv, conv, bias=conv.lin_l.bias is not None)


def _gated(conv: Any) -> nn.Module | None:
    return None if conv.edge_dim or type(conv.act) is not nn.Sigmoid else _like(hnn.GGCNConv, conv)


def _gcn2(conv: Any) -> nn.Module:
    layer = _like(hnn.GCN2Conv, conv, shared_weights=conv.weight2 is None)
    layer.beta = conv.beta
    return layer


def _gen(conv: Any, title: str, edge_features: bool) -> nn.Module | None:
    aggregation = _aggregation(conv.aggr_module)
    if aggregation is None or not isinstance(conv.in_channels, int):
        return None
    edge_dim = conv.lin_edge.in_channels if hasattr(conv, "lin_edge") else conv.out_channels if edge_features else None
    layer = hnn.GENConv(
        conv.in_channels, conv.out_channels, aggregation, msg_norm=hasattr(conv, "msg_norm"), norm=None, eps=conv.eps,
        bias=conv.mlp[0].bias is not None, edge_dim=edge_dim,
    )  # fmt: skip
    layer.mlp = nn.Sequential(*map(_alone, conv.mlp))
    if hasattr(conv, "msg_norm"):
        layer.msg_norm.scale.requires_grad_(conv.msg_norm.scale.requires_grad)
    return layer


def _aggregation(aggr: Any) -> str | hnn.Aggregation | None:
    """Ours of the same name and options."""
    name = type(aggr).__name__.removesuffix("Aggregation").lower()
    if name in ("sum", "mean", "max", "min"):
        return name
    if name == "softmax":
        return hnn.SoftmaxAggregation(aggr._init_t if aggr.learn else aggr.t, aggr.learn, aggr.semi_grad, aggr.channels)
    if name == "powermean":
        return hnn.PowerMeanAggregation(
            aggr._init_p if aggr.learn else aggr.p, aggr.learn, aggr.channels, aggr.min_value, aggr.max_value
        )
    if name == "multi" and aggr.mode == "cat":
        several = [found for one in aggr.aggrs if (found := _aggregation(one)) is not None]
        return hnn.MultiAggregation(several) if len(several) == len(aggr.aggrs) else None
    return None


def _pna(conv: Any, title: str) -> nn.Module | None:
    several = conv.aggr_module.aggr
    kinds = [type(aggr).__name__ for aggr in getattr(several, "aggrs", [several])]
    names = [kind.removesuffix("Aggregation").lower() for kind in kinds]
    if not set(names) <= {"sum", "mean", "min", "max", "var", "std"}:
        return None
    pre, post = conv.pre_nns[0], conv.post_nns[0]
    between = [part for parts in (pre, post) for part in parts if type(part).__name__ != "Linear"]
    return _like(
        hnn.PNAConv, conv, aggregators=names, scalers=conv.aggr_module.scaler, deg=torch.ones(2),
        pre_layers=(len(pre) + 1) // 2, post_layers=(len(post) + 1) // 2, act=between[0] if between else "relu",
        train_norm=isinstance(conv.aggr_module.avg_deg_lin, nn.Parameter),
    )  # fmt: skip


Make = Callable[[Any], nn.Module | None]  # of a convolution; None: it is wrapped


def _of_sums(make: Make) -> Callable[[Any, str], nn.Module | None]:
    """Other reductions are refused."""

    def made(conv: Any, title: str) -> nn.Module | None:
        if conv.aggr not in _SUM:
            raise InputError(
                f"from_pyg: {title} has aggr={conv.aggr!r}, and hongtu.nn's layer of that name adds up; of other ways "
                "there are SAGEConv and GraphConv, or a hongtu.nn.Layer of your own"
            )
        return make(conv)

    return made


def _where(reductions: tuple[str, ...], make: Make) -> Callable[[Any, str], nn.Module | None]:
    """Other reductions, and several widths, are wrapped."""
    return lambda conv, title: make(conv) if conv.aggr in reductions and isinstance(conv.in_channels, int) else None


_ALIKE = ("GCNConv", "TAGConv", "MixHopConv", "ARMAConv", "APPNP")  # whose options have the same names
_COUNTERPARTS: dict[str, Callable[[Any, str], nn.Module | None]] = {
    **{name: _of_sums(partial(_like, getattr(hnn, name))) for name in _ALIKE},
    **{name: _where(_SUM, partial(_like, getattr(hnn, name))) for name in ("GATConv", "GATv2Conv")},
    "SAGEConv": _sage,
    "PNAConv": _pna,
    "TransformerConv": _where(_SUM, lambda conv: _like(hnn.TransformerConv, conv, bias=conv.lin_key.bias is not None)),
    "GraphConv": _where(
        (*_SUM, "mean", "max", "min"), lambda conv: _like(hnn.GraphConv, conv, bias=conv.lin_rel.bias is not None)
    ),
    "ResGatedGraphConv": _where(_SUM, _gated),
    "RGCNConv": _where((*_SUM, "mean"), lambda conv: _like(hnn.RGCNConv, conv, root_weight=conv.root is not None)),
    "SGConv": _of_sums(lambda conv: _like(hnn.SGConv, conv, bias=conv.lin.bias is not None)),
    "SSGConv": _of_sums(lambda conv: _like(hnn.SSGConv, conv, bias=conv.lin.bias is not None)),
    "ChebConv": _of_sums(lambda conv: _like(hnn.ChebConv, conv, K=len(conv.lins))),
    "GatedGraphConv": _of_sums(lambda conv: _like(hnn.GatedGraphConv, conv, bias=conv.rnn.bias)),
    "LGConv": _of_sums(lambda conv: hnn.APPNP(1, 0.0, add_self_loops=False, normalize=conv.normalize)),
    "GCN2Conv": _of_sums(_gcn2),
}

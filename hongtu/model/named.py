"""The named models of the command line: stacks of one built-in layer."""

from __future__ import annotations

import itertools
from typing import Any

from torch import Tensor, nn

from hongtu import nn as hnn
from hongtu.config import MODELS
from hongtu.errors import InputError

WIDEST, DEEPEST = 1 << 20, 10_000  # columns and layers that a name and numbers can make
_STACKED: dict[str, Any] = {"gcn": hnn.GCNConv, "sage": hnn.SAGEConv, "commnet": hnn.CommNetConv, "ggcn": hnn.GGCNConv}
_ATTENTION: dict[str, Any] = {"gat": hnn.GATConv, "gatv2": hnn.GATv2Conv, "transformer": hnn.TransformerConv}


def build_layers(
    model: str,
    features: int,
    hidden: int,
    classes: int,
    layers: int,
    *,
    dropout: float = 0.0,
    heads: int = 1,
    degrees: Tensor | None = None,
    edge_features: int = 0,
    edge_types: int = 0,
) -> list[nn.Module]:
    """The layer list of a named model: ``features -> hidden -> ... -> classes``, ReLU (GAT: ELU) between layers.

    "sgc" is one linear map behind as many hops as ``layers``; "appnp" as many linear maps before 10 steps of alpha 0.1.

    Args:
        hidden: columns between layers; for attention the total over heads.
        dropout: before every layer; for attention also of the shares.
        heads: attention heads of inner layers.
        degrees: histogram of in-degrees (``hongtu.nn.degree_histogram``), which "pna" needs.
        edge_features: columns of the edges' features, which "gine" needs.
        edge_types: how many types edges have, which "rgcn" needs.

    Raises:
        InputError: for numbers that make no model.
    """
    if model not in MODELS:
        raise InputError(f"model {model!r}: expected one of {', '.join(MODELS)}")
    if min(hidden, layers, heads) < 1 or hidden > WIDEST or layers > DEEPEST or not 0 <= dropout < 1:
        raise InputError(
            f"model: hidden {hidden}, layers {layers}, heads {heads}, dropout {dropout}; expected positive numbers, at "
            f"most {WIDEST} columns and {DEEPEST} layers, and a dropout in [0, 1)"
        )
    if model in _ATTENTION and hidden % heads:
        raise InputError(f"model {model}: hidden {hidden} is not a multiple of heads {heads}")
    if model == "pna" and (degrees is None or int(degrees.sum()) == 0):
        raise InputError("model pna: needs the histogram of in-degrees, hongtu.nn.degree_histogram(artifact.topology)")
    for name, found, what in (("gine", edge_features, "edge features"), ("rgcn", edge_types, "edge types")):
        if model == name and not found:
            raise InputError(f"model {name}: needs {what}, the graph has none; see docs/layers.md")
    if model == "sgc":
        return [hnn.SGConv(features, classes, K=layers, input_dropout=dropout)]
    widths = [features, *[hidden] * (layers - 1), classes]
    if model == "appnp":
        return _appnp(widths, dropout)
    extra = degrees, edge_features, edge_types
    return [
        _layer(model, *pair, last=k == layers - 1, dropout=dropout, heads=heads, extra=extra)
        for k, pair in enumerate(itertools.pairwise(widths))
    ]


def _layer(
    model: str, columns_in: int, columns_out: int, *, last: bool, dropout: float, heads: int, extra: tuple[Any, ...]
) -> hnn.Layer:
    degrees, edge_features, edge_types = extra
    activation = None if last else "elu" if model in ("gat", "gatv2") else "relu"
    common: dict[str, Any] = {"activation": activation, "input_dropout": dropout}
    if model in _ATTENTION:
        heads = 1 if last else heads
        kind = _ATTENTION[model]
        return kind(columns_in, columns_out // heads, heads=heads, concat=not last, dropout=dropout, **common)
    if model in ("gin", "gine"):
        mlp = nn.Sequential(nn.Linear(columns_in, columns_out), nn.ReLU(), nn.Linear(columns_out, columns_out))
        return hnn.GINConv(mlp, **common) if model == "gin" else hnn.GINEConv(mlp, edge_dim=edge_features, **common)
    if model == "rgcn":
        return hnn.RGCNConv(columns_in, columns_out, edge_types, **common)
    if model == "pna":
        aggregators, scalers = ["mean", "min", "max", "std"], ["identity", "amplification", "attenuation"]
        return hnn.PNAConv(columns_in, columns_out, aggregators, scalers, degrees, **common)
    return _STACKED[model](columns_in, columns_out, **common)


def _appnp(widths: list[int], dropout: float) -> list[nn.Module]:
    modules: list[nn.Module] = []
    for k, pair in enumerate(itertools.pairwise(widths)):
        modules += [nn.ReLU()] if k > 0 else []
        modules += [hnn.Dropout(dropout)] if dropout > 0 else []
        modules.append(nn.Linear(*pair))
    return [*modules, hnn.APPNP(K=10, alpha=0.1)]

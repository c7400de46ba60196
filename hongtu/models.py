"""The named models of the command line: stacks of one built-in layer."""

from __future__ import annotations

from typing import Any

from torch import nn

from hongtu.errors import InputError
from hongtu.nn import CommNetConv, GATConv, GCNConv, GGCNConv, GINConv, Layer, SAGEConv

MODELS = ("gcn", "sage", "gin", "commnet", "gat", "ggcn")


def build_layers(
    model: str, features: int, hidden: int, classes: int, layers: int, *, dropout: float = 0.0, heads: int = 1
) -> list[Layer]:
    """The layer list of a named model: ``features -> hidden -> ... -> classes``, ReLU (GAT: ELU) between layers.

    Args:
        hidden: columns between layers; for GAT the total over heads.
        dropout: before every layer; for GAT also of the attention shares.
        heads: attention heads of GAT's inner layers.

    Raises:
        InputError: for numbers that make no model.
    """
    if model not in MODELS:
        raise InputError(f"model {model!r}: expected one of {', '.join(MODELS)}")
    if min(hidden, layers, heads) < 1 or not 0 <= dropout < 1:
        raise InputError(
            f"model: hidden {hidden}, layers {layers}, heads {heads}, dropout {dropout}; expected positive numbers and "
            "a dropout in [0, 1)"
        )
    if model == "gat" and hidden % heads:
        raise InputError(f"model gat: hidden {hidden} is not a multiple of heads {heads}")
    widths = [features, *[hidden] * (layers - 1), classes]
    return [
        _layer(model, widths[k], widths[k + 1], last=k == layers - 1, dropout=dropout, heads=heads)
        for k in range(layers)
    ]


def _layer(model: str, columns_in: int, columns_out: int, *, last: bool, dropout: float, heads: int) -> Layer:
    activation = None if last else "elu" if model == "gat" else "relu"
    common: dict[str, Any] = {"activation": activation, "input_dropout": dropout}
    if model == "gat":
        heads = 1 if last else heads
        return GATConv(columns_in, columns_out // heads, heads=heads, concat=not last, dropout=dropout, **common)
    if model == "gin":
        mlp = nn.Sequential(nn.Linear(columns_in, columns_out), nn.ReLU(), nn.Linear(columns_out, columns_out))
        return GINConv(mlp, **common)
    kinds: dict[str, Any] = {"gcn": GCNConv, "sage": SAGEConv, "commnet": CommNetConv, "ggcn": GGCNConv}
    return kinds[model](columns_in, columns_out, **common)

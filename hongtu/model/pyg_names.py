"""Names of weights: those of a list of layers, and those of torch_geometric's models."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor, nn

from hongtu.errors import InputError

CONVOLUTIONS = ("GCNConv", "SAGEConv", "GINConv", "GATConv", "GATv2Conv", "GGCNConv", "PyGLayer")
_SEQUENTIAL = re.compile(r"nn\.\d+\.\w+$")


def _mlp_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``nn.K.weight`` of a Sequential as ``nn.lins.L.weight``, or ``nn.norms.L.weight`` behind the L-th linear map.

    >>> from torch import zeros
    >>> names = {"nn.0.weight": zeros(3, 2), "nn.1.weight": zeros(3), "nn.3.weight": zeros(4, 3), "eps": zeros(1)}
    >>> list(_mlp_names(names))
    ['nn.lins.0.weight', 'nn.norms.0.weight', 'nn.lins.1.weight', 'eps']
    """
    linear = [int(name.split(".")[1]) for name, value in state.items() if _SEQUENTIAL.match(name) and value.ndim == 2]
    named = {}
    for name, value in state.items():
        if _SEQUENTIAL.match(name):
            _, place, rest = name.split(".")
            number = sum(k <= int(place) for k in linear) - 1
            name = f"nn.{'lins' if int(place) in linear else 'norms'}.{number}.{rest}"
        named[name] = value
    return named


def to_pyg_names(state: Mapping[str, Tensor], kinds: Sequence[str]) -> dict[str, Tensor]:
    """The state dict of ``torch_geometric.nn.models`` (``convs.0.lin.weight``) from that of a list of layers
    (``0.lin.weight``).

    Args:
        state: of a ModuleList of the layers.
        kinds: class name of every layer.

    Raises:
        InputError: for weights that such a model has no place for.

    >>> list(to_pyg_names({"0.bias": None, "3.bias": None, "4.weight": None}, ["GCNConv", "ReLU", "Dropout", "GCNConv",
    ...      "Linear"]))
    ['convs.0.bias', 'convs.1.bias', 'lin.weight']
    """
    named: dict[str, Tensor] = {}
    conv = -1
    for index, kind in enumerate(kinds):
        prefix = f"{index}."
        own = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        conv += kind in CONVOLUTIONS
        if kind in CONVOLUTIONS:
            place = f"convs.{conv}"
            if kind == "GINConv":  # a torch.nn.Sequential stands for torch_geometric's MLP
                own = _mlp_names(own)
            elif kind == "PyGLayer":
                own = {name.removeprefix("conv."): value for name, value in own.items()}
        elif "Norm" in kind and conv >= 0:
            place = f"norms.{conv}"
        elif kind == "Linear" and index == len(kinds) - 1:
            place = "lin"
        elif own:
            raise InputError(
                f"layers[{index}] ({kind}): torch_geometric's models have no place for its weights; keep the names of "
                "the layers (`hongtu export --names layers`)"
            )
        named |= {f"{place}.{name}": value for name, value in own.items()} if own else {}
    return named


def places_in_model(layers: Sequence[nn.Module]) -> dict[str, str]:
    """The names that the weights of layers, ``0.lin.weight``, have in the torch_geometric model that they are from, or
    in one of ``torch_geometric.nn.models``.

    Raises:
        InputError: for weights that such a model has no place for.
    """
    state = nn.ModuleList(layers).state_dict()
    if any(layer.state_dict() and not getattr(layer, "pyg_names", {}) for layer in layers):  # not from_pyg's
        return dict(zip(state, to_pyg_names(state, [type(layer).__name__ for layer in layers]), strict=True))
    names = (getattr(layer, "pyg_names", {}).items() for layer in layers)
    return {f"{k}.{own}": place for k, of_layer in enumerate(names) for own, place in of_layer}


def uncalled_in_model(layers: Iterable[nn.Module]) -> set[str]:
    """Names of weights of that model which its forward does not use, so that no layer has them."""
    return set().union(*(getattr(layer, "pyg_uncalled", ()) for layer in layers))

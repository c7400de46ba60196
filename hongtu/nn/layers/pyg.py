"""An unchanged torch_geometric convolution as a layer."""

from __future__ import annotations

import inspect
import typing
from typing import Any

import torch
from torch import Tensor

from hongtu.nn.block import Block
from hongtu.nn.layer import Layer

_EQUIVALENT = {
    "GCNConv": "hongtu.nn.GCNConv",
    "GATConv": "hongtu.nn.GATConv",
    "SAGEConv": "hongtu.nn.SAGEConv",
    "GINConv": "hongtu.nn.GINConv",
    "ResGatedGraphConv": "hongtu.nn.GGCNConv",
    "SGConv": "hongtu.nn.SGConv",
    "APPNP": "hongtu.nn.APPNP",
    "PNAConv": "hongtu.nn.PNAConv",
}


class PyGLayer(Layer):
    """Runs ``conv((h, h[:D]), edge_index)`` on every block; the whole layer is recomputed in backward.

    Edge weights, features and types are passed when the convolution takes ``edge_weight``, ``edge_attr`` (and its
    ``edge_dim``, if it has one, is given) or ``edge_type``, and the graph has them. Parameters keep their names under
    ``conv.``.

    Args:
        conv: a ``torch_geometric.nn.MessagePassing`` that runs on bipartite graphs, between [S, F] and [D, F].

    Raises:
        ValueError: for a convolution that needs the whole square graph (GCNConv) or caches one (``cached=True``).
    """

    edge_data_optional = True

    def __init__(self, conv: torch.nn.Module) -> None:
        super().__init__()
        _check(conv)
        parameters = inspect.signature(conv.forward).parameters
        self.conv = conv
        self._takes_size = "size" in parameters
        self._takes_weight = "edge_weight" in parameters
        self.uses_edge_features = "edge_attr" in parameters and getattr(conv, "edge_dim", 0) is not None
        self.uses_edge_type = "edge_type" in parameters

    def forward(self, block: Block, h: Tensor) -> Tensor:
        options: dict[str, Any] = {"size": (block.num_src, block.num_dst)} if self._takes_size else {}
        if self._takes_weight and block.edge_weight is not None:
            options["edge_weight"] = block.edge_weight.to(h.dtype)
        if block.edge_features is not None:
            options["edge_attr"] = block.edge_features
        if block.edge_type is not None:
            options["edge_type"] = block.edge_type.long()
        return self.conv((h, h[: block.num_dst]), block.edge_index, **options)


def _check(conv: torch.nn.Module) -> None:
    name = type(conv).__name__
    if not isinstance(conv, torch.nn.Module):
        raise TypeError(f"PyGLayer({conv!r}): expected a convolution of torch_geometric, as PyGLayer(SAGEConv(16, 32))")
    remedy = f"use {_EQUIVALENT[name]}" if name in _EQUIVALENT else "write it as a hongtu.nn.Layer"
    if getattr(conv, "cached", False):
        raise ValueError(f"PyGLayer({name}): cached=True keeps one graph, chunks are many; {remedy} or cached=False")
    if getattr(conv, "flow", "source_to_target") != "source_to_target":
        raise ValueError(f"PyGLayer({name}): flow={conv.flow!r}, expected 'source_to_target'; reverse the edges")
    if not _takes_pair(conv):
        raise ValueError(
            f"PyGLayer({name}): {name} does not run on bipartite blocks: it wants the "
            f"whole graph, for self-loops or degrees that a chunk does not show; {remedy}"
        )


def _takes_pair(conv: torch.nn.Module) -> bool:
    """Whether the first argument of ``forward`` may be a (source, destination) pair, by its annotation."""
    parameters = list(inspect.signature(conv.forward).parameters.values())
    if not parameters:
        return False
    annotation = parameters[0].annotation
    if annotation is inspect.Parameter.empty:
        return True
    if isinstance(annotation, str):
        return "Pair" in annotation or "uple" in annotation
    choices = typing.get_args(annotation) if typing.get_origin(annotation) is not tuple else (annotation,)
    return any(choice is tuple or typing.get_origin(choice) is tuple for choice in choices)

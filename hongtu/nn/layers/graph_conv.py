"""Higher-order graph convolution (Morris et al.), as torch_geometric's GraphConv."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from typing_extensions import Unpack

from hongtu.nn.aggr import Aggregation
from hongtu.nn.layer import Common, linear
from hongtu.nn.layers.two_maps import TwoMaps


class GraphConv(TwoMaps):
    """h' = W_rel aggr(edge weight * neighbour) + b + W_root h.

    Args:
        in_channels, out_channels: widths of h and h'.
        aggr: "add" ("sum") or "mean" (over the number of in-edges), which are linear and cached; or another of
            ``Block.reduce``'s names: "max" and "min" use edge weights, the others refuse them.
        bias: add b.
        activation, input_dropout: see ``Convolution``.
    """

    weighted = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        aggr: str | Aggregation | Sequence[str | Aggregation] = "add",
        bias: bool = True,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.in_channels, self.out_channels = in_channels, out_channels
        if self.set_aggregation(aggr, in_channels) != in_channels:
            raise ValueError(f"GraphConv(aggr={aggr!r}): expected one reduction")
        self.lin_rel = linear(in_channels, out_channels, bias=bias)
        self.lin_root = linear(in_channels, out_channels, bias=False)

    @property
    def maps(self) -> tuple[torch.nn.Linear, torch.nn.Linear | None]:
        return self.lin_rel, self.lin_root

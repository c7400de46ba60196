"""GraphSAGE (Hamilton et al.) without sampling, as torch_geometric's SAGEConv."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Unpack

from hongtu.nn.aggr import Aggregation
from hongtu.nn.layer import Common, linear
from hongtu.nn.layers.two_maps import TwoMaps


class SAGEConv(TwoMaps):
    """h' = W_l aggr(neighbours) + b + W_r h; edge weights are not used.

    Args:
        in_channels, out_channels: widths of h and h'.
        aggr: "mean" or "sum" ("add"), which are linear and cached; or another of ``Block.reduce``'s names, several of
            them, or an aggregation of ``hongtu.nn.aggr``.
        normalize: scale every output row to length 1.
        root_weight: add W_r h.
        project: aggregate relu(W h + b) instead of h (equation 3 of the paper).
        bias: add b.
        aggr_kwargs: options of the aggregation, such as {"learn": True}.
        activation, input_dropout: see ``Convolution``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        aggr: str | Aggregation | Sequence[str | Aggregation] = "mean",
        *,
        normalize: bool = False,
        root_weight: bool = True,
        project: bool = False,
        bias: bool = True,
        aggr_kwargs: dict[str, Any] | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.normalize, self.root_weight, self.project = normalize, root_weight, project
        columns = self.set_aggregation(aggr, in_channels, aggr_kwargs)
        if project:
            self.lin = linear(in_channels, in_channels, bias=True)
        self.lin_l = linear(columns, out_channels, bias=bias)
        if root_weight:
            self.lin_r = linear(in_channels, out_channels, bias=False)

    @property
    def maps_input(self) -> bool:
        return super().maps_input and not self.project

    @property
    def maps(self) -> tuple[torch.nn.Linear, torch.nn.Linear | None]:
        return self.lin_l, self.lin_r if self.root_weight else None

    def sent(self, h: Tensor) -> Tensor:
        return torch.relu(self.lin(h)) if self.project else h

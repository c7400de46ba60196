"""CommNet (Sukhbaatar et al.): every vertex hears the mean of its neighbours."""

from __future__ import annotations

import torch
from typing_extensions import Unpack

from hongtu.nn.layer import Common, linear
from hongtu.nn.layers.two_maps import TwoMaps


class CommNetConv(TwoMaps):
    """h' = W_1 h + W_2 mean(neighbours), with W_1 ``lin_self`` and W_2 ``lin_neighbour``; no bias.

    Args:
        in_channels, out_channels: widths of h and h'.
        activation, input_dropout: see ``Convolution``.
    """

    reduce = "mean"

    def __init__(self, in_channels: int, out_channels: int, **common: Unpack[Common]) -> None:
        super().__init__(**common)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.lin_self = linear(in_channels, out_channels, bias=False)
        self.lin_neighbour = linear(in_channels, out_channels, bias=False)

    @property
    def maps(self) -> tuple[torch.nn.Linear, torch.nn.Linear | None]:
        return self.lin_neighbour, self.lin_self

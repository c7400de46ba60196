"""Gated graph convolution over edges (Bresson and Laurent), as torch_geometric's ResGatedGraphConv."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack

from hongtu.nn.block import Block
from hongtu.nn.layer import Common, Convolution, Skip, linear, zeros


class GGCNConv(Convolution):
    """h'_d = W_skip h_d + sum over in-edges of sigmoid(key(h_d) + query(h_s)) * value(h_s), plus b.

    ``z`` is [query | value], [R, 2 F']; ``s`` is (key, W_skip h).

    Args:
        in_channels, out_channels: widths of h and h'.
        root_weight: add W_skip h.
        bias: add b.
        activation, input_dropout: see ``Convolution``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        root_weight: bool = True,
        bias: bool = True,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.in_channels, self.out_channels, self.root_weight = in_channels, out_channels, root_weight
        self.lin_key = linear(in_channels, out_channels, bias=True)
        self.lin_query = linear(in_channels, out_channels, bias=True)
        self.lin_value = linear(in_channels, out_channels, bias=True)
        if root_weight:
            self.lin_skip = linear(in_channels, out_channels, bias=False)
        self.register_parameter("bias", zeros(out_channels, bias))

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        h = self.input_dropout(h)
        z = torch.cat([self.lin_query(h), self.lin_value(h)], dim=1)
        key = self.lin_key(h)
        return z, (key, self.lin_skip(h)) if self.root_weight else key

    def aggregate(self, block: Block, z: Tensor, s: Skip) -> Tensor:
        return block.gated_sum(z, s[0] if self.root_weight else s)

    def update(self, a: Tensor, s: Skip) -> Tensor:
        return self.finish(a + s[1] if self.root_weight else a, self.bias)

"""Gated graph convolution over edges (Bresson and Laurent), as torch_geometric's ResGatedGraphConv."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack

from hongtu.graph.paper_edges import PaperEdges
from hongtu.nn.block import Block
from hongtu.nn.layer import Common, Convolution, Skip, is_plain, linear, zeros


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

    @property
    def paper_edges(self) -> PaperEdges | None:
        maps = [module for module in self.children() if isinstance(module, torch.nn.Linear)]
        plain = self.built_in and all(map(is_plain, maps)) and len(maps) == 3 + self.root_weight
        return PaperEdges() if plain else None

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        h = self.input_dropout(h)
        if not self.once_per_vertex:
            return h, h
        key = self.lin_key(h)
        return self._sent(h), (key, self.lin_skip(h)) if self.root_weight else key

    def _sent(self, h: Tensor) -> Tensor:
        return torch.cat([self.lin_query(h), self.lin_value(h)], dim=1)

    def aggregate(self, block: Block, z: Tensor, s: Skip) -> Tensor:
        if not self.once_per_vertex:
            return block.gated_sum(self._sent(z), self.lin_key(s))
        return block.gated_sum(z, s[0] if self.root_weight else s)

    def update(self, a: Tensor, s: Skip) -> Tensor:
        if not self.root_weight:
            return self.finish(a, self.bias)
        return self.finish(a + (s[1] if self.once_per_vertex else self.lin_skip(s)), self.bias)

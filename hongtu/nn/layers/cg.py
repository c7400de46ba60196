"""Crystal graph convolution (Xie and Grossman), as torch_geometric's CGConv.

Legend: R rows, E edges, F columns.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear as product
from torch.nn.functional import softplus
from typing_extensions import Unpack

from hongtu.nn.block import Block
from hongtu.nn.layer import Common, Convolution, Skip, linear, takes_mean


class CGConv(Convolution):
    """h'_d = h_d + sum over in-edges of sigmoid(W_f x + b_f) softplus(W_s x + b_s), with x = [h_d, h_s, e].

    The parts of both products that depend on one vertex are computed once per vertex: ``z`` and s are [R, 2 F].

    Args:
        channels: F.
        dim: columns of the edge features; 0: none are read.
        aggr: "add" ("sum") or "mean".
        bias: add b_f and b_s.
        activation, input_dropout: see ``Convolution``.
    """

    def __init__(
        self, channels: int, dim: int = 0, aggr: str = "add", *, bias: bool = True, **common: Unpack[Common]
    ) -> None:
        super().__init__(**common)
        self.channels, self.dim, self.mean = channels, dim, takes_mean("CGConv", aggr)
        self.uses_edge_features = dim > 0
        self.lin_f = linear(2 * channels + dim, channels, bias=bias)
        self.lin_s = linear(2 * channels + dim, channels, bias=bias)

    @property
    def bare_maps(self) -> tuple[torch.nn.Module, ...]:
        return self.lin_f, self.lin_s

    def _weights(self) -> tuple[Tensor, ...]:
        """Both products' weights of the destination, the source and the edge: [2 F, F], [2 F, F], [2 F, dim]."""
        both = torch.cat([self.lin_f.weight, self.lin_s.weight])
        return both.split([self.channels, self.channels, self.dim], dim=1)

    def _bias(self) -> Tensor | None:
        """Both products' biases [2 F], 0 where only the other one has any."""
        maps = (self.lin_f, self.lin_s)
        if all(part.bias is None for part in maps):
            return None
        return torch.cat([part.weight.new_zeros(self.channels) if part.bias is None else part.bias for part in maps])

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        h = self.input_dropout(h)
        destination, source, _ = self._weights()
        return product(h, source), (product(h, destination, self._bias()), h)

    def aggregate(self, block: Block, z: Tensor, s: Skip) -> Tensor:
        x_E2F = block.gather(z) + block.gather_destination(s[0])
        if self.dim:
            x_E2F = torch.addmm(x_E2F, block.edge_features, self._weights()[2].t())
        gate_EF, core_EF = x_E2F.chunk(2, dim=1)
        message_EF = torch.sigmoid(gate_EF) * softplus(core_EF)
        return block.segment_mean(message_EF) if self.mean else block.segment_sum(message_EF)

    def update(self, a: Tensor, s: Skip) -> Tensor:
        return self.activate(a + s[1])

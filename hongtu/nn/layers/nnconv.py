"""Messages by a matrix that a network makes of the edge's features (Gilmer et al.), as torch_geometric's NNConv.

Legend: E edges, F and G columns in and out.
"""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack

from hongtu.nn.block import Block
from hongtu.nn.layer import Common, Convolution, Skip, linear, takes_mean, zeros


class NNConv(Convolution):
    """h'_d = W h_d + b + sum over in-edges of h_s nn(e), with nn(e) a matrix [F, G]; takes F G numbers per edge.

    Args:
        in_channels, out_channels: F and G.
        nn: module from edge features [E, F_e] to [E, F G].
        aggr: "add" ("sum") or "mean".
        root_weight: add W h_d.
        bias: add b.
        activation, input_dropout: see ``Convolution``.
    """

    uses_edge_features = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        nn: torch.nn.Module,
        aggr: str = "add",
        root_weight: bool = True,
        *,
        bias: bool = True,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.in_channels, self.out_channels, self.mean = in_channels, out_channels, takes_mean("NNConv", aggr)
        self.nn = nn
        self.root_weight = root_weight
        if root_weight:
            self.lin = linear(in_channels, out_channels, bias=False)
        self.register_parameter("bias", zeros(out_channels, bias))

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        h = self.input_dropout(h)
        return h, self.lin(h) if self.root_weight else None

    def aggregate(self, block: Block, z: Tensor, s: Skip) -> Tensor:
        weight_EFG = self.nn(block.edge_features).view(-1, self.in_channels, self.out_channels)
        message_EG = torch.bmm(block.gather(z).unsqueeze(1), weight_EFG).squeeze(1)
        return block.segment_mean(message_EG) if self.mean else block.segment_sum(message_EG)

    def update(self, a: Tensor, s: Skip) -> Tensor:
        return self.finish(a + s if self.root_weight else a, self.bias)

"""Residual gated graph convolution with states of edges (Bresson and Laurent; Dwivedi et al., Benchmarking GNNs).

Legend: R rows, S sources, D destinations, E edges, F columns.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from hongtu.nn.block import Block
from hongtu.nn.layer import Activation, Common, Convolution, Skip

EPSILON = 1e-6


class GatedGCNConv(Convolution):
    """g = C e + D x_destination + E x_source; e' = e + act(norm(g)); x' = x + act(norm(A x + sum over in-edges of
    sigmoid(g) B x_source / (sum of sigmoid(g) + 1e-6))).

    Takes and gives the states of edges, in a list of layers "x, e -> x, e", which is what it has without a header. Maps
    are named as in GraphGPS. The published models have batch norm, over all vertices and all edges, in place of layer
    norm; over edges there is none here.

    Args:
        in_channels, out_channels: columns of vertices, and of edges behind the layer.
        edge_dim: columns of edges before it; None: in_channels.
        norm: "layer" or None.
        residual: add x, and e, where they have ``out_channels`` columns.
        activation, input_dropout: see ``Convolution``; the latter is of x.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        edge_dim: int | None = None,
        *,
        norm: str | None = "layer",
        residual: bool = True,
        activation: Activation = "relu",
        **common: Unpack[Common],
    ) -> None:
        super().__init__(activation=activation, **common)
        if norm not in ("layer", None):
            raise ValueError(
                f"GatedGCNConv(norm={norm!r}): expected 'layer' or None; batch norm over all edges there is not, over "
                "vertices hongtu.nn.BatchNorm may stand behind GatedGCNConv(..., activation=None, residual=False)"
            )
        edge_dim = edge_dim or in_channels
        self.in_channels, self.out_channels = in_channels, out_channels
        self.residual = residual and in_channels == out_channels
        self.edge_residual = residual and edge_dim == out_channels
        self.A, self.B, self.D, self.E = (nn.Linear(in_channels, out_channels) for _ in range(4))
        self.C = nn.Linear(edge_dim, out_channels)
        self.norm_x, self.norm_e = (nn.LayerNorm(out_channels) if norm else nn.Identity() for _ in range(2))

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        h = self.input_dropout(h)
        return torch.cat([self.B(h), self.E(h)], dim=1), (self.D(h), h)

    def update_edges(self, block: Block, z: Tensor, s: Skip, e: Tensor) -> tuple[Tensor, Tensor]:
        g_EF = self.C(e) + block.gather_destination(s[0]) + block.gather(z[:, self.out_channels :].contiguous())
        out_EF = self.activate(self.norm_e(g_EF))
        return e + out_EF if self.edge_residual else out_EF, g_EF

    def aggregate(self, block: Block, z: Tensor, s: Skip) -> Tensor:
        assert block.edge_features is not None
        gate_EF = torch.sigmoid(block.edge_features)
        return block.attend(z, gate_EF, self.out_channels) / (block.segment_sum(gate_EF) + EPSILON)

    def update(self, a: Tensor, s: Skip) -> Tensor:
        out = self.activate(self.norm_x(self.A(s[1]) + a))
        return s[1] + out if self.residual else out

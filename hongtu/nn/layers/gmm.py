"""Edge weights by learned Gaussians of the edge's features (Monti et al.), as torch_geometric's GMMConv.

Legend: R rows, E edges, D destinations, K kernels, G columns out, P columns of the edge features.
"""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack

from hongtu.nn.block import Block
from hongtu.nn.layer import Common, Convolution, Skip, glorot, linear, takes_mean, zeros

LEAST = 1e-15  # added to variances


class GMMConv(Convolution):
    """h'_d = W h_d + b + mean over in-edges of sum_k w_k(e) G_k h_s, with w_k a Gaussian of mean mu_k, width sigma_k.

    ``z`` is [G_1 h | ... | G_K h], [R, K G].

    Args:
        in_channels, out_channels: widths of h and h'.
        dim: P.
        kernel_size: K.
        aggr: "mean", or "sum" ("add").
        root_weight: add W h_d.
        bias: add b.
        activation, input_dropout: see ``Convolution``.
    """

    uses_edge_features = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        dim: int,
        kernel_size: int,
        aggr: str = "mean",
        root_weight: bool = True,
        *,
        bias: bool = True,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.in_channels, self.out_channels, self.mean = in_channels, out_channels, takes_mean("GMMConv", aggr)
        self.dim, self.kernel_size, self.root_weight = dim, kernel_size, root_weight
        self.g = torch.nn.Parameter(torch.empty(in_channels, out_channels * kernel_size))
        self.mu = torch.nn.Parameter(torch.empty(kernel_size, dim))
        self.sigma = torch.nn.Parameter(torch.empty(kernel_size, dim))
        for parameter in (self.g, self.mu, self.sigma):
            glorot(parameter)
        if root_weight:
            self.root = linear(in_channels, out_channels, bias=False, glorot_weight=True)
        self.register_parameter("bias", zeros(out_channels, bias))

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        h = self.input_dropout(h)
        return h @ self.g, self.root(h) if self.root_weight else None

    def aggregate(self, block: Block, z: Tensor, s: Skip) -> Tensor:
        distance_EKP = (block.edge_features.unsqueeze(1) - self.mu).square() / (LEAST + self.sigma.square())
        weight_EK = torch.exp(-0.5 * distance_EKP.sum(2))
        sum_DKG = block.attend(z, weight_EK, z.shape[1]).view(block.num_dst, self.kernel_size, -1)
        sum_DG = sum_DKG.sum(1)
        return sum_DG / block.in_degree.clamp(min=1).unsqueeze(1) if self.mean else sum_DG

    def update(self, a: Tensor, s: Skip) -> Tensor:
        return self.finish(a + s if self.root_weight else a, self.bias)

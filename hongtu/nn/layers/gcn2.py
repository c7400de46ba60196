"""GCNII (Chen et al.): graph convolution with initial residual and identity map, as torch_geometric's GCN2Conv."""

from __future__ import annotations

from math import log

import torch
from torch import Tensor
from typing_extensions import Unpack

from hongtu.nn.layer import Common, Skip, glorot
from hongtu.nn.layers.normalized import NormalizedSum


class GCN2Conv(NormalizedSum):
    """h' = ((1 - alpha) P h + alpha x_0) ((1 - beta) I + beta W_1), with P GCNConv's D^-1/2 (A + I) D^-1/2.

    Takes two values: ``(GCN2Conv(64, 0.1, 0.5, layer=1), "x, x0 -> x")``.

    Args:
        channels: width of h, x_0 and h'.
        alpha: share of x_0.
        theta, layer: beta = log(theta / layer + 1); both or neither, then beta = 1.
        shared_weights: else x_0 has a matrix of its own, W_2 (GCNII*).
        normalize: without it P = A, without self-loops.
        add_self_loops: without them P = D^-1/2 A D^-1/2.
        activation, input_dropout: see ``Convolution``; dropout of h, not of x_0.
    """

    def __init__(
        self,
        channels: int,
        alpha: float,
        theta: float | None = None,
        layer: int | None = None,
        shared_weights: bool = True,
        *,
        add_self_loops: bool = True,
        normalize: bool = True,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(add_self_loops and normalize, normalize, **common)
        if (theta is None) != (layer is None):
            raise ValueError(f"GCN2Conv(theta={theta}, layer={layer}): give both or neither")
        self.channels, self.alpha = channels, alpha
        self.beta = 1.0 if theta is None or layer is None else log(theta / layer + 1)
        self.weight1 = torch.nn.Parameter(torch.empty(channels, channels))
        self.register_parameter(
            "weight2", None if shared_weights else torch.nn.Parameter(torch.empty(channels, channels))
        )
        for weight in self.parameters():
            glorot(weight)

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        return self.spread(self.input_dropout(h))

    def update(self, a: Tensor, s: Skip, x_0: Tensor) -> Tensor:  # type: ignore[override]
        if self.weight2 is None:
            h = self._map(torch.lerp(a, x_0, self.alpha), self.weight1)
        else:
            h = self._map((1 - self.alpha) * a, self.weight1) + self._map(self.alpha * x_0, self.weight2)
        return self.activate(h, fresh=True)

    def _map(self, h: Tensor, weight: Tensor) -> Tensor:
        return torch.addmm(h, h, weight, beta=1 - self.beta, alpha=self.beta)

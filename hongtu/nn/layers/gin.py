"""Graph isomorphism network (Xu et al.), as torch_geometric's GINConv."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack

from hongtu.nn.layer import Common, Convolution, Skip, is_chain, is_plain


class GINConv(Convolution):
    """h' = nn((1 + eps) h + sum(neighbours)); edge weights are not used.

    Args:
        nn: module from [R, F] to [R, F'], row by row.
        eps: initial value.
        train_eps: make ``eps`` a parameter (otherwise it is a buffer).
        activation, input_dropout: see ``Convolution``.
    """

    reduce: str | None = "sum"

    eps: Tensor

    def __init__(
        self, nn: torch.nn.Module, eps: float = 0.0, train_eps: bool = False, **common: Unpack[Common]
    ) -> None:
        super().__init__(**common)
        self.nn = nn
        value = torch.tensor([float(eps)])
        if train_eps:
            self.eps = torch.nn.Parameter(value)
        else:
            self.register_buffer("eps", value)

    @property
    def can_transform_first(self) -> bool:
        return is_chain(self.nn) and is_plain(self.nn[0])

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        h = self.input_dropout(h)
        if self.transform_first:
            h = self.mapped(h, self.nn[0].weight)
        return h, h

    def update(self, a: Tensor, s: Skip) -> Tensor:
        h = torch.addcmul(a, 1 + self.eps, s)
        if not self.transform_first:
            return self.activate(self.nn(h))
        h = h if self.nn[0].bias is None else h + self.nn[0].bias
        return self.activate(self.nn[1:](h))

"""Hops of the features side by side (Frasca et al., SIGN), as torch_geometric's transform SIGN."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hongtu.errors import names_known
from hongtu.nn.layer import Layer, Skip
from hongtu.nn.layers.normalized import NormalizedSum


@names_known
class SIGN(NormalizedSum):
    """h' = [h, B h, ..., B^K h] with B = D^-1/2 A D^-1/2; K layers for the engine, without parameters.

    As the first layer, over constant features, all of it is computed once for the whole run
    (``cache_input_aggregate``): what follows is then a model of rows. torch_geometric's transform gives the same as
    ``data.x``, ``data.x1``, ...

    Args:
        K: hops, at least 1.
        add_self_loops: add I to A, which torch_geometric's transform does not.
    """

    def __init__(self, K: int, add_self_loops: bool = False) -> None:
        if K < 1:
            raise ValueError(f"SIGN(K={K}): expected at least 1 hop")
        super().__init__(add_self_loops)
        self.K = K
        self.hops = nn.ModuleList(_Hop(k, add_self_loops) for k in range(K))

    def expand(self) -> list[Layer]:
        return list(self.hops)


class _Hop(NormalizedSum):
    """[h, ..., B^k h] -> [h, ..., B^(k+1) h]."""

    def __init__(self, k: int, add_self_loops: bool) -> None:
        super().__init__(add_self_loops)
        self.k = k

    @property
    def combines(self) -> bool:
        return False

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        return self.spread(h[:, h.shape[1] // (self.k + 1) * self.k :])[0], h

    def update(self, a: Tensor, s: Skip) -> Tensor:
        assert isinstance(s, Tensor)
        own = self.spread(s[:, -a.shape[1] :])[1]
        return torch.cat([s, self.combine(a, own)], dim=1)

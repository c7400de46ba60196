"""Higher-order graph convolution (Morris et al.), as torch_geometric's GraphConv."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hongtu.nn.aggr import LINEAR, Aggregation, make_aggregation
from hongtu.nn.block import Block
from hongtu.nn.layer import Activation, Convolution, Skip, is_plain, linear


class GraphConv(Convolution):
    """h' = W_rel aggr(edge weight * neighbour) + b + W_root h.

    Args:
        in_channels, out_channels: widths of h and h'.
        aggr: "add" ("sum") or "mean" (over the number of in-edges), which are linear and cached; or another of
            ``Block.reduce``'s names: "max" and "min" use edge weights, the others refuse them.
        bias: add b.
        activation, input_dropout: see ``Convolution``.
    """

    weighted = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        aggr: str | Aggregation | Sequence[str | Aggregation] = "add",
        bias: bool = True,
        *,
        activation: Activation = None,
        input_dropout: float = 0.0,
    ) -> None:
        super().__init__(activation, input_dropout)
        self.in_channels, self.out_channels = in_channels, out_channels
        if isinstance(aggr, str) and aggr in LINEAR:
            self.reduce = "mean" if aggr == "mean" else "sum"
        else:
            self.aggr_module = make_aggregation(aggr)
            if self.aggr_module.columns(in_channels) != in_channels:
                raise ValueError(f"GraphConv(aggr={aggr!r}): expected one reduction")
        self.lin_rel = linear(in_channels, out_channels, bias=bias)
        self.lin_root = linear(in_channels, out_channels, bias=False)

    @property
    def can_transform_first(self) -> bool:
        return self.reduce is not None and is_plain(self.lin_rel) and is_plain(self.lin_root)

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        h = self.input_dropout(h)
        if not self.transform_first:
            return h, h
        return self.mapped(h, self.lin_rel.weight), self.mapped(h, self.lin_root.weight)

    def aggregate(self, block: Block, z: Tensor, s: Skip) -> Tensor:
        if self.reduce is not None:
            return super().aggregate(block, z, s)
        return self.aggr_module(block, z, self.weighted)

    def update(self, a: Tensor, s: Skip) -> Tensor:
        if not self.transform_first:
            h = self.lin_rel(a)
            h = torch.addmm(h, s, self.lin_root.weight.t()) if is_plain(self.lin_root) else h + self.lin_root(s)
            return self.activate(h, fresh=True)
        return self.activate(a + s if self.lin_rel.bias is None else a + s + self.lin_rel.bias, fresh=True)

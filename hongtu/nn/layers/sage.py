"""GraphSAGE (Hamilton et al.) without sampling, as torch_geometric's SAGEConv."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hongtu.nn.aggr import LINEAR, Aggregation, make_aggregation
from hongtu.nn.block import Block
from hongtu.nn.layer import Activation, Convolution, Skip, is_plain, linear


class SAGEConv(Convolution):
    """h' = W_l aggr(neighbours) + b + W_r h; edge weights are not used.

    Args:
        in_channels, out_channels: widths of h and h'.
        aggr: "mean" or "sum" ("add"), which are linear and cached; or another of ``Block.reduce``'s names, several of
            them, or an aggregation of ``hongtu.nn.aggr``.
        normalize: scale every output row to length 1.
        root_weight: add W_r h.
        project: aggregate relu(W h + b) instead of h (equation 3 of the paper).
        bias: add b.
        aggr_kwargs: options of the aggregation, such as {"learn": True}.
        activation, input_dropout: see ``Convolution``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        aggr: str | Aggregation | Sequence[str | Aggregation] = "mean",
        *,
        normalize: bool = False,
        root_weight: bool = True,
        project: bool = False,
        bias: bool = True,
        aggr_kwargs: dict[str, Any] | None = None,
        activation: Activation = None,
        input_dropout: float = 0.0,
    ) -> None:
        super().__init__(activation, input_dropout)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.normalize, self.root_weight, self.project = normalize, root_weight, project
        columns = in_channels
        if isinstance(aggr, str) and aggr in LINEAR:
            self.reduce = "mean" if aggr == "mean" else "sum"
        else:
            self.aggr_module = make_aggregation(aggr, aggr_kwargs)
            columns = self.aggr_module.columns(in_channels)
        if project:
            self.lin = linear(in_channels, in_channels, bias=True)
        self.lin_l = linear(columns, out_channels, bias=bias)
        if root_weight:
            self.lin_r = linear(in_channels, out_channels, bias=False)

    @property
    def can_transform_first(self) -> bool:
        return self.reduce is not None and is_plain(self.lin_l) and (not self.root_weight or is_plain(self.lin_r))

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        h = self.input_dropout(h)
        x = torch.relu(self.lin(h)) if self.project else h
        if not self.transform_first:
            return x, h if self.root_weight else None
        z = self.mapped(x, self.lin_l.weight)
        return z, self.mapped(h, self.lin_r.weight, self.lin_l.bias) if self.root_weight else None

    def aggregate(self, block: Block, z: Tensor, s: Skip) -> Tensor:
        return super().aggregate(block, z, s) if self.reduce is not None else self.aggr_module(block, z)

    def update(self, a: Tensor, s: Skip) -> Tensor:
        if not self.transform_first:
            h = self.lin_l(a)
            if self.root_weight and not (is_plain(self.lin_l) and is_plain(self.lin_r)):
                h = h + self.lin_r(s)
            elif self.root_weight:  # autocast leaves in-place operations alone
                h = h.addmm_(s.to(h.dtype), self.lin_r.weight.t().to(h.dtype))
        elif self.root_weight:
            h = a + s
        else:
            h = a if self.lin_l.bias is None else a + self.lin_l.bias
        h = torch.nn.functional.normalize(h, p=2.0, dim=-1) if self.normalize else h
        return self.activate(h, fresh=h is not a)

"""GraphSAGE (Hamilton et al.) without sampling, as torch_geometric's SAGEConv."""

from __future__ import annotations

import torch
from torch import Tensor

from hongtu.nn.layer import Activation, Convolution, Skip, linear


class SAGEConv(Convolution):
    """h' = W_l mean(neighbours) + b + W_r h; edge weights are not used.

    Args:
        in_channels, out_channels: widths of h and h'.
        aggr: "mean", or "sum" ("add").
        normalize: scale every output row to length 1.
        root_weight: add W_r h.
        bias: add b.
        activation, input_dropout: see ``Convolution``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        aggr: str = "mean",
        *,
        normalize: bool = False,
        root_weight: bool = True,
        project: bool = False,
        bias: bool = True,
        activation: Activation = None,
        input_dropout: float = 0.0,
    ) -> None:
        super().__init__(activation, input_dropout)
        if aggr not in ("mean", "sum", "add"):
            raise ValueError(f"SAGEConv(aggr={aggr!r}): expected 'mean' or 'sum'; wrap others: PyGLayer(SAGEConv(...))")
        if project:
            raise ValueError("SAGEConv(project=True) is not built in; wrap torch_geometric's: PyGLayer(SAGEConv(...))")
        self.in_channels, self.out_channels = in_channels, out_channels
        self.reduce = "mean" if aggr == "mean" else "sum"
        self.normalize, self.root_weight = normalize, root_weight
        self.lin_l = linear(in_channels, out_channels, bias=bias)
        if root_weight:
            self.lin_r = linear(in_channels, out_channels, bias=False)

    @property
    def can_transform_first(self) -> bool:
        return True

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        h = self.input_dropout(h)
        if not self.transform_first:
            return h, h if self.root_weight else None
        return torch.nn.functional.linear(h, self.lin_l.weight), self.lin_r(h) if self.root_weight else None

    def update(self, a: Tensor, s: Skip) -> Tensor:
        if not self.transform_first:
            h = self.lin_l(a)
            if self.root_weight:  # autocast leaves in-place operations alone
                h = h.addmm_(s.to(h.dtype), self.lin_r.weight.t().to(h.dtype))
        else:
            h = a if self.lin_l.bias is None else a + self.lin_l.bias
            h = h + s if self.root_weight else h
        h = torch.nn.functional.normalize(h, p=2.0, dim=-1) if self.normalize else h
        return self.activate(h, fresh=h is not a)

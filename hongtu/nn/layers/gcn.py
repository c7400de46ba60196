"""Graph convolution (Kipf and Welling), as torch_geometric's GCNConv."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack

from hongtu.graph.paper_edges import PaperEdges
from hongtu.nn.layer import Common, Skip, is_product, linear, zeros
from hongtu.nn.layers.normalized import NormalizedSum


class GCNConv(NormalizedSum):
    """h' = D^-1/2 (A + I) D^-1/2 h W^T + b, with D the weighted in-degree, self-loops included.

    Stored self-loops, even repeated ones, count as torch_geometric's ``add_remaining_self_loops`` counts them: the
    weight of the last replaces the added one. ``improved`` adds 2 I, as documented there; torch_geometric 2.8 adds I
    on a graph without edge weights.

    Args:
        in_channels, out_channels: widths of h and h'.
        improved: add 2 I instead of I.
        add_self_loops: default: the value of ``normalize``.
        normalize: without it h' = A h W^T + b.
        bias: add b.
        activation, input_dropout: see ``Convolution``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        improved: bool = False,
        add_self_loops: bool | None = None,
        normalize: bool = True,
        bias: bool = True,
        **common: Unpack[Common],
    ) -> None:
        if add_self_loops is None:
            add_self_loops = normalize
        if add_self_loops and not normalize:
            raise ValueError("GCNConv(add_self_loops=True, normalize=False): self-loops need normalize=True")
        super().__init__(add_self_loops, normalize, improved, **common)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.lin = linear(in_channels, out_channels, bias=False, glorot_weight=True)
        self.register_parameter("bias", zeros(out_channels, bias))

    @property
    def can_transform_first(self) -> bool:
        return is_product(self.lin)

    @property
    def paper_edges(self) -> PaperEdges | None:
        if not (self.built_in and is_product(self.lin)):
            return None
        added = 2.0 if self.improved else 1.0
        weighted = not (self.normalize and self.ignores_weights)  # else they are dropped behind
        return PaperEdges(loops=self.add_self_loops, added=added, normalized=self.normalize, weighted=weighted)

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        x = self.input_dropout(h)
        if not is_product(self.lin):  # then it and the sum may not change places
            return self.spread(self.lin(x))
        return self.spread(self.mapped(x, self.lin.weight) if self.transform_first else x)

    def update(self, a: Tensor, s: Skip) -> Tensor:
        if self.transform_first or not is_product(self.lin):
            return self.finish(a, self.bias)
        return self.activate(torch.nn.functional.linear(a, self.lin.weight, self.bias), fresh=True)

"""Vertices of several types, each with features of its own width: a linear map for each type.

Legend: R rows, K types, F_k columns of type k.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hongtu.errors import names_known
from hongtu.nn.layer import linear


@names_known
class TypedLinear(torch.nn.Module):
    """h = W_k x + b_k for a vertex of type k, as torch_geometric's ``HeteroDictLinear`` with the keys "0", "1", ...

    A row-wise module for the front of the list. Every row goes through all K maps, and one is taken: about R times the
    sum of all F_k multiplications per column, and no memory that depends on how many vertices a type has.

    Args:
        in_channels: F_0, F_1, ...: ``artifact.vertex_type_widths``.
        out_channels: columns of h.
        bias: add b_k.
    """

    def __init__(self, in_channels: Sequence[int], out_channels: int, *, bias: bool = True) -> None:
        super().__init__()
        self.in_channels, self.out_channels = tuple(in_channels), out_channels
        if not self.in_channels:
            raise ValueError("TypedLinear: no types; give artifact.vertex_type_widths of a graph with vertex types")
        self.lins = torch.nn.ModuleList(linear(width, out_channels, bias=bias) for width in self.in_channels)

    def forward(self, x: Tensor) -> Tensor:
        """[R, 1 + max F_k], column 0 the type -> [R, F]; rows of no known type get zeros."""
        kind_R1 = x[:, :1]
        out = x.new_zeros((len(x), self.out_channels))
        for k, (width, lin) in enumerate(zip(self.in_channels, self.lins, strict=True)):
            out = torch.where(kind_R1 == k, lin(x[:, 1 : 1 + width]), out)
        return out

    def extra_repr(self) -> str:
        return f"in_channels={self.in_channels}, out_channels={self.out_channels}"

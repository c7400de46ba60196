"""Relational graph convolution (Schlichtkrull et al.), as torch_geometric's RGCNConv.

Legend: R rows, D destinations, T relations (types of edges), F and G columns in and out.
"""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack

from hongtu.nn.block import Block
from hongtu.nn.layer import Common, Convolution, Skip, glorot, takes_mean, zeros


class RGCNConv(Convolution):
    """h'_d = W h_d + b + sum over relations t of W_t mean(h_s of the in-edges of type t).

    ``z`` is h: what a relation's neighbours add up to is multiplied once per destination, never per edge.

    Args:
        in_channels, out_channels: F and G.
        num_relations: T; at least as many as the graph's edge types.
        num_bases: W_t is a sum of so many shared matrices, with coefficients ``comp``.
        num_blocks: W_t is block-diagonal with so many blocks.
        aggr: "mean", or "sum" ("add"), over the in-edges of one type.
        root_weight: add W h_d.
        bias: add b.
        activation, input_dropout: see ``Convolution``.
    """

    uses_edge_type = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        num_relations: int,
        num_bases: int | None = None,
        num_blocks: int | None = None,
        aggr: str = "mean",
        root_weight: bool = True,
        *,
        bias: bool = True,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        if num_bases is not None and num_blocks is not None:
            raise ValueError("RGCNConv: num_bases and num_blocks are two ways to share weights; give one")
        if num_blocks is not None and (in_channels % num_blocks or out_channels % num_blocks):
            raise ValueError(f"RGCNConv: {in_channels} and {out_channels} channels are not divided by {num_blocks}")
        self.in_channels, self.out_channels, self.num_relations = in_channels, out_channels, num_relations
        self.num_bases, self.num_blocks, self.mean = num_bases, num_blocks, takes_mean("RGCNConv", aggr)
        shape: tuple[int, ...] = (num_bases or num_relations, in_channels, out_channels)
        if num_blocks is not None:
            shape = (num_relations, num_blocks, in_channels // num_blocks, out_channels // num_blocks)
        self.weight = torch.nn.Parameter(torch.empty(shape))
        glorot(self.weight)
        self.register_parameter("comp", None if num_bases is None else _matrix(num_relations, num_bases))
        self.register_parameter("root", _matrix(in_channels, out_channels) if root_weight else None)
        self.register_parameter("bias", zeros(out_channels, bias))

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        h = self.input_dropout(h)
        return h, h if self.root is not None else None

    def aggregate(self, block: Block, z: Tensor, s: Skip) -> Tensor:
        sums_TDF = block.sum_by_type(z, self.num_relations, mean=self.mean)
        weight: Tensor = self.weight
        if self.num_blocks is not None:
            blocks = sums_TDF.view(*sums_TDF.shape[:2], self.num_blocks, -1)
            return torch.einsum("tdbf,tbfg->dbg", blocks, weight).flatten(1)
        if self.comp is not None:
            weight = (self.comp @ weight.flatten(1)).view(-1, *weight.shape[1:])
        out_DG = z.new_zeros((block.num_dst, self.out_channels))
        for sum_DF, weight_FG in zip(sums_TDF.unbind(), weight.unbind(), strict=True):
            out_DG = torch.addmm(out_DG, sum_DF, weight_FG)
        return out_DG

    def update(self, a: Tensor, s: Skip) -> Tensor:
        h = a if self.root is None else torch.addmm(a, s, self.root)
        return self.finish(h, self.bias)


def _matrix(rows: int, columns: int) -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(torch.empty(rows, columns))
    glorot(parameter)
    return parameter

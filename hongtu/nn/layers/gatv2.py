"""Dynamic graph attention (Brody et al.), as torch_geometric's GATv2Conv.

Legend: R rows, S sources, D destinations, E edges, H heads, K channels per head.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu
from typing_extensions import Unpack

from hongtu.nn.block import Block
from hongtu.nn.dropout import Dropout
from hongtu.nn.layer import Common, Skip, glorot, linear, zeros
from hongtu.nn.layers.attention import Attention
from hongtu.nn.layers.gat import check_fill_value, loop_rows
from hongtu.nn.sparse_input import applied


class GATv2Conv(Attention):
    """h'_d = sum over in-edges (and the self-loop) of softmax(a leaky_relu(W_l h_s + W_r h_d)) W_l h_s, plus b.

    Equation 7 of the paper. ``z`` is W_l h, [R, H K]; what depends on one vertex is computed once, never per replica.

    Args:
        in_channels: width of h.
        out_channels: K, width of a head.
        heads: H.
        concat: concatenate the heads (width H K), else their mean (width K).
        negative_slope: of the leaky ReLU.
        dropout: of the attention shares; its mask belongs to the edge, whatever the chunks.
        add_self_loops: stored self-loops are replaced by one per vertex.
        edge_dim: columns of the edge features e: W_edge e is added to W_l h_s + W_r h_d; None: they are not read.
        fill_value: e of the self-loops that are added: "mean" over the vertex's other in-edges, or a number.
        bias: of W_l and W_r, and add b.
        share_weights: W_r is W_l.
        residual: add W_res h.
        activation, input_dropout: see ``Convolution``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        edge_dim: int | None = None,
        fill_value: float | str = "mean",
        *,
        bias: bool = True,
        share_weights: bool = False,
        residual: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.concat, self.negative_slope, self.add_self_loops = concat, negative_slope, add_self_loops
        self.share_weights, self.residual = share_weights, residual
        width = heads * out_channels if concat else out_channels
        self.att = torch.nn.Parameter(torch.empty(1, heads, out_channels))
        self.register_parameter("bias", zeros(width, bias))
        self.lin_l = linear(in_channels, heads * out_channels, bias=bias, glorot_weight=True)
        self.lin_r = self.lin_l
        if not share_weights:
            self.lin_r = linear(in_channels, heads * out_channels, bias=bias, glorot_weight=True)
        self.edge_dim, self.uses_edge_features = edge_dim, edge_dim is not None
        if edge_dim is not None:
            self.fill_value = check_fill_value("GATv2Conv", fill_value)
            self.lin_edge = linear(edge_dim, heads * out_channels, bias=False, glorot_weight=True)
        if residual:
            self.res = linear(in_channels, width, bias=False, glorot_weight=True)
        glorot(self.att)
        self.attention_dropout = Dropout(dropout)

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        h = self.input_dropout(h)
        z = applied(self.lin_l, h)
        query = z if self.share_weights else applied(self.lin_r, h)
        own = (z,) if self.add_self_loops else ()
        return z, (query, *own, *((applied(self.res, h),) if self.residual else ()))

    @property
    def bare_products(self) -> tuple[torch.nn.Module, ...]:
        return () if self.edge_dim is None else (self.lin_edge,)

    def aggregate(self, block: Block, z: Tensor, s: Skip) -> Tensor:
        query = s[0]
        if self.edge_dim is None:
            logits_EH = block.additive_logits(z, query, self.att.flatten(), self.heads, self.negative_slope)
        else:
            sum_EF = block.gather(z) + block.gather_destination(query)
            logits_EH = self._logits(torch.addmm(sum_EF, block.edge_features, self.lin_edge.weight.t()))
        if not self.add_self_loops:
            return self.attend(block, z, logits_EH)
        own_z = s[1]
        own_sum_DF = own_z + query
        if self.edge_dim is not None:
            one_P = own_z.new_ones(self.edge_dim)
            own_sum_DF = own_sum_DF + self.lin_edge(loop_rows(block, block.edge_features, self.fill_value, one_P))
        return self.attend_with_loops(block, z, logits_EH, own_z, self._logits(own_sum_DF))

    def _logits(self, sum_NF: Tensor) -> Tensor:
        """[N, H K] -> [N, H]"""
        sum_NHK = leaky_relu(sum_NF, self.negative_slope).view(-1, self.heads, self.out_channels)
        return (sum_NHK * self.att).sum(2)

    def update(self, a: Tensor, s: Skip) -> Tensor:
        h = a + s[-1] if self.residual else a
        return self.finish(h, self.bias)

"""Graph attention (Velickovic et al.; Brody et al.), as torch_geometric's GATConv and GATv2Conv.

Legend: R rows, S sources, D destinations, E edges, H heads, K channels per head.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu
from typing_extensions import Unpack

from hongtu.graph.paper_edges import PaperEdges
from hongtu.kernels.dispatch import has_numba_kernel
from hongtu.nn.block import Block
from hongtu.nn.convolution import Common, glorot, linear, zeros
from hongtu.nn.dropout import Dropout
from hongtu.nn.layer import Skip, is_product
from hongtu.nn.layers.attention import Attention
from hongtu.nn.ops.aggregates import apart
from hongtu.nn.sparse_input import applied, linear_map


def check_fill_value(layer: str, fill_value: float | str) -> float | str:
    """Refuse what a self-loop's features cannot be; returns what they can."""
    if fill_value != "mean" and not isinstance(fill_value, int | float):
        raise ValueError(f"{layer}(fill_value={fill_value!r}): expected 'mean' or a number")
    return fill_value


def loop_rows(block: Block, rows_EF: Tensor, fill_value: float | str, one_F: Tensor) -> Tensor:
    """What is linear in the edge features (``rows_EF`` of the edges, ``one_F`` of features that are all 1), of the
    self-loops that a layer adds: [D, F], or [F] where it is the same for all."""
    if isinstance(fill_value, str):
        return block.segment_mean(rows_EF, exclude=block.loop_mask if block.has_loops else None)
    return fill_value * one_F


class GATConv(Attention):
    """h'_d = sum over in-edges (and the self-loop) of softmax(leaky_relu(a_src W h_s + a_dst W h_d)) W h_s, plus b.

    ``z`` is [W h | source logits], [R, H K + H]: what depends on one vertex is computed once, never per replica.

    Args:
        in_channels: width of h.
        out_channels: K, width of a head.
        heads: H.
        concat: concatenate the heads (width H K), else their mean (width K).
        negative_slope: of the leaky ReLU.
        dropout: of the attention shares; its mask belongs to the edge, whatever the chunks.
        add_self_loops: stored self-loops are replaced by one per vertex.
        edge_dim: columns of the edge features e, whose logits att_edge W_edge e are added; None: they are not read.
        fill_value: e of the self-loops that are added: "mean" over the vertex's other in-edges, or a number.
        bias: add b.
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
        residual: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.concat, self.negative_slope, self.add_self_loops = concat, negative_slope, add_self_loops
        self.lin = linear(in_channels, heads * out_channels, bias=False, glorot_weight=True)
        self.att_src = torch.nn.Parameter(torch.empty(1, heads, out_channels))
        self.att_dst = torch.nn.Parameter(torch.empty(1, heads, out_channels))
        glorot(self.att_src)
        glorot(self.att_dst)
        self.edge_dim, self.uses_edge_features = edge_dim, edge_dim is not None
        if edge_dim is not None:
            self.fill_value = check_fill_value("GATConv", fill_value)
            self.lin_edge = linear(edge_dim, heads * out_channels, bias=False, glorot_weight=True)
            self.att_edge = torch.nn.Parameter(torch.empty(1, heads, out_channels))
            glorot(self.att_edge)
        width = heads * out_channels if concat else out_channels
        self.register_parameter("bias", zeros(width, bias))
        self.residual = residual
        if residual:
            self.res = linear(in_channels, width, bias=False, glorot_weight=True)
        self.attention_dropout = Dropout(dropout)

    @property
    def paper_edges(self) -> PaperEdges | None:
        plain = self.built_in and is_product(self.lin) and self.edge_dim is None and not self.attention_dropout.p
        return PaperEdges(loops=self.add_self_loops) if plain and not self.residual else None

    @property
    def maps_input(self) -> bool:
        return super().maps_input and self.once_per_vertex and is_product(self.lin)

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        h = self.input_dropout(h)
        if not self.once_per_vertex:
            return h, None if self.add_self_loops else h
        z, logits_RH = self._map(h)
        own = (z,) if self.add_self_loops else ()
        s = *own, logits_RH, *((applied(self.res, h),) if self.residual else ())
        return z, s if s[1:] else logits_RH

    def _map(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """[R, F] -> [W h | source logits] and destination logits: as both are linear in h, one product with the weight
        [W | W a_src], where W is nothing but a product."""
        if not is_product(self.lin):
            x = self.lin(h)
            x_RHK = x.view(-1, self.heads, self.out_channels)
            return torch.cat([x, (x_RHK * self.att_src).sum(2)], dim=1), (x_RHK * self.att_dst).sum(2)
        weight = self.lin.weight  # once: it may be computed, and drawn
        weight_HKF = weight.view(self.heads, self.out_channels, -1)
        source_HF, destination_HF = (
            (weight_HKF * att.view(self.heads, -1, 1)).sum(1) for att in (self.att_src, self.att_dst)
        )
        return linear_map(h, torch.cat([weight, source_HF])), linear_map(h, destination_HF)

    def aggregate(self, block: Block, z: Tensor, s: Skip) -> Tensor:
        width = self.heads * self.out_channels
        if self.once_per_vertex:
            parts = s if isinstance(s, tuple) else (s,)
            own_z, logits_DH = parts[:2] if self.add_self_loops else (None, parts[0])
        else:  # the self-loop is an edge
            z, logits_SH = self._map(z)
            own_z, logits_DH = None, logits_SH[block.last_source] if s is None else self._map(s)[1]
        if self.built_in and self.edge_dim is None and not self.attention_dropout.drops and has_numba_kernel(z):
            return self.merge_heads(block.graph_attention(z, logits_DH, own_z, self.negative_slope))
        z, behind_SH = apart(z, width)
        logits_EH = block.gather(behind_SH) + block.gather_destination(logits_DH)
        del behind_SH
        if self.edge_dim is not None:
            weight_PH = self._edge_weight()
            edge_logits_EH = block.edge_features @ weight_PH
            logits_EH = logits_EH + edge_logits_EH
        logits_EH = leaky_relu(logits_EH, self.negative_slope)
        if own_z is None:
            return self.attend(block, z, logits_EH)
        own_DF, own_logits_DH = own_z.split([width, self.heads], dim=1)
        own_logits_DH = own_logits_DH + logits_DH
        if self.edge_dim is not None:
            own_logits_DH = own_logits_DH + loop_rows(block, edge_logits_EH, self.fill_value, weight_PH.sum(0))
        own_logits_DH = leaky_relu(own_logits_DH, self.negative_slope)
        return self.attend_with_loops(block, z, logits_EH, own_DF, own_logits_DH)

    def _edge_weight(self) -> Tensor:
        """[P, H]: logits are linear in the P edge features, so that no [E, H K] tensor is needed."""
        weight_HKP = self.lin_edge.weight.view(self.heads, self.out_channels, -1)
        return (weight_HKP * self.att_edge.squeeze(0).unsqueeze(2)).sum(1).t()


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

"""What attention layers share, and the graph transformer (Shi et al., UniMP), as torch_geometric's TransformerConv.

Legend: R rows, S sources, D destinations, E edges, H heads, K channels per head, P columns of the edge features.
"""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack

from hongtu.nn.block import Block
from hongtu.nn.convolution import Common, Convolution, linear
from hongtu.nn.dropout import Dropout
from hongtu.nn.layer import Skip, is_plain
from hongtu.nn.sparse_input import applied


class Attention(Convolution):
    """Base of a layer with ``heads`` (H), ``out_channels`` (K), ``concat`` and ``attention_dropout``; with a map
    ``lin_edge`` of edge features where it has an ``edge_dim``; with a ``residual``
    its ``s`` ends in W_res h."""

    heads: int
    out_channels: int
    concat: bool
    attention_dropout: Dropout
    edge_dim: int | None
    residual: bool
    lin_edge: torch.nn.Module

    @property
    def maps_input(self) -> bool:
        return self.built_in and all(is_plain(x) for x in self.children() if isinstance(x, torch.nn.Linear))

    @property
    def bare_products(self) -> tuple[torch.nn.Module, ...]:
        return () if self.edge_dim is None else (self.lin_edge,)

    def update(self, a: Tensor, s: Skip) -> Tensor:
        return self.finish(a + s[-1] if self.residual else a, self.bias)

    def attend(self, block: Block, z: Tensor, logits_EH: Tensor) -> Tensor:
        """z [S, >= H K] -> [D, H K], or [D, K] where heads are not concatenated."""
        alpha_EH = self.attention_dropout(block.softmax(logits_EH), self.edge_ids(block))
        return self.merge_heads(block.attend(z, alpha_EH, self.heads * self.out_channels))

    def attend_with_loops(
        self, block: Block, z: Tensor, logits_EH: Tensor, own_DF: Tensor, own_logits_DH: Tensor
    ) -> Tensor:
        """The same with one self-loop per destination, of rows own_DF [D, H K], in place of those that are stored."""
        exclude = block.loop_mask if block.has_loops else None
        alpha_EH, own_alpha_DH = block.softmax(logits_EH, exclude, own_logits_DH)
        alpha_EH = self.attention_dropout(alpha_EH, self.edge_ids(block))
        if self.attention_dropout.drops:
            own_alpha_DH = self.attention_dropout(own_alpha_DH, block.num_graph_edges + block.rows.ids)
        own_DHK = own_DF.view(-1, self.heads, self.out_channels) * own_alpha_DH.unsqueeze(2)
        return self.merge_heads(block.attend(z, alpha_EH, self.heads * self.out_channels) + own_DHK.flatten(1))

    def edge_ids(self, block: Block) -> Tensor | None:
        """What shares are dropped by: not made where none are."""
        return block.edge_ids if self.attention_dropout.drops else None

    def merge_heads(self, out_DF: Tensor) -> Tensor:
        """[D, H K] as it is, or the mean of the heads."""
        return out_DF if self.concat else out_DF.view(-1, self.heads, self.out_channels).mean(1)


class TransformerConv(Attention):
    """h'_d = W_skip h_d + sum over in-edges of softmax(<query(h_d), key(h_s)> / sqrt(K)) value(h_s).

    ``z`` is [value | key], [R, 2 H K]; ``s`` is (query, W_skip h). Edge weights are not used. With edge features e,
    W_edge e is added to key(h_s) and value(h_s); as both are used linearly, no [E, H K] tensor of them is made.

    Args:
        in_channels: width of h.
        out_channels: K, width of a head.
        heads: H.
        concat: concatenate the heads (width H K), else their mean (width K).
        beta: h' = beta W_skip h + (1 - beta) a instead of the sum, with beta learned per vertex.
        dropout: of the attention shares; its mask belongs to the edge, whatever the chunks.
        edge_dim: P; None: edge features are not read.
        bias: of all four maps.
        root_weight: add W_skip h.
        activation, input_dropout: see ``Convolution``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        beta: bool = False,
        dropout: float = 0.0,
        edge_dim: int | None = None,
        *,
        bias: bool = True,
        root_weight: bool = True,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.concat, self.beta, self.root_weight = concat, beta and root_weight, root_weight
        self.lin_key = linear(in_channels, heads * out_channels, bias=bias)
        self.lin_query = linear(in_channels, heads * out_channels, bias=bias)
        self.lin_value = linear(in_channels, heads * out_channels, bias=bias)
        self.edge_dim, self.uses_edge_features = edge_dim, edge_dim is not None
        if edge_dim is not None:
            self.lin_edge = linear(edge_dim, heads * out_channels, bias=False)
        width = heads * out_channels if concat else out_channels
        self.lin_skip = linear(in_channels, width, bias=bias)
        if self.beta:
            self.lin_beta = linear(3 * width, 1, bias=False)
        self.attention_dropout = Dropout(dropout)

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        h = self.input_dropout(h)
        z = torch.cat([applied(self.lin_value, h), applied(self.lin_key, h)], dim=1)
        query = applied(self.lin_query, h)
        return z, (query, applied(self.lin_skip, h)) if self.root_weight else query

    def aggregate(self, block: Block, z: Tensor, s: Skip) -> Tensor:
        width = self.heads * self.out_channels
        query = s[0] if self.root_weight else s
        logits_EH = block.dot(z[:, width:], query, self.heads)
        if self.edge_dim is not None:
            e_E1P = block.edge_features.unsqueeze(1)
            weight_HKP = self.lin_edge.weight.view(self.heads, self.out_channels, self.edge_dim)
            query_DHK = query.view(-1, self.heads, self.out_channels)
            query_DHP = torch.einsum("dhk,hkp->dhp", query_DHK, weight_HKP)
            logits_EH = logits_EH + (block.gather_destination(query_DHP) * e_E1P).sum(2)
        alpha_EH = self.attention_dropout(block.softmax(logits_EH / self.out_channels**0.5), self.edge_ids(block))
        a = block.attend(z, alpha_EH, width)
        if self.edge_dim is not None:
            shared_DHP = block.segment_sum(alpha_EH.unsqueeze(2) * e_E1P)
            a = a + torch.einsum("dhp,hkp->dhk", shared_DHP, weight_HKP).flatten(1)
        return self.merge_heads(a)

    def update(self, a: Tensor, s: Skip) -> Tensor:
        if not self.root_weight:
            return self.activate(a)
        skip = s[1]
        if not self.beta:
            return self.activate(a + skip)
        beta = torch.sigmoid(self.lin_beta(torch.cat([a, skip, a - skip], dim=1)))
        return self.activate(beta * skip + (1 - beta) * a)

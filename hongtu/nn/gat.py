"""Graph attention (Velickovic et al.), as torch_geometric's GATConv.

Legend: R rows, S sources, D destinations, E edges, H heads, K channels per head.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from hongtu.block import Block
from hongtu.nn.dropout import Dropout
from hongtu.nn.layer import Activation, Convolution, Skip, glorot, linear


class GATConv(Convolution):
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
        bias: add b.
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
        *,
        bias: bool = True,
        activation: Activation = None,
        input_dropout: float = 0.0,
    ) -> None:
        super().__init__(activation, input_dropout)
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.concat, self.negative_slope, self.add_self_loops = concat, negative_slope, add_self_loops
        self.lin = linear(in_channels, heads * out_channels, bias=False, glorot_weight=True)
        self.att_src = torch.nn.Parameter(torch.empty(1, heads, out_channels))
        self.att_dst = torch.nn.Parameter(torch.empty(1, heads, out_channels))
        glorot(self.att_src)
        glorot(self.att_dst)
        width = heads * out_channels if concat else out_channels
        self.register_parameter("bias", torch.nn.Parameter(torch.zeros(width)) if bias else None)
        self.attention_dropout = Dropout(dropout)

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        x = self.lin(self.input_dropout(h))
        x_RHK = x.view(-1, self.heads, self.out_channels)
        z = torch.cat([x, (x_RHK * self.att_src).sum(2)], dim=1)
        logits_RH = (x_RHK * self.att_dst).sum(2)
        return z, (z, logits_RH) if self.add_self_loops else logits_RH

    def aggregate(self, block: Block, z: Tensor, s: Skip) -> Tensor:
        width = self.heads * self.out_channels
        own_z, logits_DH = s if self.add_self_loops else (None, s)
        logits_EH = block.gather(z[:, width:]) + block.gather_destination(logits_DH)
        logits_EH = leaky_relu(logits_EH, self.negative_slope)
        if own_z is None:
            alpha_EH = self.attention_dropout(block.softmax(logits_EH), block.edge_ids)
            return self._merge_heads(block.attend(z, alpha_EH, width))
        own_logits_DH = leaky_relu(own_z[:, width:] + logits_DH, self.negative_slope)
        exclude = block.loop_mask if block.has_loops else None
        alpha_EH, own_alpha_DH = block.softmax(logits_EH, exclude, own_logits_DH)
        alpha_EH = self.attention_dropout(alpha_EH, block.edge_ids)
        own_alpha_DH = self.attention_dropout(own_alpha_DH, block.num_graph_edges + block.rows.ids)
        own_x_DHK = own_z[:, :width].view(-1, self.heads, self.out_channels)
        own_DF = (own_x_DHK * own_alpha_DH.unsqueeze(2)).flatten(1)
        return self._merge_heads(block.attend(z, alpha_EH, width) + own_DF)

    def _merge_heads(self, out_DF: Tensor) -> Tensor:
        return out_DF if self.concat else out_DF.view(-1, self.heads, self.out_channels).mean(1)

    def update(self, a: Tensor, s: Skip) -> Tensor:
        return self.activate(a if self.bias is None else a + self.bias)

"""What attention layers share: sums of the sources' rows by shares that a softmax gives, per head.

Legend: S sources, D destinations, E edges, H heads, K channels per head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hongtu.nn.block import Block
from hongtu.nn.dropout import Dropout
from hongtu.nn.layer import Convolution, is_plain


class Attention(Convolution):
    """Base of a layer with ``heads`` (H), ``out_channels`` (K), ``concat`` and ``attention_dropout``."""

    heads: int
    out_channels: int
    concat: bool
    attention_dropout: Dropout

    @property
    def maps_input(self) -> bool:
        return self.built_in and all(is_plain(x) for x in self.children() if isinstance(x, torch.nn.Linear))

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

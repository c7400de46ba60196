"""Row-wise modules of a layer list: jumping knowledge, and a linear map for each type of vertices.

Legend: R rows, K types, F_k columns of type k.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hongtu.errors import names_known
from hongtu.nn.convolution import linear


@names_known
class JumpingKnowledge(torch.nn.Module):
    """Concatenation, maximum or an LSTM's attention over layers, as torch_geometric's JumpingKnowledge.

    Args:
        mode: "cat", "max" or "lstm".
        channels: width of every layer's rows, for "lstm".
        num_layers: how many layers, for "lstm".
    """

    def __init__(self, mode: str, channels: int | None = None, num_layers: int | None = None) -> None:
        super().__init__()
        self.mode = mode.lower()
        if self.mode not in ("cat", "max", "lstm"):
            raise ValueError(f"JumpingKnowledge({mode!r}): expected 'cat', 'max' or 'lstm'")
        if self.mode != "lstm":
            return
        if channels is None or num_layers is None:
            raise ValueError("JumpingKnowledge('lstm') needs channels and num_layers")
        hidden = num_layers * channels // 2
        self.lstm = torch.nn.LSTM(channels, hidden, bidirectional=True, batch_first=True)
        self.att = torch.nn.Linear(2 * hidden, 1)

    def forward(self, xs: Sequence[Tensor]) -> Tensor:
        """One [R, F] per layer -> [R, F'], the sum of their widths for "cat"."""
        if self.mode == "cat":
            return torch.cat(list(xs), dim=-1)
        if self.mode == "max":
            return torch.stack(list(xs), dim=-1).max(dim=-1)[0]
        x_RLF = torch.stack(list(xs), dim=1)
        with torch.autocast(x_RLF.device.type, enabled=False):  # CPUs without AVX-512 have no LSTM in bfloat16
            states_RLH = self.lstm(x_RLF.to(self.att.weight.dtype))[0]
        share_RL = torch.softmax(self.att(states_RLH).squeeze(-1), dim=-1)
        return (x_RLF * share_RL.unsqueeze(-1)).sum(dim=1)

    def extra_repr(self) -> str:
        return self.mode


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

"""Jumping knowledge (Xu et al.): a row of the result from the rows that several layers gave for the same vertex."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hongtu.errors import names_known


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

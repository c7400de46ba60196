"""Layers of several hops with weights between them (ARMAConv, GatedGraphConv), as torch_geometric's namesakes.

Legend: R rows, F columns of h, K stacks, C columns of h'.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from hongtu.nn.convolution import Activation, Common, Convolution, activation_module, glorot
from hongtu.nn.dropout import Dropout
from hongtu.nn.layer import Layer, Skip
from hongtu.nn.layers.normalized import NormalizedSum


class ARMAConv(NormalizedSum):
    """K stacks of X <- act(B X W_t + h V_t + b_t), their mean in the end (Bianchi et al.), B = D^-1/2 A D^-1/2; as many
    layers for the engine as a stack has.

    Args:
        in_channels, out_channels: widths of h and h'.
        num_stacks, num_layers: stacks, and steps of each.
        shared_weights: steps share W, but for the first one's, V and b.
        act: what follows every step, a module, a function or a name.
        dropout: of h before V.
        bias: add b.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        num_stacks: int = 1,
        num_layers: int = 1,
        shared_weights: bool = False,
        act: Activation = "relu",
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__(add_self_loops=False)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.num_stacks, self.num_layers, self.shared_weights = num_stacks, num_layers, shared_weights
        steps = 1 if shared_weights else num_layers
        self.weight = nn.Parameter(torch.empty(max(1, steps - 1), num_stacks, out_channels, out_channels))
        self.init_weight = nn.Parameter(torch.empty(num_stacks, in_channels, out_channels))
        self.root_weight = nn.Parameter(torch.empty(steps, num_stacks, in_channels, out_channels))
        for weight in (self.weight, self.init_weight, self.root_weight):
            glorot(weight)
        bias_TK1C = torch.zeros(steps, num_stacks, 1, out_channels)
        self.register_parameter("bias", nn.Parameter(bias_TK1C) if bias else None)
        self.act = activation_module(act)
        self.steps = nn.ModuleList(_Step(self, t, dropout) for t in range(num_layers))

    def expand(self) -> list[Layer]:
        return list(self.steps)


class _Step(NormalizedSum):
    """One step of all stacks, their columns side by side; its owner is no submodule, it owns the step."""

    reads_input = True

    def __init__(self, owner: ARMAConv, step: int, dropout: float) -> None:
        super().__init__(add_self_loops=False)
        self.step, self._owner, self.dropout = step, (owner,), Dropout(dropout)

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        owner, t = self._owner[0], self.step
        if t == 0:
            x = torch.einsum("rf,kfc->rkc", h, owner.init_weight)
        else:
            weight = owner.weight[0 if owner.shared_weights else t - 1]
            x = torch.einsum("rkd,kdc->rkc", h.view(len(h), owner.num_stacks, -1), weight)
        return self.spread(x.flatten(1))

    def update(self, a: Tensor, s: Skip, start: Tensor) -> Tensor:  # type: ignore[override]
        owner = self._owner[0]
        t = 0 if owner.shared_weights else self.step
        out = a.view(len(a), owner.num_stacks, -1)
        out = out + torch.einsum("rf,kfc->rkc", self.dropout(start), owner.root_weight[t])
        if owner.bias is not None:
            out = out + owner.bias[t].squeeze(1)
        out = owner.act(out)
        return out.mean(1) if self.step == owner.num_layers - 1 else out.flatten(1)


class GatedGraphConv(Convolution):
    """h <- GRU(sum over in-edges of edge weight * h W_t, h), as often as there are layers (Li et al.); h is filled up
    with zeros to ``out_channels``.

    Args:
        out_channels: width of h', at least that of h.
        num_layers: steps, one layer for the engine each.
        bias: of the GRU.
        activation, input_dropout: see ``Convolution``.
    """

    weighted = True

    def __init__(self, out_channels: int, num_layers: int, bias: bool = True, **common: Unpack[Common]) -> None:
        super().__init__(**common)
        self.out_channels, self.num_layers = out_channels, num_layers
        self.weight = nn.Parameter(torch.empty(num_layers, out_channels, out_channels))
        nn.init.uniform_(self.weight, -1 / math.sqrt(out_channels), 1 / math.sqrt(out_channels))
        self.rnn = nn.GRUCell(out_channels, out_channels, bias=bias)
        self.steps = nn.ModuleList(_Gated(self, t) for t in range(num_layers))

    def expand(self) -> list[Layer]:
        return list(self.steps)


class _Gated(Convolution):
    """One step; its owner is no submodule, it owns the step."""

    reduce = "sum"
    weighted = True

    def __init__(self, owner: GatedGraphConv, step: int) -> None:
        super().__init__()
        self.step, self._owner = step, (owner,)

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        owner = self._owner[0]
        if self.step == 0:
            h = nn.functional.pad(owner.input_dropout(h), (0, owner.out_channels - h.shape[1]))
        return h @ owner.weight[self.step], h

    def update(self, a: Tensor, s: Skip) -> Tensor:
        owner = self._owner[0]
        h = owner.rnn(a, s)
        return owner.activate(h) if self.step == owner.num_layers - 1 else h

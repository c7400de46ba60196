"""Graph isomorphism networks (Xu et al.; with edge features Hu et al.), as torch_geometric's GINConv and GINEConv."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack

from hongtu.nn.block import Block
from hongtu.nn.convolution import Common, Convolution, linear
from hongtu.nn.layer import Skip, is_chain, is_plain


class GINConv(Convolution):
    """h' = nn((1 + eps) h + sum(neighbours)); edge weights are not used.

    Args:
        nn: module from [R, F] to [R, F'], row by row.
        eps: initial value.
        train_eps: make ``eps`` a parameter (otherwise it is a buffer).
        activation, input_dropout: see ``Convolution``.
    """

    reduce: str | None = "sum"

    eps: Tensor

    def __init__(
        self, nn: torch.nn.Module, eps: float = 0.0, train_eps: bool = False, **common: Unpack[Common]
    ) -> None:
        super().__init__(**common)
        self.nn = nn
        value = torch.tensor([float(eps)])
        if train_eps:
            self.eps = torch.nn.Parameter(value)
        else:
            self.register_buffer("eps", value)

    @property
    def can_transform_first(self) -> bool:
        return is_plain(self._first)

    @property
    def _first(self) -> torch.nn.Module:
        """The part of nn that takes the rows."""
        return self.nn[0] if is_chain(self.nn) else self.nn

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        h = self.input_dropout(h)
        if self.transform_first:
            h = self.mapped(h, self._first.weight)
        return h, h

    def update(self, a: Tensor, s: Skip) -> Tensor:
        h = torch.addcmul(a, 1 + self.eps, s)
        if not self.transform_first:
            return self.activate(self.nn(h), fresh=is_plain(self.nn))
        if self._first is self.nn:
            return self.finish(h, self.nn.bias)
        h = h if self.nn[0].bias is None else h + self.nn[0].bias
        return self.activate(self.nn[1:](h))


class GINEConv(GINConv):
    """h' = nn((1 + eps) h + sum over in-edges of relu(h_s + e)), with e the edge's features, or W e + b.

    Args:
        nn: module from [R, F] to [R, F'], row by row.
        eps: initial value.
        train_eps: make ``eps`` a parameter (otherwise it is a buffer).
        edge_dim: columns of the edge features, to bring them to F columns by ``lin``; None: they have F.
        in_channels: F, where ``edge_dim`` is given and nn does not say it (``nn[0].in_features``).
        activation, input_dropout: see ``Convolution``.
    """

    reduce = None
    uses_edge_features = True

    def __init__(
        self,
        nn: torch.nn.Module,
        eps: float = 0.0,
        train_eps: bool = False,
        edge_dim: int | None = None,
        *,
        in_channels: int | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(nn, eps, train_eps, **common)
        self.lin = None if edge_dim is None else linear(edge_dim, in_channels or _input_width(nn), bias=True)

    @property
    def bare_maps(self) -> tuple[torch.nn.Module, ...]:
        return () if self.lin is None else (self.lin,)

    def aggregate(self, block: Block, z: Tensor, s: Skip) -> Tensor:
        if self.lin is None:
            message_EF = block.gather(z) + block.edge_features
        else:  # the bias per vertex, the ReLU in place: rows of edges are what takes time and memory
            weight, bias = self.lin.weight.t(), self.lin.bias
            message_EF = torch.addmm(block.gather(z if bias is None else z + bias), block.edge_features, weight)
        return block.segment_sum(torch.relu_(message_EF))


def _input_width(nn: torch.nn.Module) -> int:
    first = nn[0] if isinstance(nn, torch.nn.Sequential) else nn
    width = getattr(first, "in_features", getattr(first, "in_channels", None))
    if width is None:
        raise ValueError("GINEConv(edge_dim=...): cannot tell the input width of nn; pass in_channels")
    return width

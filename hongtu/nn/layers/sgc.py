"""Simple graph convolution (Wu et al.), as torch_geometric's SGConv."""

from __future__ import annotations

from torch import Tensor, nn

from hongtu.nn.convolution import Activation, linear
from hongtu.nn.layer import Layer, Skip, is_plain
from hongtu.nn.layers.normalized import NormalizedSum


class SGConv(NormalizedSum):
    """h' = (D^-1/2 (A + I) D^-1/2)^K h W^T + b; K layers for the engine.

    Over constant features the K-hop aggregate is computed once for the whole run (``cache_input_aggregate``), which is
    what torch_geometric's ``cached`` is for.

    Args:
        in_channels, out_channels: widths of h and h'.
        K: hops, at least 1.
        add_self_loops: add I.
        bias: add b.
        activation, input_dropout: see ``Convolution``; the dropout precedes the first hop.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        K: int = 1,
        *,
        add_self_loops: bool = True,
        bias: bool = True,
        activation: Activation = None,
        input_dropout: float = 0.0,
    ) -> None:
        if K < 1:
            raise ValueError(f"SGConv(K={K}): expected at least 1 hop; without any it is torch.nn.Linear")
        super().__init__(add_self_loops, activation=activation, input_dropout=input_dropout if K == 1 else 0.0)
        self.in_channels, self.out_channels, self.K = in_channels, out_channels, K
        self.lin = linear(in_channels, out_channels, bias=bias)
        self.hops = nn.ModuleList(
            _Hop(self, first=k == 0, input_dropout=input_dropout if k == 0 else 0.0) for k in range(K - 1)
        )

    def expand(self) -> list[Layer]:
        return [*self.hops, self]

    @property
    def can_transform_first(self) -> bool:
        return self.K == 1 and is_plain(self.lin)

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        h = self.input_dropout(h)
        return self.spread(self.map(h) if self.transform_first else h)

    def update(self, a: Tensor, s: Skip) -> Tensor:
        mapped = self.expand()[0].transform_first
        if not mapped:
            return self.activate(self.lin(a), fresh=is_plain(self.lin))
        return self.finish(a, self.lin.bias)

    @property
    def map_is_own(self) -> bool:
        """Whether no subclass has overridden what the first hop may do in its place."""
        return all(getattr(type(self), name) is getattr(SGConv, name) for name in ("map", "update"))

    def map(self, h: Tensor) -> Tensor:
        """h W^T: before the first hop or behind the last."""
        return self.mapped(h, self.lin.weight)


class _Hop(NormalizedSum):
    """One hop before the last of an SGConv; its owner is no submodule, it owns the hop."""

    def __init__(self, owner: SGConv, first: bool, input_dropout: float) -> None:
        super().__init__(owner.add_self_loops, input_dropout=input_dropout)
        self.first, self._owner = first, (owner,)

    @property
    def can_transform_first(self) -> bool:
        return self.first and is_plain(self._owner[0].lin) and self._owner[0].map_is_own

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        h = self.input_dropout(h)
        return self.spread(self._owner[0].map(h) if self.transform_first else h)

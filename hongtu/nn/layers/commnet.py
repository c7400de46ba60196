"""CommNet (Sukhbaatar et al.): every vertex hears the mean of its neighbours."""

from __future__ import annotations

from torch import Tensor

from hongtu.nn.layer import Activation, Convolution, Skip, is_plain, linear


class CommNetConv(Convolution):
    """h' = W_1 h + W_2 mean(neighbours), with W_1 ``lin_self`` and W_2 ``lin_neighbour``; no bias.

    Args:
        in_channels, out_channels: widths of h and h'.
        activation, input_dropout: see ``Convolution``.
    """

    reduce = "mean"

    def __init__(
        self, in_channels: int, out_channels: int, *, activation: Activation = None, input_dropout: float = 0.0
    ) -> None:
        super().__init__(activation, input_dropout)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.lin_self = linear(in_channels, out_channels, bias=False)
        self.lin_neighbour = linear(in_channels, out_channels, bias=False)

    @property
    def can_transform_first(self) -> bool:
        return is_plain(self.lin_self) and is_plain(self.lin_neighbour)

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        h = self.input_dropout(h)
        if self.transform_first:
            return self.mapped(h, self.lin_neighbour.weight), self.mapped(h, self.lin_self.weight)
        return h, h

    def update(self, a: Tensor, s: Skip) -> Tensor:
        return self.activate(a + s if self.transform_first else self.lin_neighbour(a) + self.lin_self(s))

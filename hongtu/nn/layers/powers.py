"""Layers of several hops, all of whose rows they map (TAGConv, SSGConv, MixHopConv), as torch_geometric's namesakes.

Legend: R rows, F columns of h, K hops.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from hongtu.nn.layer import Common, Layer, Skip, linear, zeros
from hongtu.nn.layers.normalized import NormalizedSum


class Powers(NormalizedSum):
    """Collects h, P h, ..., P^K h with P = D^-1/2 (A + I) D^-1/2, and maps what it collected; K layers for the engine.

    Over constant features the hops are computed once for the whole run (``cache_input_aggregate``). A subclass says
    what it collects, ``collect``, and what it makes of it, ``finish_hops``.
    """

    def __init__(
        self, in_channels: int, K: int, add_self_loops: bool = True, normalize: bool = True, **common: Unpack[Common]
    ) -> None:
        if K < 1:
            raise ValueError(f"{type(self).__name__}: {K} hops, expected at least 1; without any it is torch.nn.Linear")
        super().__init__(add_self_loops and normalize, normalize, **common)
        self.in_channels, self.K = in_channels, K
        self.hops = nn.ModuleList(_Hop(self, k) for k in range(K - 1))

    def expand(self) -> list[Layer]:
        return [*self.hops, self]

    @property
    def combines(self) -> bool:
        return False

    def collect(self, k: int, found: Tensor, h: Tensor) -> Tensor:
        """[R, ...], what hops before hop k have collected (h itself before the first), and the rows P^(k+1) h [R, F]
        -> the same with them, whose last F columns they are."""
        return torch.cat([found, h], dim=1)

    def finish_hops(self, found: Tensor) -> Tensor:
        """What all hops have collected -> h'."""
        raise NotImplementedError

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        return self.transform_hop(self.input_dropout(h) if self.K == 1 else h)

    def update(self, a: Tensor, s: Skip) -> Tensor:
        return self.activate(self.finish_hops(self.update_hop(self, self.K - 1, a, s)))

    def transform_hop(self, found: Tensor) -> tuple[Tensor, Skip]:
        """A hop exchanges the last rows that were collected."""
        return self.spread(found[:, found.shape[1] - self.in_channels :])[0], found

    def update_hop(self, hop: NormalizedSum, k: int, a: Tensor, s: Skip) -> Tensor:
        assert isinstance(s, Tensor)
        own = hop.spread(s[:, s.shape[1] - self.in_channels :])[1]
        return self.collect(k, s, hop.combine(a, own))


class _Hop(NormalizedSum):
    """One hop before the last; its owner is no submodule, it owns the hop."""

    def __init__(self, owner: Powers, k: int) -> None:
        super().__init__(owner.add_self_loops, owner.normalize)
        self.k, self._owner = k, (owner,)

    @property
    def combines(self) -> bool:
        return False

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        owner = self._owner[0]
        found = owner.input_dropout(h) if self.k == 0 else h
        return self.spread(found[:, found.shape[1] - owner.in_channels :])[0], found

    def update(self, a: Tensor, s: Skip) -> Tensor:
        return self._owner[0].update_hop(self, self.k, a, s)


class TAGConv(Powers):
    """h' = sum over k = 0 ... K of P^k h W_k^T, plus b, without self-loops (Du et al.).

    Args:
        in_channels, out_channels: widths of h and h'.
        K: hops.
        bias: add b.
        normalize: without it P = A.
        activation, input_dropout: see ``Convolution``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        K: int = 3,
        bias: bool = True,
        normalize: bool = True,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(in_channels, K, False, normalize, **common)
        self.out_channels = out_channels
        self.lins = nn.ModuleList(linear(in_channels, out_channels, bias=False) for _ in range(K + 1))
        self.register_parameter("bias", zeros(out_channels, bias))

    def finish_hops(self, found: Tensor) -> Tensor:
        parts = zip(self.lins, found.split(self.in_channels, dim=1), strict=True)
        out = sum((lin(part) for lin, part in parts), start=torch.zeros((), dtype=found.dtype, device=found.device))
        return out if self.bias is None else out + self.bias


class MixHopConv(Powers):
    """h' = [P^p h W_p^T for p in powers], plus b (Abu-El-Haija et al.).

    Args:
        in_channels, out_channels: widths of h and of each power's part of h'.
        powers: which, 0, 1, 2 where nothing is given.
        add_self_loops: add I.
        bias: add b.
        activation, input_dropout: see ``Convolution``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        powers: Sequence[int] | None = None,
        add_self_loops: bool = True,
        bias: bool = True,
        **common: Unpack[Common],
    ) -> None:
        self_powers = [0, 1, 2] if powers is None else list(powers)
        super().__init__(in_channels, max(self_powers, default=0), add_self_loops, **common)
        self.out_channels, self.powers = out_channels, self_powers
        kept = (p in self_powers for p in range(self.K + 1))
        self.lins = nn.ModuleList(linear(in_channels, out_channels, bias=False) if k else nn.Identity() for k in kept)
        self.register_parameter("bias", zeros(len(self_powers) * out_channels, bias))

    def finish_hops(self, found: Tensor) -> Tensor:
        parts = found.split(self.in_channels, dim=1)
        out = torch.cat([self.lins[p](parts[p]) for p in self.powers], dim=1)
        return out if self.bias is None else out + self.bias


class SSGConv(Powers):
    """h' = (alpha h + (1 - alpha) / K times the sum over k = 1 ... K of P^k h) W^T + b (Zhu and Koniusz).

    Args:
        in_channels, out_channels: widths of h and h'.
        alpha: share of h.
        K: hops.
        add_self_loops: add I.
        bias: add b.
        activation, input_dropout: see ``Convolution``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        alpha: float,
        K: int = 1,
        *,
        add_self_loops: bool = True,
        bias: bool = True,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(in_channels, K, add_self_loops, **common)
        self.out_channels, self.alpha = out_channels, alpha
        self.lin = linear(in_channels, out_channels, bias=bias)

    def collect(self, k: int, found: Tensor, h: Tensor) -> Tensor:
        so_far = self.alpha * found if k == 0 else found[:, : self.in_channels]
        return torch.cat([so_far + (1 - self.alpha) / self.K * h, h], dim=1)

    def finish_hops(self, found: Tensor) -> Tensor:
        return self.lin(found[:, : self.in_channels])

"""Layers of several hops, all of whose rows they map (TAGConv, ChebConv, SSGConv, MixHopConv), as torch_geometric's
namesakes.

Legend: R rows, F columns of h, K hops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from hongtu.graph.degrees import largest_in_laplacian
from hongtu.graph.topology import Topology
from hongtu.nn.convolution import Common, glorot, linear, zeros
from hongtu.nn.layer import Layer, Skip
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
        return self.transform_hop(h, first=not len(self.hops))

    def update(self, a: Tensor, s: Skip) -> Tensor:
        return self.activate(self.finish_hops(self.update_hop(len(self.hops), a, s)))

    def transform_hop(self, found: Tensor, first: bool) -> tuple[Tensor, Skip]:
        """A hop exchanges the last rows that were collected."""
        found = self.input_dropout(found) if first else found
        return self.spread(self._last(found))[0], found

    def update_hop(self, k: int, a: Tensor, s: Skip) -> Tensor:
        assert isinstance(s, Tensor)
        return self.collect(k, s, self.hop(a, self._last(s)))

    def hop(self, a: Tensor, h: Tensor) -> Tensor:
        """[R, F], P h of rows h and the aggregate of what ``spread`` makes of their sources."""
        return self.combine(a, self.spread(h)[1])

    def _last(self, found: Tensor) -> Tensor:
        return found[:, found.shape[1] - self.in_channels :]


class _Hop(NormalizedSum):
    """One hop before the last; its owner is no submodule, it owns the hop."""

    def __init__(self, owner: Powers, k: int) -> None:
        super().__init__(owner.add_self_loops, owner.normalize)
        self.k, self._owner, self.uses_out_degrees = k, (owner,), owner.uses_out_degrees

    @property
    def factors(self) -> tuple[bool, bool, str] | None:  # type: ignore[override]
        return self._owner[0].factors

    @property
    def combines(self) -> bool:
        return False

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        return self._owner[0].transform_hop(h, first=self.k == 0)

    def update(self, a: Tensor, s: Skip) -> Tensor:
        return self._owner[0].update_hop(self.k, a, s)


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


class ChebConv(TAGConv):
    """h' = sum over k = 1 ... K of T_k W_k^T, plus b: T_1 = h, T_2 = M h, T_k = 2 M T_k-1 - T_k-2 (Defferrard et al.).

    M = 2 / lambda_max L - I, with the Laplacian L of edges but self-loops, whose out-degrees are D, as
    torch_geometric's: I - D^-1/2 A D^-1/2 ("sym"), I - D^-1 A ("rw") or D - A (None).

    Args:
        in_channels, out_channels: widths of h and h'.
        K: terms, at least 2.
        normalization: "sym", "rw" or None.
        bias: add b.
        lambda_max: None: twice the largest number in L.
        activation, input_dropout: see ``Convolution``.
    """

    uses_out_degrees = True
    factors = None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        K: int,
        normalization: str | None = "sym",
        bias: bool = True,
        lambda_max: float | None = None,
        **common: Unpack[Common],
    ) -> None:
        if normalization not in (None, "sym", "rw"):
            raise ValueError(f"ChebConv(normalization={normalization!r}): expected 'sym', 'rw' or None")
        if K < 2:
            raise ValueError(f"ChebConv(K={K}): expected at least 2 terms; the first alone is torch.nn.Linear")
        super().__init__(in_channels, out_channels, K - 1, bias, **common)
        self.K, self.normalization, self.lambda_max, self._largest = K, normalization, lambda_max, 1.0
        for lin in self.lins:
            glorot(lin.weight)

    def read_graph(self, topology: Topology) -> None:
        if self.lambda_max is None:
            key = "largest in Laplacian", self.normalization, self.ignores_weights
            if key not in topology.memo:
                seen = replace(topology, edge_weight=None) if self.ignores_weights else topology
                topology.memo[key] = largest_in_laplacian(seen, self.normalization)
            self._largest = topology.memo[key]

    def collect(self, k: int, found: Tensor, h: Tensor) -> Tensor:
        if k > 0:
            h = 2 * h - found.narrow(1, (k - 1) * self.in_channels, self.in_channels)
        return torch.cat([found, h], dim=1)

    def spread(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return (x if self.normalization is None else x * self._scales_R1()[0]), None

    def hop(self, a: Tensor, h: Tensor) -> Tensor:
        source_R1, degree_R1, loops_R1 = self._scales_R1()
        others = a - loops_R1 * self.spread(h)[0]
        others = others * source_R1 if self.normalization == "sym" else others
        own = degree_R1 * h if self.normalization is None else h
        return (own - others) * 2 / (2 * self._largest if self.lambda_max is None else self.lambda_max) - h

    def _scales_R1(self) -> tuple[Tensor, Tensor, Tensor]:
        """[R, 1] each: what sources are scaled by, out-degrees, and weights of self-loops."""

        def compute() -> tuple[Tensor, ...]:
            assert self.rows.statistics is not None
            loops, degree = self.rows.statistics[:, 1:2], self.rows.statistics[:, 3:]
            scale = degree.pow(-0.5 if self.normalization == "sym" else -1.0)
            return scale.masked_fill(scale == torch.inf, 0), degree, loops

        return self._remembered(self.rows, f"out-degrees {self.normalization}", compute)


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

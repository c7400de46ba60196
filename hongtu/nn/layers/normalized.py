"""The symmetrically normalised adjacency matrix that several layers multiply with.

Legend: R rows of a row-wise call, F columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import Unpack

from hongtu.nn.block import Rows
from hongtu.nn.layer import Common, Convolution, Skip


class NormalizedSum(Convolution):
    """D^-1/2 (A + I) D^-1/2 times z, with D the weighted in-degree, self-loops included (Kipf and Welling).

    Stored self-loops, even repeated ones, count as torch_geometric's ``add_remaining_self_loops`` counts them: the
    weight of the last replaces the added one.

    Args:
        add_self_loops: add I.
        normalize: without it the sum is A z.
        improved: add 2 I instead of I.
        activation, input_dropout: see ``Convolution``.
    """

    reduce: str | None = "sum"
    weighted = True

    def __init__(
        self, add_self_loops: bool = True, normalize: bool = True, improved: bool = False, **common: Unpack[Common]
    ) -> None:
        super().__init__(**common)
        self.improved, self.add_self_loops, self.normalize = improved, add_self_loops, normalize
        self.uses_statistics = normalize

    @property
    def factors(self) -> tuple[bool, bool] | None:  # type: ignore[override]
        return (self.add_self_loops, self.improved) if self.built_in else None

    def spread(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """[R, F] -> z, and the s that ``combine`` wants; x itself where edges have what it would be scaled by."""
        if not self.once_per_vertex:
            return x, None
        z = self.scale_R1() * x if self.normalize else x
        return z, z if self.add_self_loops else None

    @property
    def combines(self) -> bool:
        return self.once_per_vertex

    def combine(self, a: Tensor, s: Skip) -> Tensor:
        loop_R1 = self._loop_correction_R1() if self.add_self_loops else None
        scale_R1 = self.scale_R1() if self.normalize else None
        only = self.context is not None and self.context.gradients_only and self.built_in
        return _Combine.apply(a, s if self.add_self_loops else None, loop_R1, scale_R1, only)

    def scale_R1(self) -> Tensor:
        """[R, 1], D^-1/2."""
        return self._factors_R1()[0]

    def loop_R1(self, rows: Rows) -> Tensor:
        """[R, 1], the weight of the one self-loop of each vertex: its last stored one, or the added one."""
        return self._remembered(rows, "loop", lambda: _loop_R1(rows.statistics, self.improved))

    def _loop_correction_R1(self) -> Tensor:
        """[R, 1], what is missing from the aggregate, which holds every stored self-loop."""
        return self._factors_R1()[1]

    def _factors_R1(self) -> tuple[Tensor, ...]:
        def compute() -> tuple[Tensor, ...]:
            found, key = self.rows.factors, (self.add_self_loops, self.improved)
            return (degree_factors(self.rows.statistics, *key) if found is None else found).split(1, dim=1)

        return self._remembered(self.rows, "factors", compute)

    def _remembered(self, rows: Rows, what: str, compute: Callable[[], Any]) -> Any:
        """The same for most layers of a model."""
        key = what, self.add_self_loops, self.improved
        if key not in rows.memo:
            rows.memo[key] = compute()
        return rows.memo[key]


class _Combine(torch.autograd.Function):
    """(a + loop s) scale; what is None is left out. Without its numbers where only its gradients are wanted."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, s: Skip, loop_R1: Tensor | None, scale_R1: Tensor | None, only: bool) -> Tensor:
        ctx.save_for_backward(loop_R1, scale_R1)
        if only:
            return a.data
        if loop_R1 is None:
            return a.clone() if scale_R1 is None else a * scale_R1
        out = torch.addcmul(a, loop_R1, s)
        return out if scale_R1 is None else out.mul_(scale_R1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        loop_R1, scale_R1 = ctx.saved_tensors
        grad = grad if scale_R1 is None else grad * scale_R1
        return grad, None if loop_R1 is None else grad * loop_R1, None, None, None


def degree_factors(statistics_R3: Tensor, add_self_loops: bool, improved: bool) -> Tensor:
    """[R, 2], as ``Rows.factors``."""
    degree_R1, loops_R1 = statistics_R3[:, :1], statistics_R3[:, 1:2]
    lacks_R1 = _loop_R1(statistics_R3, improved) - loops_R1 if add_self_loops else torch.zeros_like(loops_R1)
    return torch.cat([_or((degree_R1 + lacks_R1).pow(-0.5), posinf=0.0), lacks_R1], dim=1)


def _loop_R1(statistics_R3: Tensor, improved: bool) -> Tensor:
    return _or(statistics_R3[:, 2:3], nan=2.0 if improved else 1.0)


def _or(x: Tensor, nan: float = torch.nan, posinf: float = torch.inf) -> Tensor:
    """x with other numbers in place of these."""
    return torch.nan_to_num(x, nan=nan, posinf=posinf, neginf=-torch.inf)

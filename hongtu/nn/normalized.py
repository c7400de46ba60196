"""The symmetrically normalised adjacency matrix that several layers multiply with.

Legend: R rows of a row-wise call, F columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hongtu.block import Rows
from hongtu.nn.layer import Activation, Convolution, Skip


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
        self,
        add_self_loops: bool = True,
        normalize: bool = True,
        improved: bool = False,
        *,
        activation: Activation = None,
        input_dropout: float = 0.0,
    ) -> None:
        super().__init__(activation, input_dropout)
        self.improved, self.add_self_loops, self.normalize = improved, add_self_loops, normalize
        self.uses_statistics = normalize

    def spread(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """[R, F] -> z, and the s that ``combine`` wants."""
        z = self.scale_R1() * x if self.normalize else x
        return z, z if self.add_self_loops else None

    @property
    def combines(self) -> bool:
        return True

    def combine(self, a: Tensor, s: Skip) -> Tensor:
        if self.add_self_loops:
            a = torch.addcmul(a, self._loop_correction_R1(), s)
        return self.scale_R1() * a if self.normalize else a

    def scale_R1(self) -> Tensor:
        """[R, 1], D^-1/2."""
        key = "normalized scale", self.add_self_loops, self.improved  # the same for most layers of a model
        if key not in self.rows.memo:
            self.rows.memo[key] = self._compute_scale_R1()
        return self.rows.memo[key]

    def loop_R(self, rows: Rows) -> Tensor:
        """[R], the weight of the one self-loop of each vertex: its last stored one, or the added one."""
        last_R = rows.statistics[:, 2]
        return torch.where(last_R.isnan(), 2.0 if self.improved else 1.0, last_R)

    def _loop_correction_R1(self) -> Tensor:
        """[R, 1], what is missing from the aggregate, which holds every stored self-loop."""
        return (self.loop_R(self.rows) - self.rows.statistics[:, 1]).unsqueeze(1)

    def _compute_scale_R1(self) -> Tensor:
        degree_R = self.rows.statistics[:, 0]
        if self.add_self_loops:
            degree_R = degree_R - self.rows.statistics[:, 1] + self.loop_R(self.rows)
        scale_R = degree_R.pow(-0.5)
        return scale_R.masked_fill(scale_R == torch.inf, 0).unsqueeze(1)

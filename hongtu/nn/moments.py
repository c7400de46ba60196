"""Mean and variance of the columns of a vertex tensor, gathered chunk by chunk on every device.

A chunk is centred on its own mean before it is squared, and chunks are merged in float64 (Chan, Golub and LeVeque
1979), so that large means cost no digits. Legend: R rows of a chunk, F columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class Moments:
    """What one device has gathered in a pass.

    Args:
        sums: float64 zeros [2, F] on the device.
        wanted: somebody needs them; else nothing is gathered.

    Attributes:
        rows: seen so far; ``mean`` and ``squares`` (of the distances from the mean, summed) are theirs, [F] each.
    """

    def __init__(self, sums: Tensor, *, wanted: bool = True) -> None:
        self.rows, self.wanted = 0, wanted
        self.mean, self.squares = sums

    def add(self, x: Tensor) -> None:
        """The rows of a chunk, [R, F]."""
        if not self.wanted or not len(x):
            return
        near = x.mean(0)
        centred = x - near
        rest = centred.sum(0).double() / len(x)
        squares = centred.square_().sum(0).double() - len(x) * rest.square()
        self._merge(len(x), near.double() + rest, squares)

    def _merge(self, rows: int, mean: Tensor, squares: Tensor) -> None:
        total = self.rows + rows
        distance = mean - self.mean
        self.mean.add_(distance, alpha=rows / total)
        self.squares.add_(squares).add_(distance.square(), alpha=self.rows * rows / total)
        self.rows = total

    @staticmethod
    def combine(parts: Sequence[Moments]) -> Moments:
        """Those of all devices' or all ranks' rows, on the host."""
        whole = Moments(torch.zeros(2, len(parts[0].mean), dtype=torch.float64), wanted=parts[0].wanted)
        for part in parts:
            if part.rows:
                whole._merge(part.rows, part.mean.cpu(), part.squares.cpu())
        return whole

    def with_others(self, gather: Callable[[Any], Sequence[Any]]) -> Moments:
        """Together with those of other ranks, if somebody wants them; ``gather`` gets every rank's numbers."""
        if not self.wanted:
            return self
        found = []
        for rows, *sums in gather((self.rows, self.mean, self.squares)):
            found.append(Moments(torch.stack(sums)))
            found[-1].rows = rows
        return Moments.combine(found)

    @property
    def statistics(self) -> tuple[Tensor, ...]:
        """Mean and biased variance, float64 [F] each; () where nobody wanted them."""
        return (self.mean, (self.squares / self.rows).clamp_(min=0)) if self.wanted else ()

"""Features of which most numbers are zero, for stages that do nothing with them but drop elements and multiply by
weights: x W^T is a sum over a row's numbers, as an aggregate is over a vertex's in-edges.

Legend: R rows, K stored numbers, F columns of the features, F' columns of a result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hongtu.kernels.dispatch import kernels_for


@dataclass(frozen=True, eq=False)
class SparseInput:
    """Rows in CSR, in place of a matrix [R, F].

    Attributes:
        start: int64 [R + 1].
        column: int32 [K].
        value: float [K].
        width: F.
    """

    start: Tensor
    column: Tensor
    value: Tensor
    width: int

    def __len__(self) -> int:
        return len(self.start) - 1

    @property
    def dtype(self) -> torch.dtype:
        return self.value.dtype

    @property
    def device(self) -> torch.device:
        return self.value.device

    def mapped(self, weight: Tensor, bias: Tensor | None = None, *, gradients_only: bool = False) -> Tensor:
        """x W^T + b [R, F'], of a weight [F', F]; ``gradients_only``: there are no numbers in it."""
        return _Mapped.apply(self, weight, bias, gradients_only)


def linear_map(x: Tensor | SparseInput, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b, as ``torch.nn.functional.linear``."""
    return x.mapped(weight, bias) if isinstance(x, SparseInput) else torch.nn.functional.linear(x, weight, bias)


def applied(linear: torch.nn.Module, x: Tensor | SparseInput) -> Tensor:
    """``linear(x)``, a module that ``is_plain`` where x is sparse."""
    return x.mapped(linear.weight, linear.bias) if isinstance(x, SparseInput) else linear(x)


class _Mapped(torch.autograd.Function):
    """The features are given: no gradient of them is asked for."""

    @staticmethod
    def forward(ctx: Any, x: SparseInput, weight: Tensor, bias: Tensor | None, gradients_only: bool) -> Tensor:
        ctx.x = x
        if gradients_only:
            return weight.new_zeros(()).expand(len(x), len(weight))
        by_column_FF, out = weight.t().contiguous(), weight.new_empty((len(x), len(weight)))
        kernels_for(out).csc_aggregate(*_matrix(x), by_column_FF, out)
        return out if bias is None else out.add_(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, (_, of_weight, of_bias, _) = ctx.x, ctx.needs_input_grad
        by_column_FF = None
        if of_weight:
            by_column_FF = grad.new_zeros((x.width, grad.shape[1]))
            kernels_for(grad).csc_aggregate_transpose(*_matrix(x), grad.contiguous(), by_column_FF)
        return None, None if by_column_FF is None else by_column_FF.t(), grad.sum(0) if of_bias else None, None


def _matrix(x: SparseInput) -> tuple[Tensor, Tensor, Tensor, Tensor, bool]:
    """As kernels take the edges of a chunk: columns are sources, all of which have a row."""
    return x.start, x.column, x.column.new_empty(0), x.value, False

"""Reductions of rows over the in-edges of each destination, by name, as torch_geometric.nn.aggr has them.

Legend: D destinations, S sources, E edges, F features. All map [S, F] to [D, F]. Except for ``mul``
nothing of [E, F] is made on the CPU: what depends on one row is computed once per source.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from hongtu.nn.ops import aggregates, reductions


class InEdges(Protocol):
    """What a reduction needs of a Block."""

    indptr: Tensor
    local_source: Tensor
    edge_weight: Tensor | None

    @property
    def dst_of_edge(self) -> Tensor: ...

    @property
    def num_dst(self) -> int: ...

    def sum(self, x: Tensor, weighted: bool = False) -> Tensor: ...

    def mean(self, x: Tensor, weighted: bool = False) -> Tensor: ...


def reduce(block: InEdges, x: Tensor, how: str, weighted: bool = False) -> Tensor:
    """One reduction by its name.

    Raises:
        ValueError: for an unknown name, or for edge weights where the reduction has no weighted form.
    """
    if how in ("sum", "add"):
        return block.sum(x, weighted)
    if how == "mean":
        return block.mean(x, weighted)
    if how in ("max", "min"):
        weight = block.edge_weight if weighted else None
        return reductions.extremum(x, block.indptr, block.local_source, weight, largest=how == "max")
    if how not in _UNWEIGHTED:
        raise ValueError(f"reduction {how!r}: expected one of {', '.join(NAMES)}")
    if weighted and block.edge_weight is not None:
        raise ValueError(f"reduction {how!r} has no weighted form: expected sum, mean, max or min, or no edge weights")
    return _UNWEIGHTED[how](block, x)


def product(block: InEdges, x: Tensor) -> Tensor:
    """The product over in-edges, 1 without any."""
    values_EF = aggregates.edge_gather(x, block.local_source)
    index = block.dst_of_edge.unsqueeze(1).expand_as(values_EF)
    return x.new_ones((block.num_dst, x.shape[1])).scatter_reduce(0, index, values_EF, "prod")


def variance(block: InEdges, x: Tensor, semi_grad: bool = False) -> Tensor:
    """mean(x^2) - mean(x)^2; with ``semi_grad`` the first mean gets no gradient."""
    mean = block.mean(x)
    squares = x.detach() if semi_grad else x
    return block.mean(squares * squares) - mean * mean


def deviation(block: InEdges, x: Tensor, semi_grad: bool = False) -> Tensor:
    """The square root of the variance, 0 and without a gradient where that is at most 1e-5."""
    out = variance(block, x, semi_grad).clamp(min=1e-5).sqrt()
    return out.masked_fill(out <= math.sqrt(1e-5), 0.0)


def softmax(block: InEdges, x: Tensor, t: Tensor | float = 1.0, semi_grad: bool = False) -> Tensor:
    """sum of softmax(t x) * x, per column (Li et al., DeeperGCN); ``semi_grad``: the shares get none."""
    t_F = torch.as_tensor(t, dtype=x.dtype, device=x.device).expand(x.shape[1])
    return reductions.softmax_sum(x, t_F, block.indptr, block.local_source, semi_grad)


def power_mean(
    block: InEdges,
    x: Tensor,
    p: Tensor | float = 1.0,
    clamp_min: float | None = 1e-4,
    clamp_max: float | None = 100.0,
) -> Tensor:
    """mean(x^p)^(1/p) (DeeperGCN), x and the mean clamped; the plain mean for the number p = 1."""
    if not isinstance(p, Tensor) and p == 1:
        return block.mean(x)
    mean = block.mean(x.clamp(min=clamp_min, max=clamp_max).pow(p))
    return mean.clamp(min=clamp_min, max=clamp_max).pow(1.0 / p)


_UNWEIGHTED: dict[str, Callable[[InEdges, Tensor], Tensor]] = {
    "mul": product,
    "var": variance,
    "std": deviation,
    "softmax": softmax,
    "powermean": power_mean,
}
NAMES = ("sum", "add", "mean", "max", "min", *_UNWEIGHTED)

"""Aggregations with options or parameters, as their namesakes in torch_geometric.nn.aggr.

Legend: D destinations, S sources, F columns. Each maps a block and [S, F] to [D, F'].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hongtu.nn.ops import aggregates

LINEAR = ("sum", "add", "mean")
SCALERS = ("identity", "amplification", "attenuation", "linear", "inverse_linear")


class InEdges(Protocol):
    """What an aggregation needs of a Block."""

    indptr: Tensor
    local_source: Tensor
    edge_weight: Tensor | None

    @property
    def dst_of_edge(self) -> Tensor: ...

    @property
    def num_dst(self) -> int: ...

    def sum(self, x: Tensor, weighted: bool = False) -> Tensor: ...

    def mean(self, x: Tensor, weighted: bool = False) -> Tensor: ...


class Aggregation(nn.Module):
    """The base class of aggregations."""

    def forward(self, block: InEdges, x: Tensor, weighted: bool = False) -> Tensor:
        """x float [S, F] -> [D, F'], times the edge weights if ``weighted`` and the graph has any.

        Raises:
            ValueError: for edge weights where there is no weighted form.
        """
        raise NotImplementedError

    def columns(self, given: int) -> int:
        """F' of F."""
        return given


class Reduction(Aggregation):
    """A reduction without options, by its name: "sum" ("add"), "mean", "max" or "min"."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, block: InEdges, x: Tensor, weighted: bool = False) -> Tensor:
        if self.how in ("max", "min"):
            weight = block.edge_weight if weighted else None
            return aggregates.extremum(x, block.indptr, block.local_source, weight, largest=self.how == "max")
        return block.mean(x, weighted) if self.how == "mean" else block.sum(x, weighted)

    def extra_repr(self) -> str:
        return self.how


class _Unweighted(Aggregation):
    """An aggregation that knows no edge weights; ``how`` is its name."""

    how: str

    def forward(self, block: InEdges, x: Tensor, weighted: bool = False) -> Tensor:
        if weighted and block.edge_weight is not None:
            raise ValueError(
                f"reduction {self.how!r} has no weighted form: expected sum, mean, max or min, or no edge weights"
            )
        return self.aggregate(block, x)

    def aggregate(self, block: InEdges, x: Tensor) -> Tensor:
        raise NotImplementedError


class MulAggregation(_Unweighted):
    """The product over in-edges, 1 without any; makes rows of edges."""

    how = "mul"

    def aggregate(self, block: InEdges, x: Tensor) -> Tensor:
        values_EF = aggregates.edge_gather(x, block.local_source)
        index = block.dst_of_edge.unsqueeze(1).expand_as(values_EF)
        return x.new_ones((block.num_dst, x.shape[1])).scatter_reduce(0, index, values_EF, "prod")


class VarAggregation(_Unweighted):
    """mean(x^2) - mean(x)^2; ``semi_grad``: without a gradient of the first mean."""

    how = "var"

    def __init__(self, semi_grad: bool = False) -> None:
        super().__init__()
        self.semi_grad = semi_grad

    def aggregate(self, block: InEdges, x: Tensor) -> Tensor:
        mean = block.mean(x)
        squares = x.detach() if self.semi_grad else x
        return block.mean(squares * squares) - mean * mean


class StdAggregation(VarAggregation):
    """The square root of ``VarAggregation``, 0 and without a gradient where the variance is at most 1e-5."""

    how = "std"

    def aggregate(self, block: InEdges, x: Tensor) -> Tensor:
        out = super().aggregate(block, x).clamp(min=1e-5).sqrt()
        return out.masked_fill(out <= math.sqrt(1e-5), 0.0)


def _check_learned(name: str, learn: bool, channels: int) -> None:
    if not learn and channels != 1:
        raise ValueError(f"{name}(channels={channels}): expected learn=True, or channels=1")


class SoftmaxAggregation(_Unweighted):
    """sum of softmax(t x) * x, per column (Li et al., DeeperGCN).

    Args:
        t: inverse temperature; the initial one if ``learn`` makes it a parameter [channels].
        semi_grad: no gradient of the shares.
        channels: 1, or F for one t per column.
    """

    how = "softmax"

    def __init__(self, t: float = 1.0, learn: bool = False, semi_grad: bool = False, channels: int = 1) -> None:
        super().__init__()
        _check_learned("SoftmaxAggregation", learn, channels)
        if learn and semi_grad:
            raise ValueError("SoftmaxAggregation(learn=True, semi_grad=True): a learned t needs the shares' gradient")
        self.learn, self.semi_grad = learn, semi_grad
        self.t = nn.Parameter(torch.full((channels,), float(t))) if learn else t

    def aggregate(self, block: InEdges, x: Tensor) -> Tensor:
        t_F = torch.as_tensor(self.t, dtype=x.dtype, device=x.device).expand(x.shape[1])
        return aggregates.softmax_sum(x, t_F, block.indptr, block.local_source, self.semi_grad)


class PowerMeanAggregation(_Unweighted):
    """mean(x^p)^(1/p) (Li et al., DeeperGCN).

    Args:
        p: power; the initial one if ``learn`` makes it a parameter [channels]. The number 1 gives the plain mean.
        channels: 1, or F for one p per column.
        clamp_min, clamp_max: bounds of x and of the mean of its powers, or None.
    """

    how = "powermean"

    def __init__(
        self,
        p: float = 1.0,
        learn: bool = False,
        channels: int = 1,
        clamp_min: float | None = 1e-4,
        clamp_max: float | None = 100.0,
    ) -> None:
        super().__init__()
        _check_learned("PowerMeanAggregation", learn, channels)
        self.learn, self.clamp_min, self.clamp_max = learn, clamp_min, clamp_max
        self.p = nn.Parameter(torch.full((channels,), float(p))) if learn else p

    def aggregate(self, block: InEdges, x: Tensor) -> Tensor:
        if not isinstance(self.p, Tensor) and self.p == 1:
            return block.mean(x)
        mean = block.mean(x.clamp(min=self.clamp_min, max=self.clamp_max).pow(self.p))
        return mean.clamp(min=self.clamp_min, max=self.clamp_max).pow(1.0 / self.p)


class MultiAggregation(Aggregation):
    """Several aggregations side by side (Corso et al., PNA).

    Args:
        aggrs: names or aggregations.
        aggrs_kwargs: options of each that is a name.
    """

    def __init__(
        self, aggrs: Sequence[str | Aggregation], aggrs_kwargs: Sequence[dict[str, Any]] | None = None
    ) -> None:
        super().__init__()
        options = [{}] * len(aggrs) if aggrs_kwargs is None else aggrs_kwargs
        if len(aggrs) == 0 or len(options) != len(aggrs):
            raise ValueError(f"MultiAggregation: {len(aggrs)} aggrs and {len(options)} aggrs_kwargs, expected as many")
        self.aggrs = nn.ModuleList(make_aggregation(a, o) for a, o in zip(aggrs, options, strict=True))

    def forward(self, block: InEdges, x: Tensor, weighted: bool = False) -> Tensor:
        return torch.cat([aggr(block, x, weighted) for aggr in self.aggrs], dim=-1)

    def columns(self, given: int) -> int:
        return sum(aggr.columns(given) for aggr in self.aggrs)


class DegreeScaler(nn.Module):
    """Scales rows by functions of the in-degree, the results side by side (Corso et al., PNA).

    Args:
        scaler: names of ``SCALERS``.
        deg: int64 [longest], histogram of in-degrees (``degree_histogram``).
        train_norm: make the two averages parameters, ``avg_deg_lin`` and ``avg_deg_log`` [1]; else they are buffers.
    """

    def __init__(self, scaler: str | Sequence[str], deg: Tensor, train_norm: bool = False) -> None:
        super().__init__()
        self.scaler = [scaler] if isinstance(scaler, str) else list(scaler)
        unknown = [name for name in self.scaler if name not in SCALERS]
        if unknown or not self.scaler:
            raise ValueError(f"scalers {self.scaler}: expected some of {', '.join(SCALERS)}")
        deg = deg.to(torch.float)
        if deg.ndim != 1 or int(deg.sum()) == 0:
            raise ValueError(f"deg {tuple(deg.shape)} of sum {float(deg.sum())}: expected a histogram of in-degrees")
        degrees = torch.arange(len(deg), device=deg.device)
        lin, log = (float((value * deg).sum()) / int(deg.sum()) for value in (degrees, (degrees + 1).log()))
        for name, value in (("avg_deg_lin", lin), ("avg_deg_log", log)):
            if train_norm:
                self.register_parameter(name, nn.Parameter(torch.tensor([value])))
            else:
                self.register_buffer(name, torch.tensor([value]))

    def forward(self, block: InEdges, x: Tensor) -> Tensor:
        """x float [D, ..., F] -> [D, ..., k F]."""
        degree = block.indptr.diff().to(x.dtype).view(-1, *[1] * (x.dim() - 1))
        return torch.cat([x if name == "identity" else x * self._factor(name, degree) for name in self.scaler], dim=-1)

    def _factor(self, name: str, degree: Tensor) -> Tensor:
        if name == "amplification":
            return torch.log(degree + 1) / self.avg_deg_log
        if name == "attenuation":
            return self.avg_deg_log / torch.log(degree.clamp(min=1) + 1)
        if name == "linear":
            return degree / self.avg_deg_lin
        return self.avg_deg_lin / degree.clamp(min=1)


_UNWEIGHTED: dict[str, type[_Unweighted]] = {
    kind.how: kind
    for kind in (MulAggregation, VarAggregation, StdAggregation, SoftmaxAggregation, PowerMeanAggregation)
}
NAMES = (*LINEAR, "max", "min", *_UNWEIGHTED)


def make_aggregation(
    aggr: str | Aggregation | Sequence[str | Aggregation], options: dict[str, Any] | None = None
) -> Aggregation:
    """An aggregation from its name, or several from several names.

    Raises:
        ValueError: for an unknown name.
    """
    options = options or {}
    if isinstance(aggr, Aggregation):
        return aggr
    if not isinstance(aggr, str):
        return MultiAggregation(aggr, **options)
    if aggr in _UNWEIGHTED and (not options or aggr != "mul"):
        return _UNWEIGHTED[aggr](**options)
    if aggr not in NAMES or options:
        raise ValueError(
            f"aggr {aggr!r}{f' with options {options}' if options else ''}: expected one of "
            f"{', '.join(NAMES)}; wrap torch_geometric's others, but 'lstm': hongtu.nn.PyGLayer(conv)"
        )
    return Reduction(aggr)


_WITHOUT_OPTIONS = {name: make_aggregation(name) for name in NAMES}


def reduce(block: InEdges, x: Tensor, how: str, weighted: bool = False) -> Tensor:
    """[S, F] -> [D, F], by a name without options.

    Raises:
        ValueError: for an unknown name, or for edge weights where the reduction has no weighted form.
    """
    if how not in _WITHOUT_OPTIONS:
        raise ValueError(f"reduction {how!r}: expected one of {', '.join(NAMES)}")
    return _WITHOUT_OPTIONS[how].forward(block, x, weighted)

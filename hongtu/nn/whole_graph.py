"""A normalisation in the layer list, as the engine runs it: a layer that needs no neighbours but statistics of V rows.

Its ``z`` is the input x, its aggregate the identity, and ``update`` normalises. Backward, a row's gradient has a part
by way of the statistics: with d_mean and d_var the gradients of these, summed over all rows of the result, it is
d_mean / V + 2 * d_var * (x - mean) / V.

Mean and variance are gathered chunk by chunk on every device. A chunk is centred on its own mean before it is squared,
and chunks are merged in float64 (Chan, Golub and LeVeque 1979), so that large means cost no digits. Legend: R rows of a
chunk, F columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hongtu.errors import InputError
from hongtu.kernels.torch_private import is_pyg
from hongtu.nn.block import Block
from hongtu.nn.layer import Layer, Skip
from hongtu.nn.norm import (
    BatchNorm,
    GraphNorm,
    LayerNorm,
    Normalization,
    PairNorm,
    TorchBatchNorm,
    affine,
    statistics_of,
)


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


_SAME = {kind.__name__: kind for kind in (BatchNorm, GraphNorm, PairNorm, LayerNorm)}  # torch_geometric's names


def rules_of(module: torch.nn.Module) -> Any:
    """The class whose ``normalize``, ``fixed`` and ``observe`` say what a module of the layer list does, given the
    module in place of self; None for a module that is no normalisation over the graph."""
    if isinstance(module, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d | torch.nn.BatchNorm3d):
        return TorchBatchNorm
    foreign = is_pyg(module, "nn.norm")
    rules = _SAME.get(type(module).__name__) if foreign else type(module) if isinstance(module, Normalization) else None
    return None if getattr(module, "mode", "graph") == "node" else rules


class WholeGraphNorm(Layer):
    """The normalisation ``module``, between two stages.

    Args:
        module: of the layer list; its parameters and buffers stay its own.
        rules: what ``rules_of`` gives for it.
    """

    BYTES_PER_COLUMN = 8 * 8  # of statistics, their gradients, and sums on the way to them, on a device

    def __init__(self, module: torch.nn.Module, rules: Any) -> None:
        super().__init__()
        self.module, self.rules = module, rules
        self.vertices, self.form = 0, torch.Size()  # of a row, where it has several dimensions: channels first
        self.mean: Tensor | None = None
        self.var: Tensor | None = None

    @property
    def linear_aggregate(self) -> bool:
        return True

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        if h.ndim == 2:
            return h, None
        self.form = h.shape[1:]
        if self.rules not in (TorchBatchNorm, BatchNorm) or h.ndim < 2 or self.form[0] != self.channels:
            raise InputError(
                f"{type(self.module).__name__} is called with values [rows{', ...' * (h.ndim > 1)}] of shape "
                f"{tuple(h.shape)}, expected [rows, columns]"
                + "; torch.nn.BatchNorm1d takes [rows, channels, ...], and torch.nn.LayerNorm any rows"
                * (h.ndim > 1)
            )
        return h.flatten(1), None

    def aggregate(self, block: Block, z: Tensor, s: Skip) -> Tensor:
        return z

    def update(self, a: Tensor, s: Skip) -> Tensor:
        """[R, F] -> [R, F'], by the fixed statistics, those that are set, or, in a trial on toy rows, those of a."""
        mean, var = self.rules.fixed(self.module, self.vertices or len(a)) or (self.mean, self.var)
        if mean is None or var is None:
            mean, var = statistics_of(a)
        return self._normalized(a, mean, var)

    @property
    def channels(self) -> int:
        module: Any = self.module
        return int(getattr(module, "num_features", 0) or module.in_channels)

    def _normalized(self, a: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        if not self.form:
            return self.rules.normalize(self.module, a, mean, var)
        a = a.view(len(a), self.channels, self.form[1:].numel()).transpose(1, 2)
        rows = self.rules.normalize(self.module, a.flatten(0, 1), *self._of_channels(mean, var))
        return rows.view(a.shape).transpose(1, 2).reshape(len(a), *self.form)

    def _of_channels(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of channels [C], of those of their columns; running ones are such already."""
        if not self.form or len(mean) == self.channels:
            return mean, var
        mean, var = mean.view(self.channels, -1), var.view(self.channels, -1)
        whole = mean.mean(1)
        return whole, (var + (mean - whole[:, None]).square()).mean(1)

    def of_rows(self, a: Tensor, s: Skip) -> Tensor:
        """``update`` by statistics that do not depend on the rows: mean 0, variance 1."""
        mean = a.new_zeros(a.shape[1])
        return self._normalized(a, mean, mean + 1)

    def gathers(self, vertices: int) -> bool:
        """Whether the statistics of the graph are needed now."""
        return self.rules.fixed(self.module, vertices) is None

    def set_statistics(self, statistics: tuple[Tensor, ...], where: torch.device, vertices: int) -> None:
        """Mean and variance of this pass, on a device of its own, if it gathered them; what comes back to them is added
        up in their gradients."""
        if statistics:
            self.mean, self.var = (statistic.to(where, copy=True).requires_grad_() for statistic in statistics)
            self.mean.grad, self.var.grad = torch.zeros_like(self.mean), torch.zeros_like(self.var)
            self.vertices = vertices

    @property
    def gradients(self) -> tuple[Tensor, ...]:
        """What came back to the statistics, float64 [F] each; none where there are none."""
        return tuple(x.grad for x in (self.mean, self.var) if x is not None and x.grad is not None)

    def forget(self) -> None:
        """Use no statistics from before."""
        self.mean = self.var = None
        self.vertices = 0

    def observe(self) -> None:
        """Running statistics learn of this epoch's."""
        if self.module.training and self.mean is not None and self.var is not None:
            with torch.no_grad():
                found = self._of_channels(self.mean.detach(), self.var.detach())
                self.rules.observe(self.module, *found, self.vertices * self.form[1:].numel())

    def with_gradient_through_statistics(self, x: Tensor, grad: Tensor, own: int) -> Tensor:
        """[R, F], the gradient of rows x together with what reached them by way of the statistics, if such were
        gathered: of the first rows, ``own`` of them."""
        if self.mean is None or self.var is None:
            return grad
        with torch.no_grad():
            by_mean, by_var = self.mean.grad / self.vertices, self.var.grad * (2 / self.vertices)
            more = affine(x.detach(), self.mean, by_var, by_mean)
            more[own:] = 0
            return more.add_(grad)

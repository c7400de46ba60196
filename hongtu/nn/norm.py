"""Normalisations by the mean and the variance of columns over all vertices of the graph.

Each is a row-wise function of x and of those two statistics, which the engine gathers over all chunks. Statistics and
what is made of them alone are float64. Legend: V vertices, R rows, F columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hongtu.errors import InputError, names_known

Columns = tuple[Tensor, Tensor]  # mean and biased variance, float64 [F] each


class Normalization(torch.nn.Module):
    """A module between layers whose result depends on statistics of the whole graph.

    A subclass gives ``normalize``, in which the statistics are differentiable inputs like x; ``fixed`` and ``observe``
    only where there are running statistics.
    """

    def normalize(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        """x [R, F], mean and biased var float64 [F] of all V rows -> [R, F']; treats each row alone."""
        raise NotImplementedError(f"{type(self).__name__}: define normalize(x, mean, var)")

    def fixed(self, vertices: int) -> Columns | None:
        """Statistics to use in place of the graph's, or None.

        Raises:
            InputError: when the graph has too few vertices.
        """
        return None

    def observe(self, mean: Tensor, var: Tensor, vertices: int) -> None:
        """Called once per training epoch, after its gradients."""

    def forward(self, x: Tensor) -> Tensor:
        """[V, F] -> [V, F'], all rows at once; hongtu.Trainer does the same chunk by chunk."""
        fixed = self.fixed(len(x))
        mean, var = fixed or statistics_of(x)
        if fixed is None and self.training:
            self.observe(mean.detach(), var.detach(), len(x))
        return self.normalize(x, mean, var)


def statistics_of(x: Tensor) -> Columns:
    """Mean and biased variance of all columns."""
    x = x.double()
    return x.mean(0), x.var(0, correction=0)


def affine(x: Tensor, mean: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """(x - mean) * scale + bias; mean, scale and bias float64 [F] or scalar.

    What a float32 cannot hold of the mean goes into the bias, so that large means cost no digits.
    """
    near = mean.detach().to(x.dtype)
    offset = -(mean - near.double()) * scale
    offset = offset if bias is None else offset + bias
    return torch.addcmul(offset.to(x.dtype), x - near, scale.to(x.dtype))


@names_known
class BatchNorm(Normalization):
    """(x - mean) / sqrt(var + eps) * weight + bias, as torch_geometric's BatchNorm; running statistics in evaluation.

    ``torch.nn.BatchNorm1d`` itself may stand in the layer list, too.

    Args:
        in_channels: F.
        eps: added to the variance.
        momentum: of the running statistics; None: their mean over all epochs.
        affine: with weight and bias.
        track_running_stats: keep running statistics; else those of the graph are used in evaluation, too.
        allow_single_element: one vertex is normalised by the running statistics; else it is refused.
    """

    def __init__(
        self,
        in_channels: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        allow_single_element: bool = False,
    ) -> None:
        super().__init__()
        if allow_single_element and not track_running_stats:
            raise ValueError("BatchNorm(allow_single_element=True) needs track_running_stats=True")
        self.module = torch.nn.BatchNorm1d(in_channels, eps, momentum, affine, track_running_stats)
        self.in_channels, self.allow_single_element = in_channels, allow_single_element

    def normalize(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return TorchBatchNorm.normalize(self.module, x, mean, var)

    def fixed(self, vertices: int) -> Columns | None:
        if self.allow_single_element and vertices == 1:
            return _running(self.module)
        return TorchBatchNorm.fixed(self.module, vertices)

    def observe(self, mean: Tensor, var: Tensor, vertices: int) -> None:
        TorchBatchNorm.observe(self.module, mean, var, vertices)


class TorchBatchNorm:
    """What a ``torch.nn.BatchNorm1d`` does; its methods take that module in place of self."""

    @staticmethod
    def normalize(module: Any, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        scale = (var + module.eps).rsqrt()
        if module.weight is not None:
            scale = scale * module.weight.double()
        return affine(x, mean, scale, None if module.bias is None else module.bias.double())

    @staticmethod
    def fixed(module: Any, vertices: int) -> Columns | None:
        if not module.training and module.running_mean is not None:
            return _running(module)
        if vertices == 1:
            raise InputError(
                "BatchNorm needs the statistics of more than 1 vertex; use LayerNorm, or put it into evaluation mode"
            )
        return None

    @staticmethod
    def observe(module: Any, mean: Tensor, var: Tensor, vertices: int) -> None:
        if not module.track_running_stats or module.running_mean is None:
            return
        module.num_batches_tracked.add_(1)
        share = 1.0 / float(module.num_batches_tracked) if module.momentum is None else module.momentum
        module.running_mean.lerp_(mean.to(module.running_mean), share)
        module.running_var.lerp_((var * (vertices / (vertices - 1))).to(module.running_var), share)


def _running(module: Any) -> Columns:
    return module.running_mean.double(), module.running_var.double()


@names_known
class GraphNorm(Normalization):
    """With c = x - mean_scale * mean: c / sqrt(mean of c^2 + eps) * weight + bias, as torch_geometric's GraphNorm.

    Args:
        in_channels: F.
        eps: added to the mean square.
    """

    def __init__(self, in_channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.in_channels, self.eps = in_channels, eps
        self.weight = torch.nn.Parameter(torch.ones(in_channels))
        self.bias = torch.nn.Parameter(torch.zeros(in_channels))
        self.mean_scale = torch.nn.Parameter(torch.ones(in_channels))

    def normalize(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        taken = self.mean_scale.double() * mean
        square = var + (mean - taken).square()
        scale = self.weight.double() * (square + self.eps).rsqrt()
        return affine(x, taken, scale, self.bias.double())

    def extra_repr(self) -> str:
        return f"{self.in_channels}, eps={self.eps}"


@names_known
class PairNorm(Normalization):
    """scale * c / sqrt(eps + mean of |c|^2) with c = x - mean, as torch_geometric's PairNorm.

    Args:
        scale: s.
        scale_individually: divide each row by its own norm: scale * c / (eps + |c|).
        eps: see there.
    """

    def __init__(self, scale: float = 1.0, scale_individually: bool = False, eps: float = 1e-5) -> None:
        super().__init__()
        self.scale, self.scale_individually, self.eps = scale, scale_individually, eps

    def normalize(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        if self.scale_individually:
            centred = affine(x, mean, mean.new_tensor(1.0))
            return self.scale * centred / (self.eps + centred.norm(2, -1, keepdim=True))
        return affine(x, mean, self.scale * (self.eps + var.sum()).rsqrt())

    def extra_repr(self) -> str:
        return f"scale={self.scale}, scale_individually={self.scale_individually}, eps={self.eps}"


@names_known
class LayerNorm(Normalization):
    """As torch_geometric's LayerNorm; mode "graph": (x - mean) / (std + eps) * weight + bias over all elements of all
    rows; mode "node": torch.nn.LayerNorm, row by row.

    Args:
        in_channels: F.
        eps: see there.
        affine: with weight and bias [F].
        mode: "graph" or "node".
    """

    def __init__(self, in_channels: int, eps: float = 1e-5, affine: bool = True, mode: str = "graph") -> None:
        super().__init__()
        if mode not in ("graph", "node"):
            raise ValueError(f"LayerNorm(mode={mode!r}): expected 'graph' or 'node'")
        self.in_channels, self.eps, self.affine, self.mode = in_channels, eps, affine, mode
        self.register_parameter("weight", torch.nn.Parameter(torch.ones(in_channels)) if affine else None)
        self.register_parameter("bias", torch.nn.Parameter(torch.zeros(in_channels)) if affine else None)

    def normalize(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        of_all = mean.mean()
        scale = 1 / ((var + (mean - of_all).square()).mean().sqrt() + self.eps)
        if self.weight is None or self.bias is None:
            return affine(x, of_all, scale)
        return affine(x, of_all, scale * self.weight.double(), self.bias.double())

    def forward(self, x: Tensor) -> Tensor:
        if self.mode == "graph":
            return super().forward(x)
        return torch.nn.functional.layer_norm(x, (self.in_channels,), self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, eps={self.eps}, affine={self.affine}, mode={self.mode}"

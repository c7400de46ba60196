"""Graph convolution (Kipf and Welling), as torch_geometric's GCNConv."""

from __future__ import annotations

import torch
from torch import Tensor

from hongtu.nn.layer import Activation, Convolution, Skip, linear


class GCNConv(Convolution):
    """h' = D^-1/2 (A + I) D^-1/2 h W^T + b, with D the weighted in-degree, self-loops included.

    Stored self-loops, even repeated ones, count as torch_geometric's ``add_remaining_self_loops`` counts them: the
    weight of the last replaces the added one. ``improved`` adds 2 I, as documented there; torch_geometric 2.8 adds I
    on a graph without edge weights.

    Args:
        in_channels, out_channels: widths of h and h'.
        improved: add 2 I instead of I.
        add_self_loops: default: the value of ``normalize``.
        normalize: without it h' = A h W^T + b.
        bias: add b.
        activation, input_dropout: see ``Convolution``.
    """

    reduce = "sum"
    weighted = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        improved: bool = False,
        add_self_loops: bool | None = None,
        normalize: bool = True,
        bias: bool = True,
        activation: Activation = None,
        input_dropout: float = 0.0,
    ) -> None:
        super().__init__(activation, input_dropout)
        if add_self_loops is None:
            add_self_loops = normalize
        if add_self_loops and not normalize:
            raise ValueError("GCNConv(add_self_loops=True, normalize=False): self-loops need normalize=True")
        self.in_channels, self.out_channels = in_channels, out_channels
        self.improved, self.add_self_loops, self.normalize = improved, add_self_loops, normalize
        self.uses_statistics = normalize
        self.lin = linear(in_channels, out_channels, bias=False, glorot_weight=True)
        self.register_parameter("bias", torch.nn.Parameter(torch.zeros(out_channels)) if bias else None)

    @property
    def can_transform_first(self) -> bool:
        return True

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        x = self.input_dropout(h)
        if self.transform_first:
            x = self.lin(x)
        z = self._scale_R1() * x if self.normalize else x
        return z, z if self.add_self_loops else None

    @property
    def combines(self) -> bool:
        return True

    def combine(self, a: Tensor, s: Skip) -> Tensor:
        if self.add_self_loops:
            a = torch.addcmul(a, self._loop_correction_R1(), s)
        return self._scale_R1() * a if self.normalize else a

    def update(self, a: Tensor, s: Skip) -> Tensor:
        if not self.transform_first:
            return self.activate(torch.nn.functional.linear(a, self.lin.weight, self.bias), fresh=True)
        return self.activate(a) if self.bias is None else self.activate(a + self.bias, fresh=True)

    def _loop_R(self) -> Tensor:
        """[R], the weight of the one self-loop of each vertex: its last stored one, or the added one."""
        last_R = self.rows.statistics[:, 2]
        return torch.where(last_R.isnan(), 2.0 if self.improved else 1.0, last_R)

    def _loop_correction_R1(self) -> Tensor:
        """[R, 1], what is missing from the aggregate, which holds every stored self-loop."""
        return (self._loop_R() - self.rows.statistics[:, 1]).unsqueeze(1)

    def _scale_R1(self) -> Tensor:
        key = "gcn scale", self.add_self_loops, self.improved  # the same for most layers of a model
        if key not in self.rows.memo:
            self.rows.memo[key] = self._compute_scale_R1()
        return self.rows.memo[key]

    def _compute_scale_R1(self) -> Tensor:
        degree_R = self.rows.statistics[:, 0]
        if self.add_self_loops:
            degree_R = degree_R - self.rows.statistics[:, 1] + self._loop_R()
        scale_R = degree_R.pow(-0.5)
        return scale_R.masked_fill(scale_R == torch.inf, 0).unsqueeze(1)

"""The symmetrically normalised adjacency matrix that several layers multiply with, GCNConv and GCN2Conv, as
torch_geometric's.

Legend: R rows of a row-wise call, F columns.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import Unpack

from hongtu.graph.paper_edges import PaperEdges
from hongtu.nn.block import Rows
from hongtu.nn.convolution import Common, Convolution, glorot, linear, zeros
from hongtu.nn.layer import Skip, is_product


class NormalizedSum(Convolution):
    """D^-1/2 (A + I) D^-1/2 times z, with D the weighted in-degree, self-loops included (Kipf and Welling).

    Stored self-loops, even repeated ones, count as torch_geometric's ``add_remaining_self_loops`` counts them: the
    weight of the last replaces the added one.

    Args:
        add_self_loops: add I.
        normalize: without it the sum is A z.
        improved: add 2 I instead of I.
        activation, input_dropout: see ``Convolution``.

    Attributes:
        stored_loops: "replace": the last replaces the added one; of a graph that was given as a matrix
            torch_geometric's ``gcn_norm`` adds I to what torch's sparse tensors have ("add"), and puts I in place of
            what a ``SparseTensor`` has ("drop").
    """

    reduce: str | None = "sum"
    weighted = True
    stored_loops = "replace"

    def __init__(
        self, add_self_loops: bool = True, normalize: bool = True, improved: bool = False, **common: Unpack[Common]
    ) -> None:
        super().__init__(**common)
        self.improved, self.add_self_loops, self.normalize = improved, add_self_loops, normalize
        self.uses_statistics = normalize

    @property
    def factors(self) -> tuple[bool, bool, str] | None:  # type: ignore[override]
        return self._loops if self.built_in else None

    @property
    def _loops(self) -> tuple[bool, bool, str]:
        return self.add_self_loops, self.improved, self.stored_loops

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
        """[R, 1], the weight of the one self-loop of each vertex."""
        return self._remembered(rows, "loop", lambda: _loop_R1(rows.statistics, *self._loops[1:]))

    def _loop_correction_R1(self) -> Tensor:
        """[R, 1], what is missing from the aggregate, which holds every stored self-loop."""
        return self._factors_R1()[1]

    def _factors_R1(self) -> tuple[Tensor, ...]:
        def compute() -> tuple[Tensor, ...]:
            found = self.rows.factors
            return (degree_factors(self.rows.statistics, *self._loops) if found is None else found).split(1, dim=1)

        return self._remembered(self.rows, "factors", compute)

    def _remembered(self, rows: Rows, what: str, compute: Callable[[], Any]) -> Any:
        """The same for most layers of a model."""
        key = what, self._loops
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


def degree_factors(
    statistics_R3: Tensor, add_self_loops: bool, improved: bool, stored_loops: str = "replace"
) -> Tensor:
    """[R, 2], as ``Rows.factors``."""
    degree_R1, loops_R1 = statistics_R3[:, :1], statistics_R3[:, 1:2]
    added_R1 = _loop_R1(statistics_R3, improved, stored_loops) - loops_R1
    lacks_R1 = added_R1 if add_self_loops else torch.zeros_like(loops_R1)
    return torch.cat([_or((degree_R1 + lacks_R1).pow(-0.5), posinf=0.0), lacks_R1], dim=1)


def _loop_R1(statistics_R3: Tensor, improved: bool, stored_loops: str) -> Tensor:
    added, last_R1 = 2.0 if improved else 1.0, statistics_R3[:, 2:3]
    if stored_loops == "replace":
        return _or(last_R1, nan=added)
    return statistics_R3[:, 1:2] + added if stored_loops == "add" else torch.full_like(last_R1, added)


def _or(x: Tensor, nan: float = torch.nan, posinf: float = torch.inf) -> Tensor:
    """x with other numbers in place of these."""
    return torch.nan_to_num(x, nan=nan, posinf=posinf, neginf=-torch.inf)


class GCNConv(NormalizedSum):
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

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        improved: bool = False,
        add_self_loops: bool | None = None,
        normalize: bool = True,
        bias: bool = True,
        **common: Unpack[Common],
    ) -> None:
        if add_self_loops is None:
            add_self_loops = normalize
        if add_self_loops and not normalize:
            raise ValueError("GCNConv(add_self_loops=True, normalize=False): self-loops need normalize=True")
        super().__init__(add_self_loops, normalize, improved, **common)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.lin = linear(in_channels, out_channels, bias=False, glorot_weight=True)
        self.register_parameter("bias", zeros(out_channels, bias))

    @property
    def can_transform_first(self) -> bool:
        return is_product(self.lin)

    @property
    def paper_edges(self) -> PaperEdges | None:
        if not (self.built_in and is_product(self.lin)):
            return None
        added = 2.0 if self.improved else 1.0
        weighted = not (self.normalize and self.ignores_weights)  # else they are dropped behind
        return PaperEdges(
            loops=self.add_self_loops, added=added, stored=self.stored_loops, normalized=self.normalize,
            weighted=weighted,
        )  # fmt: skip

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        x = self.input_dropout(h)
        if not is_product(self.lin):  # then it and the sum may not change places
            return self.spread(self.lin(x))
        return self.spread(self.mapped(x, self.lin.weight) if self.transform_first else x)

    def update(self, a: Tensor, s: Skip) -> Tensor:
        if self.transform_first or not is_product(self.lin):
            return self.finish(a, self.bias)
        return self.activate(torch.nn.functional.linear(a, self.lin.weight, self.bias), fresh=True)


class GCN2Conv(NormalizedSum):
    """h' = ((1 - alpha) P h + alpha x_0) ((1 - beta) I + beta W_1), with P GCNConv's D^-1/2 (A + I) D^-1/2.

    Takes two values: ``(GCN2Conv(64, 0.1, 0.5, layer=1), "x, x0 -> x")``.

    Args:
        channels: width of h, x_0 and h'.
        alpha: share of x_0.
        theta, layer: beta = log(theta / layer + 1); both or neither, then beta = 1.
        shared_weights: else x_0 has a matrix of its own, W_2 (GCNII*).
        normalize: without it P = A, without self-loops.
        add_self_loops: without them P = D^-1/2 A D^-1/2.
        activation, input_dropout: see ``Convolution``; dropout of h, not of x_0.
    """

    def __init__(
        self,
        channels: int,
        alpha: float,
        theta: float | None = None,
        layer: int | None = None,
        shared_weights: bool = True,
        *,
        add_self_loops: bool = True,
        normalize: bool = True,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(add_self_loops and normalize, normalize, **common)
        if (theta is None) != (layer is None):
            raise ValueError(f"GCN2Conv(theta={theta}, layer={layer}): give both or neither")
        self.channels, self.alpha = channels, alpha
        self.beta = 1.0 if theta is None or layer is None else log(theta / layer + 1)
        self.weight1 = torch.nn.Parameter(torch.empty(channels, channels))
        self.register_parameter(
            "weight2", None if shared_weights else torch.nn.Parameter(torch.empty(channels, channels))
        )
        for weight in self.parameters():
            glorot(weight)

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        return self.spread(self.input_dropout(h))

    def update(self, a: Tensor, s: Skip, x_0: Tensor) -> Tensor:  # type: ignore[override]
        if self.weight2 is None:
            h = self._map(torch.lerp(a, x_0, self.alpha), self.weight1)
        else:
            h = self._map((1 - self.alpha) * a, self.weight1) + self._map(self.alpha * x_0, self.weight2)
        return self.activate(h, fresh=True)

    def _map(self, h: Tensor, weight: Tensor) -> Tensor:
        return torch.addmm(h, h, weight, beta=1 - self.beta, alpha=self.beta)

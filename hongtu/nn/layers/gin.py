"""Layers with a network behind their sum: graph isomorphism networks (Xu et al.; with edge features Hu et al.) and
generalised graph convolution (Li et al., DeeperGCN), as torch_geometric's GINConv, GINEConv and GENConv.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from hongtu.nn.aggr import LINEAR, Aggregation, make_aggregation
from hongtu.nn.block import Block
from hongtu.nn.convolution import Common, Convolution, linear
from hongtu.nn.layer import Layer, Skip, is_chain, is_plain
from hongtu.nn.message_dropout import dropped_by_vertex
from hongtu.nn.whole_graph import WholeGraphNorm, rules_of


class GINConv(Convolution):
    """h' = nn((1 + eps) h + sum(neighbours)); edge weights are not used.

    Args:
        nn: module from [R, F] to [R, F'], row by row.
        eps: initial value.
        train_eps: make ``eps`` a parameter (otherwise it is a buffer).
        activation, input_dropout: see ``Convolution``.
    """

    reduce: str | None = "sum"

    eps: Tensor

    def __init__(
        self, nn: torch.nn.Module, eps: float = 0.0, train_eps: bool = False, **common: Unpack[Common]
    ) -> None:
        super().__init__(**common)
        self.nn = nn
        value = torch.tensor([float(eps)])
        if train_eps:
            self.eps = torch.nn.Parameter(value)
        else:
            self.register_buffer("eps", value)

    @property
    def can_transform_first(self) -> bool:
        return is_plain(self._first)

    @property
    def _first(self) -> torch.nn.Module:
        """The part of nn that takes the rows."""
        return self.nn[0] if is_chain(self.nn) else self.nn

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        h = self.input_dropout(h)
        if self.transform_first:
            h = self.mapped(h, self._first.weight)
        return h, h

    def update(self, a: Tensor, s: Skip) -> Tensor:
        h = torch.addcmul(a, 1 + self.eps, s)
        if not self.transform_first:
            with dropped_by_vertex(self):
                return self.activate(self.nn(h), fresh=is_plain(self.nn))
        if self._first is self.nn:
            return self.finish(h, self.nn.bias)
        h = h if self.nn[0].bias is None else h + self.nn[0].bias
        with dropped_by_vertex(self):
            return self.activate(self.nn[1:](h))


class GINEConv(GINConv):
    """h' = nn((1 + eps) h + sum over in-edges of relu(h_s + e)), with e the edge's features, or W e + b.

    Args:
        nn: module from [R, F] to [R, F'], row by row.
        eps: initial value.
        train_eps: make ``eps`` a parameter (otherwise it is a buffer).
        edge_dim: columns of the edge features, to bring them to F columns by ``lin``; None: they have F.
        in_channels: F, where ``edge_dim`` is given and nn does not say it (``nn[0].in_features``).
        activation, input_dropout: see ``Convolution``.
    """

    reduce = None
    uses_edge_features = True

    def __init__(
        self,
        nn: torch.nn.Module,
        eps: float = 0.0,
        train_eps: bool = False,
        edge_dim: int | None = None,
        *,
        in_channels: int | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(nn, eps, train_eps, **common)
        self.lin = None if edge_dim is None else linear(edge_dim, in_channels or _input_width(nn), bias=True)

    @property
    def bare_maps(self) -> tuple[torch.nn.Module, ...]:
        return () if self.lin is None else (self.lin,)

    def aggregate(self, block: Block, z: Tensor, s: Skip) -> Tensor:
        if self.lin is None:
            message_EF = block.gather(z) + block.edge_features
        else:  # the bias per vertex, the ReLU in place: rows of edges are what takes time and memory
            weight, bias = self.lin.weight.t(), self.lin.bias
            message_EF = torch.addmm(block.gather(z if bias is None else z + bias), block.edge_features, weight)
        return block.segment_sum(torch.relu_(message_EF))


def _input_width(nn: torch.nn.Module) -> int:
    first = nn[0] if isinstance(nn, torch.nn.Sequential) else nn
    width = getattr(first, "in_features", getattr(first, "in_channels", None))
    if width is None:
        raise ValueError("GINEConv(edge_dim=...): cannot tell the input width of nn; pass in_channels")
    return width


class MessageNorm(nn.Module):
    """a / |a| * |h| * scale (DeeperGCN); ``scale`` [1] is frozen unless learned."""

    def __init__(self, learn_scale: bool = False) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1), requires_grad=learn_scale)

    def forward(self, h: Tensor, a: Tensor) -> Tensor:
        return torch.nn.functional.normalize(a, dim=-1) * h.norm(dim=-1, keepdim=True) * self.scale


class GENConv(Convolution):
    """h' = MLP(W_dst h + aggr(relu(W_src h_s) + eps)).

    With edge features e, W_edge e is added to W_src h_s. W_src, W_dst and W_edge are there only where the widths
    differ, as in torch_geometric. A BatchNorm in the MLP takes the statistics of all vertices; for the engine it is a
    layer of its own, together with what stands behind it.

    Args:
        in_channels, out_channels: widths of h and h'.
        aggr: one of ``Block.reduce``'s names, several, or an aggregation of ``hongtu.nn.aggr``.
        t, learn_t: of "softmax".
        p, learn_p: of "powermean".
        msg_norm, learn_msg_scale: scale the aggregate to the length of h.
        norm: inside the MLP: "batch", "layer" or None.
        num_layers, expansion: linear maps of the MLP, and how much wider it is inside.
        eps: added to every message.
        bias: of all linear maps.
        edge_dim: columns of the edge features; None: they are not read.
        activation, input_dropout: see ``Convolution``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        aggr: str | Aggregation | Sequence[str | Aggregation] = "softmax",
        t: float = 1.0,
        learn_t: bool = False,
        p: float = 1.0,
        learn_p: bool = False,
        msg_norm: bool = False,
        learn_msg_scale: bool = False,
        norm: str | None = "batch",
        num_layers: int = 2,
        expansion: int = 2,
        eps: float = 1e-7,
        bias: bool = False,
        edge_dim: int | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        if norm not in ("batch", "layer", None):
            raise ValueError(f"GENConv(norm={norm!r}): expected 'batch', 'layer' or None")
        self.in_channels, self.out_channels, self.eps = in_channels, out_channels, eps
        options: dict[str, Any] = {}
        if aggr == "softmax":
            options = {"t": t, "learn": learn_t}
        elif aggr == "powermean":
            options = {"p": p, "learn": learn_p}
        columns = out_channels
        self.edge_dim, self.uses_edge_features = edge_dim, edge_dim is not None
        if isinstance(aggr, str) and aggr in LINEAR and edge_dim is None:
            self.reduce = "mean" if aggr == "mean" else "sum"
        else:
            self.aggr_module = make_aggregation(aggr, options)
            columns = self.aggr_module.columns(out_channels)
        if in_channels != out_channels:
            self.lin_src = linear(in_channels, out_channels, bias=bias)
        if edge_dim not in (None, out_channels):
            self.lin_edge = linear(edge_dim, out_channels, bias=bias)
        if columns != out_channels:
            self.lin_aggr_out = linear(columns, out_channels, bias=bias)
        if in_channels != out_channels:
            self.lin_dst = linear(in_channels, out_channels, bias=bias)
        self.mlp = _mlp([out_channels, *[out_channels * expansion] * (num_layers - 1), out_channels], norm, bias)
        if msg_norm:
            self.msg_norm = MessageNorm(learn_msg_scale)

    def expand(self) -> list[Layer]:
        norms = [(k, part, rules) for k, part in enumerate(self.mlp) if (rules := rules_of(part)) is not None]
        return [self, *(WholeGraphNorm(part, _Then(rules, partial(self._after, k))) for k, part, rules in norms)]

    def _after(self, k: int, h: Tensor) -> Tensor:
        """What the MLP and the layer do behind its part k, up to the next normalisation over the graph."""
        for part in list(self.mlp)[k + 1 :]:
            if rules_of(part) is not None:
                return h
            h = part(h)
        return self.activate(h)

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        h = self.input_dropout(h)
        x = self.lin_src(h) if hasattr(self, "lin_src") else h
        return x if self.uses_edge_features else torch.relu(x) + self.eps, h

    def aggregate(self, block: Block, z: Tensor, s: Skip) -> Tensor:
        if self.uses_edge_features:
            e = self.lin_edge(block.edge_features) if hasattr(self, "lin_edge") else block.edge_features
            return self.aggr_module(block.of_edges, torch.relu(block.gather(z) + e) + self.eps)
        return super().aggregate(block, z, s) if self.reduce is not None else self.aggr_module(block, z)

    def update(self, a: Tensor, s: Skip) -> Tensor:
        a = self.lin_aggr_out(a) if hasattr(self, "lin_aggr_out") else a
        a = self.msg_norm(s, a) if hasattr(self, "msg_norm") else a
        return self._after(-1, a + (self.lin_dst(s) if hasattr(self, "lin_dst") else s))


class _Then:
    """The rules of a normalisation, and what follows it row by row."""

    def __init__(self, rules: Any, after: Callable[[Tensor], Tensor]) -> None:
        self._normalize, self._after = rules.normalize, after
        self.fixed, self.observe = rules.fixed, rules.observe

    def normalize(self, module: nn.Module, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return self._after(self._normalize(module, x, mean, var))


def _mlp(widths: list[int], norm: str | None, bias: bool) -> nn.Sequential:
    """Linear maps, with the norm, a ReLU and, where torch_geometric has dropout of 0, nothing between two of them."""
    modules: list[nn.Module] = []
    for index, (given, wanted) in enumerate(itertools.pairwise(widths)):
        if index > 0:
            modules += [] if norm is None else [nn.BatchNorm1d(given) if norm == "batch" else nn.LayerNorm(given)]
            modules += [nn.ReLU(), nn.Identity()]
        modules.append(linear(given, wanted, bias=bias))
    return nn.Sequential(*modules)

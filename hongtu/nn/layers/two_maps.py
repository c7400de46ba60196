"""Layers that add a map of the neighbours' rows to one of the vertex's own: SAGEConv and GraphConv, as
torch_geometric's, and CommNetConv.

Legend: R rows, F columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Unpack

from hongtu.nn.aggr import LINEAR, Aggregation, make_aggregation
from hongtu.nn.block import Block
from hongtu.nn.convolution import Common, Convolution, linear
from hongtu.nn.layer import Skip, is_plain, is_product


class TwoMaps(Convolution):
    """h' = W_1 aggr(neighbours) + b + W_2 h; a subclass has the maps, and calls ``set_aggregation``."""

    normalize: bool = False  # scale every output row to length 1

    @property
    def maps(self) -> tuple[torch.nn.Linear, torch.nn.Linear | None]:
        """W_1, which has b, and W_2, or None."""
        raise NotImplementedError

    def set_aggregation(
        self,
        aggr: str | Aggregation | Sequence[str | Aggregation],
        columns: int,
        options: dict[str, Any] | None = None,
    ) -> int:
        """Declare the reduction where it is linear, else keep a module; returns the columns that come out."""
        if isinstance(aggr, str) and aggr in LINEAR:
            self.reduce = "mean" if aggr == "mean" else "sum"
            return columns
        self.aggr_module = make_aggregation(aggr, options)
        return self.aggr_module.columns(columns)

    @property
    def can_transform_first(self) -> bool:
        first, own = self.maps
        return self.reduce is not None and is_plain(first) and (own is None or is_product(own))

    def sent(self, h: Tensor) -> Tensor:
        """[R, F] -> [R, F]: what neighbours get of a row."""
        return h

    def transform(self, h: Tensor) -> tuple[Tensor, Skip]:
        h = self.input_dropout(h)
        x, (first, own) = self.sent(h), self.maps
        if not self.transform_first:
            return x, None if own is None else h
        return self.mapped(x, first.weight), None if own is None else self.mapped(h, own.weight, first.bias)

    def aggregate(self, block: Block, z: Tensor, s: Skip) -> Tensor:
        return super().aggregate(block, z, s) if self.reduce is not None else self.aggr_module(block, z, self.weighted)

    def update(self, a: Tensor, s: Skip) -> Tensor:
        first, own = self.maps
        if not self.transform_first:
            h = first(a)
            if own is not None and not (is_plain(first) and is_product(own)):
                h = h + own(s)
            elif own is not None:  # autocast leaves in-place operations alone
                h = h.addmm_(s.to(h.dtype), own.weight.t().to(h.dtype))
        elif own is not None:
            h = a + s
        else:
            h = a if first.bias is None else a + first.bias
        h = torch.nn.functional.normalize(h, p=2.0, dim=-1) if self.normalize else h
        return self.activate(h, fresh=h is not a)


class SAGEConv(TwoMaps):
    """h' = W_l aggr(neighbours) + b + W_r h; edge weights are not used.

    Args:
        in_channels, out_channels: widths of h and h'.
        aggr: "mean" or "sum" ("add"), which are linear and cached; or another of ``Block.reduce``'s names, several of
            them, or an aggregation of ``hongtu.nn.aggr``.
        normalize: scale every output row to length 1.
        root_weight: add W_r h.
        project: aggregate relu(W h + b) instead of h (equation 3 of the paper).
        bias: add b.
        aggr_kwargs: options of the aggregation, such as {"learn": True}.
        activation, input_dropout: see ``Convolution``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        aggr: str | Aggregation | Sequence[str | Aggregation] = "mean",
        *,
        normalize: bool = False,
        root_weight: bool = True,
        project: bool = False,
        bias: bool = True,
        aggr_kwargs: dict[str, Any] | None = None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.normalize, self.root_weight, self.project = normalize, root_weight, project
        columns = self.set_aggregation(aggr, in_channels, aggr_kwargs)
        if project:
            self.lin = linear(in_channels, in_channels, bias=True)
        self.lin_l = linear(columns, out_channels, bias=bias)
        if root_weight:
            self.lin_r = linear(in_channels, out_channels, bias=False)

    @property
    def maps_input(self) -> bool:
        return super().maps_input and not self.project

    @property
    def maps(self) -> tuple[torch.nn.Linear, torch.nn.Linear | None]:
        return self.lin_l, self.lin_r if self.root_weight else None

    def sent(self, h: Tensor) -> Tensor:
        return torch.relu(self.lin(h)) if self.project else h


class GraphConv(TwoMaps):
    """h' = W_rel aggr(edge weight * neighbour) + b + W_root h.

    Args:
        in_channels, out_channels: widths of h and h'.
        aggr: "add" ("sum") or "mean" (over the number of in-edges), which are linear and cached; or another of
            ``Block.reduce``'s names: "max" and "min" use edge weights, the others refuse them.
        bias: add b.
        activation, input_dropout: see ``Convolution``.
    """

    weighted = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        aggr: str | Aggregation | Sequence[str | Aggregation] = "add",
        bias: bool = True,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        self.in_channels, self.out_channels = in_channels, out_channels
        if self.set_aggregation(aggr, in_channels) != in_channels:
            raise ValueError(f"GraphConv(aggr={aggr!r}): expected one reduction")
        self.lin_rel = linear(in_channels, out_channels, bias=bias)
        self.lin_root = linear(in_channels, out_channels, bias=False)

    @property
    def maps(self) -> tuple[torch.nn.Linear, torch.nn.Linear | None]:
        return self.lin_rel, self.lin_root


class CommNetConv(TwoMaps):
    """h' = W_1 h + W_2 mean(neighbours), with W_1 ``lin_self`` and W_2 ``lin_neighbour``; no bias.

    Args:
        in_channels, out_channels: widths of h and h'.
        activation, input_dropout: see ``Convolution``.
    """

    reduce = "mean"

    def __init__(self, in_channels: int, out_channels: int, **common: Unpack[Common]) -> None:
        super().__init__(**common)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.lin_self = linear(in_channels, out_channels, bias=False)
        self.lin_neighbour = linear(in_channels, out_channels, bias=False)

    @property
    def maps(self) -> tuple[torch.nn.Linear, torch.nn.Linear | None]:
        return self.lin_neighbour, self.lin_self

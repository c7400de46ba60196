"""What layers share that add a map of the neighbours' rows to a map of the vertex's own.

Legend: R rows, F columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hongtu.nn.aggr import LINEAR, Aggregation, make_aggregation
from hongtu.nn.block import Block
from hongtu.nn.layer import Convolution, Skip, is_plain, is_product


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

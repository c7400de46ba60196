"""Rows of all types in one matrix, and those of each by themselves.

Legend: R rows of all types, D destinations and S sources of a block, C columns, K types of vertices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass
class Packing:
    """Which columns hold which values: those of a type's vertices begin at column 0, one behind the other; further
    columns of narrower types are zeros.

    Attributes:
        values: by the type's number, names of values and the shape of one row of each.
        apart: each type's columns begin behind those of the types before, so that a column is of one type.

    >>> packing = Packing({0: {"a": (2,), "b": (3, 2)}, 1: {"c": (5,)}})
    >>> packing.columns, packing.take(torch.arange(8.0).view(1, 8), 0)["b"].tolist()
    (8, [[[2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]])
    """

    values: dict[int, dict[str, tuple[int, ...]]] = field(default_factory=dict)
    apart: bool = False

    @property
    def columns(self) -> int:
        of_kinds = [self._width(kind) for kind in self.values]
        return sum(of_kinds) if self.apart else max(of_kinds, default=0)

    def _width(self, kind: int) -> int:
        return sum(map(prod, self.values.get(kind, {}).values()))

    def _first(self, kind: int) -> int:
        return sum(self._width(other) for other in self.values if other < kind) if self.apart else 0

    def add(self, kind: int, name: str, shape: tuple[int, ...]) -> None:
        self.values.setdefault(kind, {})[name] = shape

    def take(self, rows_RC: Tensor, kind: int) -> dict[str, Tensor]:
        """The values of rows of one type."""
        found, first = {}, self._first(kind)
        for name, shape in self.values.get(kind, {}).items():
            found[name] = rows_RC[:, first : first + prod(shape)].reshape(len(rows_RC), *shape)
            first += prod(shape)
        return found

    def pack(self, values: Mapping[str, Tensor], rows_of: Sequence[Tensor], like: Tensor) -> Tensor:
        """float [R, columns].

        Args:
            values: by name, [R_k, ...] each.
            rows_of: int64 [R_k] for each type, where its rows are among all.
            like: of the dtype and device.
        """
        if not self.columns:
            return like.new_zeros((sum(map(len, rows_of)), 0))
        given, places = [], []
        for kind, where in enumerate(rows_of):
            first = self._first(kind)
            for name, shape in self.values.get(kind, {}).items():
                given.append(values[name].reshape(len(where), prod(shape)).to(like.dtype))
                places.append((where, first))
                first += prod(shape)
        return _Packed.apply(places, (sum(map(len, rows_of)), self.columns), like, *given)


class _Packed(torch.autograd.Function):
    """[R, C]: values by their rows and their first columns, zeros elsewhere."""

    @staticmethod
    def forward(ctx, places, shape, like, *values):
        out = like.new_empty(shape)
        if sum(value.numel() for value in values) < out.numel():
            out.zero_()
        for (where, first), value in zip(places, values, strict=True):
            out[_rows(where, len(out)), first : first + value.shape[1]] = value
        ctx.places, ctx.widths = places, [value.shape[1] for value in values]
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        given = [
            grad[_rows(where, len(grad)), first : first + width]
            for (where, first), width in zip(ctx.places, ctx.widths, strict=True)
        ]
        return None, None, None, *given


class _ByKind(torch.autograd.Function):
    @staticmethod
    def forward(ctx, mine, beside, own_DC, others_SC):
        ctx.mine, ctx.beside, ctx.like = mine, beside, (own_DC.shape, None if others_SC is None else others_SC.shape)
        found = [own_DC[_rows(where, len(own_DC))] for where in mine]
        if others_SC is not None:
            found = [torch.cat([own, others_SC[where]]) for own, where in zip(found, beside, strict=True)]
        return tuple(found)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        own, others = (None if shape is None else grads[0].new_zeros(shape) for shape in ctx.like)
        for k, (mine, grad) in enumerate(zip(ctx.mine, grads, strict=True)):
            own[_rows(mine, len(own))] = grad[: len(mine)]
            if others is not None:
                others[ctx.beside[k]] = grad[len(mine) :]
        return None, None, own, others


def rows_by_kind(
    own_DC: Tensor, mine: Sequence[Tensor], others_SC: Tensor | None = None, beside: Sequence[Tensor] = ()
) -> tuple[Tensor, ...]:
    """For each type [R_k, C], those of a chunk's own rows, then those of others.

    Args:
        mine: int64 for each type, where its rows are among the D; each is of one type.
        beside: the same among the S, of which some are of none.
    """
    found: tuple[Tensor, ...] = _ByKind.apply(mine, beside, own_DC, others_SC)
    return found


def _rows(where: Tensor, count: int) -> Any:
    """An index for them: all, where they are as many."""
    return slice(None) if len(where) == count else where

"""Operations by which a function of rows may tell them apart, found or changed while it runs: ``rows_alone.py`` looks
at what it gives then."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hongtu.kernels.torch_private import Operations

aten = torch.ops.aten


class Draws(Operations):
    """Finds the shapes of random numbers, in the order that they are drawn in."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[torch.Size] = []

    def see(self, func: Any, given: tuple[Any, ...], out: Any) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            drawn = out[-1] if isinstance(out, tuple) else out
            self.shapes.append(getattr(drawn, "shape", torch.Size()))
        return out


class Bounds(Operations):
    """Finds numbers beyond the rows by which some are taken, as by ``h[100:]``, ``h.roll(100, 0)`` or
    ``torch.arange(len(h)) < 100``."""

    NAMES = "shifts", "dilation", "padding", "pad", "kernel_size"

    def __init__(self, rows: int) -> None:
        super().__init__()
        self._rows = rows
        self.found: set[int] = set()

    def add(self, size: int, numbers: Iterable[Any]) -> None:
        """Those beyond a dimension of this size, and the rows."""
        whole = (abs(number) for number in numbers if isinstance(number, int))
        self.found |= {number for number in whole if max(size, self._rows) <= number < sys.maxsize}

    def see(self, func: Any, given: tuple[Any, ...], out: Any) -> Any:
        if func in (aten.slice.Tensor, aten.split.Tensor):
            at, numbers = (given[1:2], given[2:4]) if func is aten.slice.Tensor else (given[2:3], given[1:2])
            self.add(given[0].shape[at[0] if at else 0], numbers)
        elif given and isinstance(given[0], Tensor):
            if _counts(given[0]):
                self.add(len(given[0]), given[1:2])
            for argument, value in zip(func._schema.arguments, given):
                if argument.name in self.NAMES:
                    self.add(0, value if isinstance(value, list | tuple) else [value])
        return out


class Indices(TorchFunctionMode):
    """Finds those of ``h[:100] = 0``, which torch takes for all of fewer rows."""

    def __init__(self, bounds: Bounds) -> None:
        super().__init__()
        self._bounds = bounds

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            first = args[1][0] if isinstance(args[1], tuple) and args[1] else args[1]
            if isinstance(first, slice) and args[0].ndim:
                self._bounds.add(len(args[0]), (first.start, first.stop))
        return func(*args, **(kwargs or {}))


class Flips(Operations):
    """Has comparisons with what is no number hold, which fail without: a threshold of other rows is seen in one of
    both, in rows of any size."""

    COMPARED = tuple(
        getattr(getattr(aten, name), of) for name in ("gt", "ge", "lt", "le") for of in ("Tensor", "Scalar")
    )

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def see(self, func: Any, given: tuple[Any, ...], out: Any) -> Any:
        if func in self.COMPARED:
            for x in given[:2]:
                if _is_number(x) and bool((unknown := x.isnan()).any()):
                    out, self.found = out | unknown, True
        return out


class Holds(Operations):
    """Has every comparison of a number for each row, or several, hold."""

    COMPARED = (*Flips.COMPARED, *(getattr(aten.eq, of) for of in ("Tensor", "Scalar")),
                aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar)  # fmt: skip

    def __init__(self, codes: bool) -> None:
        super().__init__()
        self.found, self.left, self._codes = False, 0, codes

    def see(self, func: Any, given: tuple[Any, ...], out: Any) -> Any:
        if func in self.COMPARED and out.ndim and (self._codes or any(map(_is_number, given[:2]))) and not out.all():
            self.left -= 1
            if self.left < 0:  # a loop until none is left
                raise RecursionError
            out, self.found = torch.ones_like(out), True
        return out


def _counts(x: Tensor) -> bool:
    """Whether these whole numbers, of copies of one row, are not the row's own: that would be the same in all."""
    return x.ndim > 0 and not x.is_floating_point() and bool((x != x[:1]).any())


def _is_number(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()

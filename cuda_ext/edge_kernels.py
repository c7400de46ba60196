"""Kernels over the in-edges of every destination: from a declaration of their tensors to a checked launch.

Legend: D destinations, C rows of a cache or of sources, E edges, F columns, H heads, K columns of a head, X columns of
rows that may have more than F.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from hongtu.cuda_ext.arguments import (
    FLOATS,
    LANE_ELEMENTS,
    Matrix,
    address,
    lane_elements,
    launch_ranges,
    matrix,
    may_have_hubs,
    refuse,
)
from hongtu.cuda_ext.launch import Launcher


@dataclass(frozen=True)
class Parameter:
    """What a kernel takes.

    Attributes:
        name: in messages.
        shape: letters of sizes: equal ones are equal in all tensors of a launch; None for a plain integer.
        dtype: None for the launch's float32 or float64.
        optional: None and a length of 0 mean "none", which is address 0.
        beside: the name of an optional one, without which this is "none", too, and with which it has to be there.
    """

    name: str
    shape: tuple[str, ...] | None
    dtype: torch.dtype | None = None
    optional: bool = False
    beside: str = ""

    @cached_property
    def is_matrix(self) -> bool:
        """Whether it is rows of features, which may be apart."""
        return self.shape is not None and self.shape[-1] in ROWS


ROWS = ("F", "2F", "X")  # letters of the columns of rows
_PARAMETER = re.compile(r"(\w+)(?::(\w+))?(?:\[(.*)\])?(\?)?(?:&(\w+))?")


def parameters_of(declared: str) -> tuple[Parameter, ...]:
    """Of a declaration: "weight[E]?" is an optional float, "mean" an integer.

    >>> parameters_of("mask:bool[E]? out[D,H]&mask")  # doctest: +NORMALIZE_WHITESPACE
    (Parameter(name='mask', shape=('E',), dtype=torch.bool, optional=True, beside=''),
     Parameter(name='out', shape=('D', 'H'), dtype=None, optional=False, beside='mask'))
    """
    found = []
    for one in declared.split():
        match = _PARAMETER.fullmatch(one)
        assert match is not None, one
        name, dtype, shape, optional, beside = match.groups("")
        sizes = tuple(shape.split(",")) if shape else None
        found.append(Parameter(name, sizes, getattr(torch, dtype) if dtype else None, bool(optional), beside))
    return tuple(found)


@dataclass(frozen=True)
class EdgeKernel:
    """Called with a launcher, a stream and what is declared; the kernel takes it in the same order.

    Attributes:
        name: of the kernel.
        declared: what it is called with, as ``parameters_of`` reads it.
        needs: letters of sizes; where one of them is 0, nothing is launched.
        numbers: letters of the sizes that the kernel takes behind the tensors and the strides of their rows.
        lanes: names of the rows that lanes move again and again: where these are aligned, and no lane is of three
            heads, a lane takes several columns; "": it takes one.
        units: the lanes' work per destination, from the sizes and the columns of a lane.
        stages: of the launches over slices of hubs.
        scratch: arrays [D, H] that the kernel takes where there may be hubs, from torch's current stream: launch there.
    """

    name: str
    declared: str
    needs: str
    numbers: str = "DEF"
    lanes: str = "rows"
    units: Callable[[dict[str, int], int], int] = lambda sizes, elements: -(-sizes["F"] // elements)
    stages: Sequence[int] = (1,)
    scratch: int = 0

    def __call__(self, launcher: Launcher, stream: Any, *given: Any) -> None:
        found, sizes = self._dtype(given), self._sizes(given)
        if not all(sizes[letter] for letter in self.needs):
            return
        self._check_heads(sizes)
        at: dict[str, int] = {}
        rows: dict[str, Matrix] = {}
        for parameter, x in zip(self.parameters, given, strict=True):
            at[parameter.name] = self._argument(launcher, parameter, x, found, sizes, at, rows)
        narrow = "K" in sizes and sizes["H"] > 1 and 2 * sizes["K"] < LANE_ELEMENTS[found]
        lanes = [rows[name][2] for name in self._lanes]
        elements = lane_elements(found, *lanes) if lanes and not narrow else 1
        hubs = may_have_hubs(at["indptr"], sizes["E"])
        scratch = given[1].new_empty((self.scratch, sizes["D"], sizes["H"])) if self.scratch and hubs else None
        parts = [0] * self.scratch if scratch is None else [part.data_ptr() for part in scratch]
        launch_ranges(
            launcher,
            stream,
            f"{self.name}_{FLOATS[found]}x{elements}",
            (
                *at.values(),
                *parts,
                *(stride for _, stride, _ in rows.values()),
                *(sizes[letter] for letter in self.numbers),
            ),
            sizes["D"],
            sizes["E"],
            self.units(sizes, elements),
            (*(x for x in given if x is None or isinstance(x, Tensor)), scratch),
            self.stages,
        )

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        return parameters_of(self.declared)

    @cached_property
    def _lanes(self) -> list[str]:
        return self.lanes.split()

    @cached_property
    def _first_float(self) -> int:
        return next(k for k, p in enumerate(self.parameters) if p.shape and not (p.dtype or p.optional))

    @cached_property
    def _tellers(self) -> list[tuple[str, int, int]]:
        """Letters, with the parameter that tells a size, and its axis: the first that is always there."""
        found: dict[str, tuple[int, int]] = {}
        for k, p in enumerate(self.parameters):
            if not p.optional and not p.beside:
                for axis, letter in enumerate(p.shape or ()):
                    found.setdefault(letter, (k, axis))
        return [(letter, *place) for letter, place in found.items()]

    def _dtype(self, given: tuple[Any, ...]) -> torch.dtype:
        dtype: torch.dtype = given[self._first_float].dtype
        if dtype not in FLOATS:
            refuse(self.name, self.parameters[self._first_float].name, "dtype", dtype, "float32 or float64")
        return dtype

    def _sizes(self, given: tuple[Any, ...]) -> dict[str, int]:
        for parameter, x in zip(self.parameters, given, strict=True):
            if isinstance(x, Tensor) and x.dim() != len(parameter.shape or ()):
                refuse(self.name, parameter.name, "shape", tuple(x.shape), f"{len(parameter.shape or ())} dimensions")
        sizes = {letter: given[k].shape[axis] for letter, k, axis in self._tellers}
        sizes.setdefault("D", sizes["D+1"] - 1)
        sizes["D+1"] = sizes["D"] + 1
        if "F" in sizes:
            sizes["2F"] = 2 * sizes["F"]
        return sizes

    def _check_heads(self, sizes: dict[str, int]) -> None:
        """Of rows that consist of heads."""
        if "X" not in sizes:
            return
        heads, width = sizes["H"], sizes["F"]
        if heads == 0 or width % heads:
            refuse(self.name, "alpha", "heads", heads, f"a divisor of the width {width}")
        if sizes["X"] < width:
            refuse(self.name, "rows", "columns", sizes["X"], f"{width} or more")
        sizes["K"] = width // heads

    def _argument(
        self, launcher: Launcher, p: Parameter, x: Any, dtype: torch.dtype, sizes: dict[str, int], at: dict[str, int],
        rows: dict[str, Matrix],
    ) -> int:  # fmt: skip
        if p.shape is None:
            return int(x)
        if (p.beside and not at[p.beside]) or (p.optional and (x is None or not x.shape[0])):
            return 0
        if x is None:
            refuse(self.name, p.name, "value", None, f"a tensor, as for {p.beside}")
        shape = tuple([sizes.get(letter, length) for letter, length in zip(p.shape, x.shape, strict=True)])
        if p.is_matrix:
            rows[p.name] = matrix(launcher, self.name, p.name, x, dtype, shape)
            return rows[p.name][0]
        return address(launcher, self.name, p.name, x, p.dtype or dtype, shape)

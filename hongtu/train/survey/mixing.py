"""Refuses modules that mix rows: what they give for a row must not depend on the others of its chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hongtu.errors import InputError
from hongtu.kernels.torch_private import times_written
from hongtu.model.network import AGGREGATE, Network
from hongtu.nn.block import Block, Rows
from hongtu.nn.whole_graph import WholeGraphNorm
from hongtu.train.survey.edges import tensors_in


@dataclass
class _Call:
    """One call of a module: its rows, and what it takes."""

    rows: Rows
    args: tuple[Any, ...]


@contextmanager
def looking(network: Network, seen: set[object]) -> Iterator[None]:
    """Inside, what modules and layers do to rows and edges must not mix them, neither in evaluation nor in training.

    Args:
        seen: calls that do not; those that are met join them, and are not looked at again.
    """

    def calling(
        number: int, kind: int, rows: Rows, call: Callable[..., Any], args: tuple[Any, ...]
    ) -> Callable[[Any], None] | None:
        module, norm = network.modules[number], getattr(call, "__self__", None)
        settings = [getattr(module, name, None) for name in ("training", "transform_first", "once_per_vertex")]
        key = number, kind, getattr(call, "__qualname__", None), *settings
        if isinstance(norm, WholeGraphNorm):
            if call.__name__ != "update":  # which give their input back
                return None
            call, key = norm.of_rows, (*key, norm)
        if key in seen:
            return None
        seen.add(key)
        if isinstance(args[0], Block):
            tries = [(0, *_calls_on_blocks(rows, *args))]
        else:
            tries = [(far, *_calls_on_rows(far, rows, *args)) for far in (0, 1, -1)]  # now: the call may overwrite them

        def check(out: Any) -> None:
            for each in tries:
                _check_rows(network, number, kind, call, *each, buffers)

        return check

    buffers = list(network.modules.buffers())

    network.calling = calling
    try:
        yield
    finally:
        network.calling = None


def buffer_versions(network: Network) -> dict[str, int]:
    """How many times every buffer was written to."""
    return {name: times_written(buffer) for name, buffer in network.modules.named_buffers()}


def _calls_on_rows(far: int, rows: Rows, *args: Any) -> tuple[_Call, _Call, _Call]:
    """With two different rows, and with each alone."""
    given = _mapped(partial(_different, far), args)

    def one(k: int) -> _Call:
        return _Call(_some(rows, k, k + 1), _mapped(lambda x: x[k : k + 1].clone(), given))

    return _Call(_some(rows, 0, 2), given), one(0), one(1)


def _calls_on_blocks(rows: Rows, block: Block, z: Tensor, s: Any) -> tuple[_Call, _Call, _Call]:
    """With two destinations that have two in-edges each, from four sources, and with each alone."""
    features, types = block.edge_features, block.edge_type
    start, source = torch.tensor([0, 2, 4]), torch.tensor([1, 2, 3, 0], dtype=torch.int32)
    two = replace(
        block,
        indptr=start,
        local_source=source,
        sources=torch.arange(4, dtype=torch.int32),
        rows=_some(rows, 0, 2),
        edge_id_start=start[:2],
        num_graph_edges=4,
        edge_features=None if features is None else _different(0, features, 4),
        edge_type=None if types is None else types.repeat(2),
    )
    sources, own = _different(0, z, 4), _mapped(partial(_different, 0), s)

    def one(k: int) -> _Call:
        edges = slice(2 * k, 2 * k + 2)
        found, position = source[edges].sort()
        alone = replace(
            two,
            indptr=start[:2],
            local_source=position.int(),
            sources=found,
            first=two.first + k,
            rows=_some(rows, k, k + 1),
            edge_id_start=start[k : k + 1],
            edge_features=None if two.edge_features is None else two.edge_features[edges].clone(),
            edge_type=None if two.edge_type is None else two.edge_type[edges],
        )
        return _Call(alone.rows, (alone, sources[found], _mapped(lambda x: x[k : k + 1].clone(), own)))

    return _Call(two.rows, (two, sources, own)), one(0), one(1)


def _some(rows: Rows, first: int, end: int) -> Rows:
    statistics = None if rows.statistics is None else rows.statistics[first:end]
    return Rows(ids=rows.ids[first:end], statistics=statistics)


def _mapped(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same form with other tensors."""
    if isinstance(value, tuple | list):
        return type(value)(_mapped(change, part) for part in value)
    return change(value) if isinstance(value, Tensor) else value


def _different(far: int, rows: Tensor, count: int = 2) -> Tensor:
    """The first row, and others beside it: each smaller than those before it in every other column, and larger in the
    rest. A layer may have made the rows, or what it adds up, equal; and the largest so far shows in smaller rows only.
    With ``far`` 1 all others lie above every number of the first, with -1 below: a threshold that all rows make shows.
    """
    first = rows.detach()[:1]
    if far and first.is_floating_point() and first.numel():
        step = far * (1 + 2 * first.abs().max())
        return torch.cat([first, *(first + k * step for k in range(1, count))])
    falls = torch.arange(first.numel()).view(first.shape) % 2 == 0
    after = [torch.where(falls, first.clamp(max=0) - 0.25 * k, first.clamp(min=0) + 0.25 * k) for k in range(1, count)]
    return torch.cat([first, *after])


@torch.no_grad()
def _check_rows(
    network: Network,
    number: int,
    kind: int,
    call: Callable[..., Any],
    far: int,
    two: _Call,
    first: _Call,
    second: _Call,
    buffers: Sequence[Tensor],
) -> None:
    """Refuse what gives another row where the other is not there, or none. What draws numbers of its own is not
    seen."""
    mixed = InputError(
        f"{network.title(number)} mixes the rows of its input, which would be those of a chunk instead of the "
        "whole graph; a module between layers, and what a layer does to rows and edges, must treat each alone; "
        "only the in-edges of one destination may be put together; torch.nn.BatchNorm1d in the list takes all vertices"
    )
    with network.in_call(number, kind, two.rows):
        before, versions = torch.get_rng_state(), [times_written(buffer) for buffer in buffers]
        try:
            out = call(*two.args)
        except Exception:  # such as a draw with probabilities above 1
            if far:
                return
            raise
        written = versions != [times_written(buffer) for buffer in buffers]
        if written or not torch.equal(torch.get_rng_state(), before):
            return
    found: list[tuple[int, Tensor, Tensor]] = []
    for k, one in enumerate((first, second)):
        try:
            with network.in_call(number, kind, one.rows):
                parts = tensors_in([call(*one.args)])
        except Exception as error:  # as functional.batch_norm does
            raise mixed from error
        found += [(k, whole, part) for whole, part in zip(tensors_in([out]), parts, strict=True)]
    for k, whole, part in found:
        rows_are_wrong = kind == AGGREGATE and len(whole) != len(two.rows.ids)
        if whole.ndim != 2 or not whole.is_floating_point() or rows_are_wrong:
            continue  # refused with what was expected
        row = whole[k : k + 1]
        numbers = row[row.isfinite()].abs()
        slack = 1e-5 * float(numbers.max()) if far and numbers.numel() else 1e-6  # of sums of large numbers
        if part.shape != row.shape or not torch.allclose(part, row, rtol=1e-4, atol=slack, equal_nan=True):
            raise mixed

"""Dropout in a convolution that runs as it is: what an edge, a destination or a source draws depends on it alone.

Legend: D destinations and S sources of a block, E edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from hongtu.errors import InputError
from hongtu.kernels.torch_private import is_dropout, is_known, is_pyg, takes_saved_tensors
from hongtu.nn.context import RowContext
from hongtu.nn.dropout import Dropout

_WITH_EDGES, _OF_MESSAGES = ("propagate", "edge_updater"), ("message", "edge_update")
_ALSO = {"train": "training"}  # as torch.dropout calls it
_LOOPS = 40  # bits, which hold the id of an edge or a vertex
_OTHERS = 1 << (_LOOPS - 1)  # above all ids of edges and vertices
_OF_VERTICES = 1 << 15  # the first number of the calls for vertices, behind those for edges


class Edges(NamedTuple):
    """What tells the edges of a call apart, and its destinations.

    Attributes:
        ends: int64 [2, E], sources and destinations; of one type, these come first among the sources.
        ids: int64 [E].
        rows: int64 [D], the same of the destinations, and of the self-loops that a convolution may add.
        alike: sources and destinations are of one type.
        vertices: how many rows of vertices a convolution is given, the destinations first; None: these alone.
    """

    ends: Tensor
    ids: Tensor
    rows: Tensor
    alike: bool = True
    vertices: int | None = None

    def ids_of_rows(self, count: int) -> Tensor | None:
        """int64 [count], of the vertices, or of the edges, whichever are so many; None: of others. Of vertices behind
        the destinations not by the graph: only what a convolution gives for destinations is kept."""
        others = (self.vertices or len(self.rows)) - len(self.rows)
        if count == len(self.rows) + others:
            return torch.cat([self.rows, _OTHERS + torch.arange(others, device=self.rows.device)])
        return self.ids if count == len(self.ids) else None

    def ids_of(self, ends: Tensor) -> Tensor | None:
        """int64 [N], of those edges [2, N] that a convolution has made of these, other self-loops among the same edges;
        None: others. The k-th self-loop of a vertex has an id of its own."""
        if ends is self.ends:
            return self.ids
        if not self.alike:
            return self.ids if torch.equal(ends, self.ends) else None
        own, found = ends[0] == ends[1], torch.empty_like(ends[0])
        edges, between = self.ends[0] != self.ends[1], ends[:, ~own]
        if not torch.equal(between, self.ends[:, edges]):
            return None
        found[~own] = self.ids[edges]
        loops, order = ends[0, own].sort(stable=True)
        number = torch.arange(len(loops), device=loops.device) - torch.searchsorted(loops, loops)
        known = functional.pad(self.rows, (0, int(ends.max()) + 1 if len(loops) else 0))  # sources, too
        found[own.nonzero().squeeze(1)[order]] = known[loops] + (number << _LOOPS)
        return found


def told_apart(given: Any, num_edges: int) -> Any:
    """Rows of vertices, or a pair of those of sources and of destinations, with one more where there are as many as
    edges: which of the two a row is that a convolution drops, their number tells."""
    if isinstance(given, tuple):
        sources, own = given
        return sources, None if own is None else told_apart(own, num_edges)
    return torch.cat([given, given[:1]]) if len(given) == num_edges else given


def may_drop(conv: Any) -> bool:
    """Whether a convolution may call ``torch.nn.functional.dropout``: one that has a part with a rate, or of somebody's
    own."""

    def rates(part: Any) -> list[Any]:
        rate = getattr(part, "dropout", 0)
        return [*(rate if isinstance(rate, list | tuple) else [rate]), getattr(part, "p", 1) if is_dropout(part) else 0]

    return any(
        not is_known(part) or any(type(x) in (int, float) and x > 0 for x in rates(part)) for part in conv.modules()
    )


def dropped_by_id(module: nn.Module) -> set[nn.Module]:
    """The dropouts of a module that are in a convolution, and drop by what they are given, not by chunk."""
    owners = [part for part in module.modules() if any(isinstance(own, MessageDropout) for own in part.children())]
    return {part for own in owners for part in own.modules() if type(part) is nn.Dropout}


class MessageDropout(Dropout):
    """Stands for ``torch.nn.functional.dropout`` in a convolution, with the p of each call."""

    @contextmanager
    def inside(self, conv: nn.Module, edges: Callable[[], Edges]) -> Iterator[None]:
        """A call of a convolution, or of one that has such."""
        if not self.drops:
            yield
            return
        mode = _Mode(self, edges)
        with ExitStack() as stack:
            for part in conv.modules():
                if hasattr(part, "message"):
                    own = {name: partial(mode.with_edges, getattr(part, name)) for name in _WITH_EDGES}
                    own |= {name: partial(mode.of_messages, getattr(part, name)) for name in _OF_MESSAGES}
                    for name, function in own.items():
                        stack.enter_context(patch.object(part, name, function))
            with mode:
                yield


@contextmanager
def dropped_by_vertex(layer: Any) -> Iterator[None]:
    """Call the ``nn`` of a layer, which has a ``message_dropout`` if that has parts of somebody's own, with rows of
    vertices."""
    dropout = getattr(layer, "message_dropout", None)

    def edges() -> Edges:
        ids = layer.rows.ids
        return Edges(ids[:0].expand(2, 0), ids[:0], ids)

    with nullcontext() if dropout is None else dropout.inside(layer.nn, edges):
        yield


@contextmanager
def nothing_left(module: nn.Module) -> Iterator[None]:
    """A call after which its convolutions hold no tensor that they did not before: what SuperGATConv keeps for a loss
    of its own takes memory that no plan knows, and so does the graph behind a tensor of somebody's own."""
    parts = [(part, {**vars(part)}) for part in module.modules() if hasattr(part, "message")]
    try:
        yield
    finally:
        for part, before in parts:
            for name, value in [*vars(part).items()]:
                if value is before.get(name) or not isinstance(value, Tensor):
                    continue
                if is_pyg(part) or value.grad_fn is not None:
                    vars(part).pop(name)
                    vars(part).update({name: before[name]} if name in before else {})


class ByEdge(nn.Module):
    """A convolution that drops by edge, and by destination.

    Args:
        conv: what is called with one more argument, the edges.
    """

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv, self.dropout = conv, MessageDropout()

    def forward(self, rows: Any, *given: Any, edges: Edges, **named: Any) -> Any:
        own = rows[1] if isinstance(rows, tuple) else rows
        if not self.dropout.drops or own is None:
            with self.dropout.inside(self.conv, lambda: edges):
                return self.conv(rows, *given, **named)
        rows = told_apart(rows, len(edges.ids))
        edges = edges._replace(vertices=len(rows[1] if isinstance(rows, tuple) else rows))
        with self.dropout.inside(self.conv, lambda: edges):
            return self.conv(rows, *given, **named)[: len(own)]


class _Mode(TorchFunctionMode):
    def __init__(self, dropout: MessageDropout, edges: Callable[[], Edges]) -> None:
        super().__init__()
        self._dropout, self._edges = dropout, edges
        self._ends: Tensor | None = None
        self._depth = 0
        self._calls = [0, _OF_VERTICES]  # counted apart: what drops edges may be left out where there are none
        self._before = torch.is_grad_enabled(), takes_saved_tensors()

    def with_edges(self, function: Callable[..., Any], edge_index: Any, *given: Any, **named: Any) -> Any:
        """Call what calls the functions of messages for some edges."""
        before, self._ends = self._ends, edge_index
        try:
            return function(edge_index, *given, **named)
        finally:
            self._ends = before

    def of_messages(self, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Call what makes messages."""
        self._depth += 1
        try:
            return function(*given, **named)
        finally:
            self._depth -= 1

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.dropout:
            return self._drop(*args, **(kwargs or {}))
        if func is torch.dropout:
            return self._drop(*args, **{_ALSO.get(name, name): value for name, value in (kwargs or {}).items()})
        return func(*args, **(kwargs or {}))

    def _drop(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        ids, of_vertices = self._ids(len(input)) if training and 0 < p <= 1 and input.ndim else (None, False)
        if ids is None or len(ids) != len(input):
            return functional.dropout(input, p, training, inplace)
        if (torch.is_grad_enabled(), takes_saved_tensors()) != self._before:
            raise InputError(
                "a convolution calls dropout inside of torch.utils.checkpoint or torch.no_grad, and would draw other "
                "numbers when that is computed again; leave it out: chunks are computed again as it is"
            )
        context = self._dropout.context or RowContext()
        calls, context.calls = context.calls, (context.calls & ~0xFFFF) | self._calls[of_vertices]
        dropped: Tensor = self._dropout(input, ids, p)
        context.calls, self._calls[of_vertices] = calls, self._calls[of_vertices] + 1
        return input.copy_(dropped) if inplace else dropped

    def _ids(self, count: int) -> tuple[Tensor | None, bool]:
        """Of the messages that are being made, or of so many vertices or edges; whether of vertices."""
        edges = self._edges()
        if not self._depth:
            ids = edges.ids_of_rows(count)
            return ids, ids is not edges.ids
        return edges.ids_of(self._ends) if isinstance(self._ends, Tensor) else None, False

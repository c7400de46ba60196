"""Dropout in the messages of a convolution that runs as it is: what an edge draws depends on the edge alone.

Legend: D destinations and S sources of a block, E edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from hongtu.nn.context import RowContext
from hongtu.nn.dropout import Dropout

_WITH_EDGES, _OF_MESSAGES = ("propagate", "edge_updater"), ("message", "edge_update")


class Edges(NamedTuple):
    """What tells the edges of a call apart.

    Attributes:
        ends: int64 [2, E], sources and destinations; these come first among the sources of their type.
        ids: int64 [E].
        loops: int64 [D], the same of the self-loops that a convolution may add.
    """

    ends: Tensor
    ids: Tensor
    loops: Tensor

    def ids_of(self, ends: Tensor) -> Tensor | None:
        """int64 [N], of those edges [2, N] that a convolution has made of these: all, or all that are no self-loops,
        and self-loops behind them; None: others."""
        if ends is self.ends:
            return self.ids
        for kept in (self.ends[0] != self.ends[1], slice(None)):
            first, ids = self.ends[:, kept], self.ids[kept]
            source, destination = ends[:, len(ids) :]
            if torch.equal(ends[:, : len(ids)], first) and torch.equal(source, destination):
                unused = self.ids.new_zeros(
                    max(0, len(source) - len(self.loops))
                )  # of sources that are no destinations
                return torch.cat([ids, torch.cat([self.loops, unused])[source]])
        return None


def drops_messages(conv: Any) -> bool:
    """Whether a convolution may call ``torch.nn.functional.dropout`` in its messages: one that is not
    torch_geometric's, or has a rate."""
    rate = getattr(conv, "dropout", 0)
    return not type(conv).__module__.startswith("torch_geometric.") or (isinstance(rate, int | float) and rate > 0)


class MessageDropout(Dropout):
    """Stands for ``torch.nn.functional.dropout`` in the messages of a convolution; ``p`` is that of the last call."""

    @contextmanager
    def inside(self, conv: nn.Module, edges: Callable[[], Edges]) -> Iterator[None]:
        """A call of a convolution, or of one that has such."""
        if not self.drops:
            yield
            return
        mode, context = _Mode(self, edges), self.context or RowContext()
        with ExitStack() as stack:
            stack.callback(setattr, context, "calls", context.calls)
            context.calls &= (
                ~0xFFFF
            )  # of the layer call's: a convolution may leave its dropout out where it has no edges
            for part in conv.modules():
                if hasattr(part, "message"):
                    own = {name: partial(mode.with_edges, getattr(part, name)) for name in _WITH_EDGES}
                    own |= {name: partial(mode.of_messages, getattr(part, name)) for name in _OF_MESSAGES}
                    stack.enter_context(patch.dict(vars(part), own))
            with mode:
                yield


class ByEdge(nn.Module):
    """A convolution whose messages are dropped by edge.

    Args:
        conv: what is called with one more argument, the edges.
    """

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv, self.dropout = conv, MessageDropout()

    def forward(self, *given: Any, edges: Edges, **named: Any) -> Any:
        with self.dropout.inside(self.conv, lambda: edges):
            return self.conv(*given, **named)


class _Mode(TorchFunctionMode):
    def __init__(self, dropout: MessageDropout, edges: Callable[[], Edges]) -> None:
        super().__init__()
        self._dropout, self._edges = dropout, edges
        self._ends: Tensor | None = None
        self._depth = 0

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
        if func is functional.dropout and self._depth:
            return self._drop(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _drop(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        known = isinstance(self._ends, Tensor) and training and 0 < p <= 1 and not inplace
        ids = self._edges().ids_of(self._ends) if known else None
        if ids is None or len(ids) != len(input):
            return functional.dropout(input, p, training, inplace)
        self._dropout.p = p
        return self._dropout(input, ids)

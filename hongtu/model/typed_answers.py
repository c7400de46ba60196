"""What a typed forward may ask of values while it is traced, as ``assert x["paper"].dim() == 2`` does: dimensions and
columns, which a small graph has as the graph has them."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx

from hongtu.model.expression import label
from hongtu.model.questions import OF_NUMBERS, OF_ROWS
from hongtu.model.typed_hop import EDGE_ATTR, EDGE_INDEX

EXAMPLE = "example"  # of a node's metadata: what it gives on a small graph
_DEPENDS = dict.fromkeys(("shape", "size", "len", "numel", "nelement"), OF_ROWS)
_DEPENDS |= dict.fromkeys(("dtype", "device", "is_cuda"), "it depends on what the Trainer is given")
_DIMENSIONS = "ndim", "dim", "ndimension", "is_floating_point", "is_complex", "is_sparse", "is_sparse_csr"


def answer_of(node: fx.Node, ask: Any = None) -> Any:
    """What a value is on every graph.

    Raises:
        fx.proxy.TraceError: where it depends on numbers, on the dtype, or on how many vertices and edges there are.
    """
    if not is_of_form(node) and not (ask is len and base_of(node) == EDGE_INDEX):
        asked = "len" if ask is len else label(node)
        asked = next((name for name in map(label, _before(node)) if name in _DEPENDS), asked)
        raise fx.proxy.TraceError(f"it asks for {asked}, and {_DEPENDS.get(asked, OF_NUMBERS)}")
    return node.meta[EXAMPLE]


def base_of(node: fx.Node) -> str:
    """Of what the forward is called with for one type or relation: which argument; else ""."""
    first = node.args[0] if node.target is operator.getitem else None
    return str(first.target) if isinstance(first, fx.Node) and first.op == "placeholder" else ""


def _before(node: fx.Node) -> Iterator[fx.Node]:
    """A value, and what it is made of until tensors come."""
    yield node
    for other in node.all_input_nodes:
        if not isinstance(other.meta[EXAMPLE], Tensor | dict):
            yield from _before(other)


def is_of_form(node: fx.Node) -> bool:
    """Whether a value is of dimensions and columns alone, not of numbers, nor of how many vertices and edges there are.

    Columns are those of what a graph or a module gives, or of what has its shape."""
    of = node.all_input_nodes
    first = of[0].meta[EXAMPLE] if of else None
    if isinstance(first, Tensor):
        asked = [*node.args[1:], *node.kwargs.values()]
        known = (*_DIMENSIONS, *["dtype"] * (base_of(of[0]) == EDGE_INDEX))
        return label(node) in known or (label(node) == "size" and asked != [] and _has(of[0], asked[0]))
    if isinstance(first, torch.Size):
        return label(node) == "getitem" and _has(of[0].all_input_nodes[0], node.args[1])
    return node.op == "call_function" and bool(of) and all(map(is_of_form, of))


def _has(node: fx.Node, dimension: Any) -> bool:
    """Whether a tensor of every graph has as much in that dimension as the small graph's."""
    shape = node.meta[EXAMPLE].shape
    at = dimension % len(shape) if isinstance(dimension, int) and shape else 0
    if base_of(node) == EDGE_INDEX:
        return at == 0
    while (of := node.all_input_nodes) and not _is_made(node) and not base_of(node):
        if getattr(of[0].meta[EXAMPLE], "shape", None) != shape or len({*shape}) < len(shape):
            break
        node = of[0]
    return at > 0 and (_is_made(node) or base_of(node) in ("x", EDGE_ATTR))


def _is_made(node: fx.Node) -> bool:
    """Whether a module gives it, alone or by type."""
    given = node.args[0] if label(node) == "getitem" else node
    return isinstance(given, fx.Node) and given.op == "call_module"

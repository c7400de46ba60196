"""What a trace has that layers do without: sizes and devices, which they have themselves, and what nothing changes."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx, nn

from hongtu.model.in_place import gives_rows
from hongtu.model.tracer import is_convolution

_TO_DEVICE = "to", "cpu", "cuda"


def leave_out(graph: fx.Graph, root: nn.Module) -> None:
    """Take these out of a graph."""
    _leave_out_sizes(graph, root)
    _leave_out_globals(graph, root)
    _leave_out_devices(graph)


def _leave_out_devices(graph: fx.Graph) -> None:
    """Rows are where a run has them, whatever device a forward names."""
    for node in graph.nodes:
        if node.op != "call_method" or node.target not in _TO_DEVICE:
            continue
        first, *args = node.args
        kept = [given for given in args if not _is_device(given)]
        kwargs = {name: given for name, given in node.kwargs.items() if name not in ("device", "non_blocking")}
        if node.target != "to" or not (kept or kwargs):
            node.replace_all_uses_with(first)
        elif len(kept) < len(args) or len(kwargs) < len(node.kwargs):
            node.args, node.kwargs = (first, *kept), kwargs


def _is_device(given: Any) -> bool:
    of_rows = isinstance(given, fx.Node) and given.target is getattr and given.args[1] == "device"
    return of_rows or isinstance(given, torch.device | str)


def _leave_out_sizes(graph: fx.Graph, root: nn.Module) -> None:
    """A convolution of one graph takes its size, (x.size(0), x.size(0)), as it would find it."""
    for node in graph.nodes:
        size = node.kwargs.get("size")
        if node.op != "call_module" or not size or not is_convolution(root.get_submodule(str(node.target))):
            continue
        if all(isinstance(number, fx.Node) and not gives_rows(number) for number in size):
            node.kwargs = {name: value for name, value in node.kwargs.items() if name != "size"}


def _leave_out_globals(graph: fx.Graph, root: nn.Module) -> None:
    """Hand on None for what a MetaLayer without a global model gives of the graph: it is what it was given."""
    for node in graph.nodes:
        if node.op != "call_module" or type(root.get_submodule(str(node.target))).__name__ != "MetaLayer":
            continue
        for part in [user for user in node.users if user.target is operator.getitem and user.args[1] == 2]:
            if (node.kwargs.get("u") if len(node.args) < 4 else node.args[3]) is None:
                for user in [*part.users]:
                    user.args, user.kwargs = _without(part, user.args), _without(part, user.kwargs)


def _without(part: fx.Node, given: Any) -> Any:
    return fx.node.map_arg(given, lambda other: None if other is part else other)

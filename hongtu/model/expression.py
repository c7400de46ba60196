"""What a traced forward does with rows between modules: functions and methods, put together where one takes another's.

A forward may use parameters and buffers of the model itself there; whoever computes it keeps them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from hongtu.errors import InputError
from hongtu.model.wiring import RowFunction
from hongtu.nn import Dropout

Own = tuple[str, Tensor]  # a tensor of the model itself, behind its name there


class _Keeping(RowFunction):
    """A function of rows and of tensors that are no rows: parameters are trained, others stay.

    Attributes:
        pyg_names: what its parameters are called in the model.
    """

    def __init__(self, activation: Callable[..., Any], own: Sequence[Own]) -> None:
        super().__init__(activation)
        self._own, self._places = [f"own_{k}" for k in range(len(own))], [place for place, _ in own]
        self.pyg_names = {}
        for name, (place, tensor) in zip(self._own, own, strict=True):
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(name, tensor)
                self.pyg_names[name] = place
            else:
                self.register_buffer(name, tensor, persistent=False)

    def forward(self, *rows: Any) -> Any:
        try:
            return self.activation(*rows, *(getattr(self, name) for name in self._own))
        except RuntimeError as error:
            if type(error) is not RuntimeError:  # memory that ran out
                raise
            raise InputError(
                f"from_pyg: rows, and {', '.join(self._places)} of the model: {error}; what has a row for each vertex "
                "belongs to its features, and features='embedding:D' are learned"
            ) from error


def is_expression(node: fx.Node) -> bool:
    """Whether it is a function or a method, and no dropout."""
    return node.op in ("call_function", "call_method") and node.target is not nn.functional.dropout


def expression(
    node: fx.Node, names: Mapping[fx.Node, str], own: Mapping[fx.Node, Own]
) -> tuple[list[fx.Node], list[nn.Module]]:
    """The values that a function takes, directly or by way of others, and the modules that compute it of them.

    Args:
        names: the values that there are.
        own: tensors of the model itself.
    """
    taken: list[fx.Node] = []
    order: list[fx.Node] = []

    def visit(other: fx.Node) -> None:
        for before in () if other in names or other in own else other.all_input_nodes:
            visit(before)
        found = taken if other in names else order
        if other not in found:
            found.append(other)

    visit(node)
    position = {other: k for k, other in enumerate(node.graph.nodes)}
    order.sort(key=position.__getitem__)  # what changes rows in place runs when the forward runs it
    if node.target is nn.functional.dropout:
        bound = inspect.signature(nn.functional.dropout).bind(*node.args, **node.kwargs).arguments
        rest = [] if node.args[0] in names else expression(node.args[0], names, own)[1]  # type: ignore[arg-type]
        return taken, [*rest, Dropout(float(bound.get("p", 0.5)))]
    if order == [node] and node.args == tuple(taken) and not node.kwargs:
        return taken, [RowFunction(_call(node))]

    kept = [step for step in order if step in own]
    order = [step for step in order if step not in kept]

    def apply(*values: Any) -> Any:
        at = dict(zip([*taken, *kept], values, strict=True))
        for step in order:
            args, kwargs = fx.node.map_arg((step.args, step.kwargs), at.__getitem__)
            at[step] = _call(step)(*args, **kwargs)
        return at[node]

    apply.__name__ = "_".join(map(label, order))
    return taken, [_Keeping(apply, [own[step] for step in kept]) if kept else RowFunction(apply)]


def _call(node: fx.Node) -> Callable[..., Any]:
    return node.target if callable(node.target) else _Method(str(node.target))


class _Method:
    """A method of tensors, as a function."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, rows: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return getattr(rows, self.__name__)(*args, **kwargs)


def label(node: fx.Node) -> str:
    """What messages call it."""
    return str(node.args[1]) if node.target is getattr else getattr(node.target, "__name__", str(node.target))

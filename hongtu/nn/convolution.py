"""The base class of built-in layers, and what they share: their options, linear maps, activations.

An input width need not be known when a layer is made, as torch_geometric's ``GCNConv(-1, 16)``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from numbers import Integral, Number
from typing import Any, TypedDict

import torch
from torch import Tensor
from typing_extensions import Self

from hongtu.errors import InputError, names_known
from hongtu.nn.dropout import Dropout
from hongtu.nn.layer import Layer

Activation = str | Callable[[Tensor], Tensor] | None
_COUNTS = ("in_channels", "out_channels", "heads", "K", "num_relations")  # what built-in layers count


class Common(TypedDict, total=False):
    """What every built-in layer takes beside its own options: see ``Convolution``."""

    activation: Activation
    input_dropout: float


class Convolution(Layer):
    """A built-in layer: optional dropout of its input and activation of its output, neither with parameters. With
    ``in_channels`` -1 a Trainer makes it, when it knows how many columns the layer is given.

    Args:
        activation: name of a function in ``torch.nn.functional`` ("relu", "elu", ...), a callable, or None.
        input_dropout: probability with which elements of ``h`` are dropped before everything else.
    """

    def __new__(cls: type[Self], *args: Any, **kwargs: Any) -> Self:
        if is_lazy(cls, args, kwargs):
            kwargs.pop("in_channels", None)
            return LazyLayer(cls, args[1:], kwargs)  # type: ignore[return-value]
        if cls.__module__.startswith("hongtu.nn."):
            _check_counts(cls, args, kwargs)
        return super().__new__(cls)

    @names_known
    def __init__(self, activation: Activation = None, input_dropout: float = 0.0) -> None:
        super().__init__()
        self.activation = _activation(activation)
        self.input_dropout = Dropout(input_dropout)

    def extra_repr(self) -> str:
        """The options that were given, less what follows from them and what is the planner's."""
        options = {name: value for name, value in vars(self).items() if value is not None and is_setting(value)}
        given = ("uses_edge_features", "edge_form", "weighted", "ignores_weights")
        hidden = ("training", "transform_first", "once_per_vertex", *given)
        shown = [f"{name}={value}" for name, value in options.items() if name not in hidden and name[0] != "_"]
        if self.activation is not None:
            shown.append(f"activation={getattr(self.activation, '__name__', type(self.activation).__name__)}")
        return ", ".join(shown)

    def activate(self, h: Tensor, fresh: bool = False) -> Tensor:
        """The activation of h; ``fresh``: h is nobody else's, and may be overwritten where its gradient allows."""
        if self.activation is None:
            return h
        return torch.relu_(h) if fresh and self.activation is torch.relu else self.activation(h)

    def finish(self, h: Tensor, bias: Tensor | None) -> Tensor:
        """The activation of h + bias, if there is one."""
        return self.activate(h) if bias is None else self.activate(h + bias, fresh=True)


def is_setting(value: object) -> bool:
    """Whether a value is plain, or a list or tuple of such values."""
    if isinstance(value, list | tuple):
        return all(map(is_setting, value))
    return value is None or isinstance(value, Number | str)


def _check_counts(kind: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse what a layer's class is made with where it is no number of columns, heads, ..., and has to be."""
    parameters = inspect.signature(kind.__init__).parameters
    for name, given in (*zip([*parameters][1:], args, strict=False), *kwargs.items()):
        if name not in _COUNTS or given is parameters[name].default:
            continue
        if not isinstance(given, Integral) or isinstance(given, bool) or (given < 1 and name != "K"):
            remedy = "one number of columns, -1 where it is not known" if name == "in_channels" else "a number"
            raise InputError(
                f"{kind.__name__}: {name} is {given!r}, expected a whole number of at least 1; pass {remedy}"
            )


def _activation(activation: Activation) -> Callable[[Tensor], Tensor] | None:
    if activation is None or callable(activation):
        return activation
    function = getattr(torch, activation, None) or getattr(torch.nn.functional, activation, None)
    if not callable(function):
        raise ValueError(f"activation {activation!r}: expected None, a callable or a name like 'relu' or 'elu'")
    return function


class _Elementwise(torch.nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.activation = function

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(x)


def activation_module(activation: Activation) -> torch.nn.Module:
    """An activation as a module; one that is a module already stays what it is."""
    if isinstance(activation, torch.nn.Module):
        return activation
    return torch.nn.Identity() if activation is None else _Elementwise(_activation(activation))


def linear(in_channels: int, out_channels: int, bias: bool, glorot_weight: bool = False) -> torch.nn.Linear:
    """A linear map initialised as torch_geometric's: torch's own default, or Glorot."""
    layer = torch.nn.Linear(in_channels, out_channels, bias=bias)
    if glorot_weight:
        glorot(layer.weight)
    return layer


def zeros(columns: int, wanted: bool) -> torch.nn.Parameter | None:
    """A bias, or None."""
    return torch.nn.Parameter(torch.zeros(columns)) if wanted else None


def glorot(parameter: Tensor) -> None:
    """Uniform in +-sqrt(6 / (sum of the last two dimensions)), in place."""
    limit = (6.0 / (parameter.shape[-2] + parameter.shape[-1])) ** 0.5
    torch.nn.init.uniform_(parameter, -limit, limit)


def takes_mean(layer: str, aggr: str) -> bool:
    """Whether a layer that knows sums ("sum", "add") and "mean" is asked for the latter; others are refused."""
    if aggr not in ("mean", "sum", "add"):
        raise ValueError(f"{layer}(aggr={aggr!r}): expected 'mean' or 'sum'; wrap others: PyGLayer({layer}(...))")
    return aggr == "mean"


class LazyLayer(torch.nn.Module):
    """Stands for a layer until a Trainer knows how many columns it is given; then it becomes that layer.

    Args:
        becomes: the class of the layer.
        args, kwargs: what it is made with, behind its input width.
    """

    def __init__(self, becomes: type[torch.nn.Module], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self._becomes, self._args, self._kwargs = becomes, args, kwargs

    def fill(self, columns: int) -> None:
        """Become the layer, as if it had just been made with this input width."""
        made = vars(self).pop("_becomes"), vars(self).pop("_args"), vars(self).pop("_kwargs")
        training = self.training
        self.__class__ = made[0]
        self.__init__(columns, *made[1], **made[2])
        self.train(training)

    def extra_repr(self) -> str:
        return f"{self._becomes.__name__}(-1, ...)"


def is_lazy(kind: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a layer is made with an ``in_channels`` of -1, its first argument."""
    given = args[0] if args else kwargs.get("in_channels")
    if not isinstance(given, int) or given != -1:
        return False
    return list(inspect.signature(kind.__init__).parameters)[1:2] == ["in_channels"]

"""Layers whose input width is not known when they are made, as torch_geometric's ``GCNConv(-1, 16)``."""

from __future__ import annotations

import inspect
from typing import Any

import torch


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

"""Whether modules are what they were: a look at what they hold, which is much less than to find out what it means."""

from __future__ import annotations

from collections.abc import Iterable
from operator import is_
from typing import Any

from torch import nn

from hongtu.kernels.torch_private import HOLDS

LAZY = nn.UninitializedParameter, nn.UninitializedBuffer


class Fingerprint:
    """The attributes, parameters, buffers, parts and hooks of modules, when they were seen last: the objects
    themselves, which are held, so that no other can be taken for one of them. Whether they train is no part of it.

    Args:
        roots: the modules, with all that is inside them.
    """

    def __init__(self, roots: Iterable[nn.Module]) -> None:
        self._roots = list(roots)
        self._modules: list[nn.Module] = []
        self._held: list[Any] = []
        self._forms: list[Any] = []

    def see(self) -> None:
        """Take them as they are for known."""
        self._modules = list(dict.fromkeys(module for root in self._roots for module in root.modules()))
        self._held, self._forms = self._found()

    def is_same(self) -> bool:
        """Whether all is what it was. A value that was replaced with an equal one may count as another."""
        held, forms = self._found()
        same = bool(self._modules) and len(held) == len(self._held) and all(map(is_, held, self._held))
        return same and forms == self._forms

    def _found(self) -> tuple[list[Any], list[Any]]:
        """All of it, and what may become another in a parameter that stays."""
        held, forms = [], []
        for module in self._modules:
            attributes = vars(module)
            held.append(type(module))
            held += [value for name, value in attributes.items() if name != "training"]
            for name in HOLDS:
                if parts := attributes.get(name):
                    held += parts.values()
            for p in attributes.get("_parameters", {}).values():
                if p is not None:
                    forms.append((p.dtype, p.requires_grad, None if type(p) in LAZY else p.shape))
        return held, forms

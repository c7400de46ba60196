"""Whether modules are what they were: a look at what they hold, which is much less than to find out what it means."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from operator import is_, methodcaller
from typing import Any

from torch import nn

from hongtu.kernels.torch_private import HOLDS

LAZY: tuple[type, ...] = nn.UninitializedParameter, nn.UninitializedBuffer


class Fingerprint:
    """The attributes, parameters, buffers, parts and hooks of modules, when they were seen last: the objects
    themselves, which are held, so that no other can be taken for one of them. Whether they train is no part of it.

    Args:
        roots: the modules, with all that is inside them.
    """

    def __init__(self, roots: Iterable[nn.Module]) -> None:
        self._roots = list(roots)
        self._modules: list[nn.Module] = []
        self._parts: list[dict[str, Any]] = []  # which hold what they are made of
        self._parameters: list[nn.Parameter] = []
        self._modes: list[int] = []  # where in all that is found it says whether they train
        self._end = 0  # behind their attributes there
        self._held: list[Any] = []
        self._forms: list[Any] = []

    def see(self) -> None:
        """Take them as they are for known."""
        modules = self._modules = list(dict.fromkeys(module for root in self._roots for module in root.modules()))
        self._parts = [part for module in modules for name in HOLDS if (part := vars(module).get(name)) is not None]
        self._parameters = [p for root in self._roots for p in root.parameters()]
        self._modes, at = [], len(modules)
        for module in modules:
            names = [*vars(module)]
            self._modes += [at + names.index("training")] if "training" in names else []
            at += len(names)
        self._end = at
        self._held, self._forms = self._found(), self._form()

    def is_same(self) -> bool:
        """Whether all is what it was. A value that was replaced with an equal one may count as another."""
        held = self._found()
        same = bool(self._modules) and len(held) == len(self._held) and all(map(is_, held, self._held))
        return same and self._form() == self._forms

    def _found(self) -> list[Any]:
        """All of it, None in place of whether they train: by few calls, for epochs of small graphs begin with it."""
        every = chain(map(vars, self._modules), self._parts)
        held = [*map(type, self._modules), *chain.from_iterable(map(methodcaller("values"), every))]
        for at in self._modes if len(held) >= self._end else ():
            held[at] = None
        return held

    def _form(self) -> list[Any]:
        """What may become another in a parameter that stays."""
        return [(p.dtype, p.requires_grad, None if type(p) in LAZY else p.shape) for p in self._parameters]

"""Whether modules are what they were: what a forward does to its model, and draws, while it is traced, which happens
once, and layers do not do it again; and a look at what modules hold, which is much less than to find out what it means.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from operator import is_, methodcaller
from typing import Any

import torch
from torch import nn

from hongtu.errors import InputError
from hongtu.kernels.torch_private import HOLDS, Operations, storage_id
from hongtu.model.random_state import draws_since, random_state

LAZY: tuple[type, ...] = nn.UninitializedParameter, nn.UninitializedBuffer


class OwnState(Operations):
    """Inside, a model is traced, and ``check`` afterwards refuses what its forward has changed, or drawn.

    Args:
        root: the model; where it has lazy parameters, its tensors may change.
    """

    def __init__(self, root: nn.Module) -> None:
        super().__init__()
        self._root, self._written = root, set[int]()
        self._plain, self._generators = _plain_values(root), random_state()
        lazy = any(map(nn.parameter.is_lazy, (*root.parameters(), *root.buffers())))  # the first call makes them all
        named = (("parameter", root.named_parameters()), ("buffer", root.named_buffers()))
        self._tensors = {
            name: (kind, x, storage_id(x), x.requires_grad)
            for kind, tensors in named
            for name, x in tensors
            if not lazy
        }

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for argument, given in zip(func._schema.arguments, args, strict=False):
            if argument.is_write and isinstance(given, torch.Tensor) and given.layout == torch.strided:
                self._written.add(storage_id(given))
        return func(*args, **(kwargs or {}))

    def check(self, title: str) -> None:
        """Refuse with the name of what has changed.

        Raises:
            InputError: with the title.
        """
        now = {**dict(self._root.named_parameters()), **dict(self._root.named_buffers())}
        for name, (kind, x, storage, learns) in self._tensors.items():
            same = now.get(name) is x and storage_id(x) == storage and x.requires_grad == learns
            if not same or storage in self._written:
                place = name.removeprefix("model.")
                raise InputError(
                    f"{title}.forward changes a {kind} of its own, {place}; leave that out, or do it to trainer.model "
                    "between epochs"
                )
        if draws_since(self._generators):
            raise InputError(
                f"{title}.forward draws random numbers that are not made of rows, as torch.rand(1), numpy.random or "
                "random do, and layers keep those of the first call; leave that out, or make numbers once, as a buffer"
            )
        plain = _plain_values(self._root)
        for place, value in self._plain.items():
            if plain.get(place, value) != value:
                raise InputError(
                    f"{title}.forward changes {place} of its own, from {value!r}, and layers keep what it is in the "
                    "first call; leave that out, or make a new Trainer where it changes"
                )


def _plain_values(root: nn.Module) -> dict[str, Any]:
    """Numbers, words and switches that modules of people's own keep, by their names."""
    own = ((place, part) for place, part in root.named_modules() if not type(part).__module__.startswith("torch"))
    values = (((place, name), value) for place, part in own for name, value in vars(part).items())
    plain = {at: value for at, value in values if isinstance(value, int | float | str) and at[1] != "training"}
    return {f"{place}.{name}".removeprefix("model."): value for (place, name), value in plain.items()}


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

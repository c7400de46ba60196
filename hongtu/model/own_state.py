"""What a forward does to its model, and draws, while it is traced: that happens once, and layers do not do it again."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hongtu.errors import InputError
from hongtu.kernels.torch_private import Operations, storage_id
from hongtu.model.random_state import draws_since, random_state


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

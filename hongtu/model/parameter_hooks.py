"""Hooks on parameters, run once for each epoch: autograd would call them for every chunk, with a chunk's gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from hongtu.kernels.torch_private import parameter_hooks

Hooks = dict[int, Callable[..., Any]]
Resting = list[tuple[nn.Parameter, tuple[Hooks, Hooks], tuple[Hooks, Hooks]]]


@contextmanager
def hooks_once(parameters: Iterable[nn.Parameter], resting: Resting) -> Iterator[None]:
    """Inside, hooks of parameters rest; where it ends without an error each runs once, on the gradient that is there.

    Those of ``register_hook`` come first and may return another gradient, then those of
    ``register_post_accumulate_grad_hook``, as autograd calls them.

    Args:
        resting: empty, or what an interrupt left there the last time.
    """
    _put_back(resting)
    try:
        for parameter in parameters:
            registered = parameter_hooks(parameter)
            if any(registered):
                resting.append((parameter, registered, (registered[0].copy(), registered[1].copy())))
                for hooks in registered:
                    hooks.clear()  # in place: autograd holds the dictionary
        yield
    finally:
        put_back = _put_back(resting)
    for parameter, _, rested in put_back:
        call_hooks(parameter, rested)


def call_hooks(parameter: nn.Parameter, hooks: tuple[Hooks, Hooks]) -> None:
    """Call hooks of a parameter on the gradient that is there, if there is one."""
    of_gradient, after = ([*each.values()] for each in hooks)
    for hook in of_gradient:
        if parameter.grad is not None:
            replaced = hook(parameter.grad)
            parameter.grad = parameter.grad if replaced is None else replaced
    for hook in after:
        if parameter.grad is not None:
            hook(parameter)


def _put_back(resting: Resting) -> Resting:
    """Those that were put back; an interrupt at any line leaves the others where they are."""
    put_back = list(resting)
    for _, registered, found in put_back:
        for hooks, before in zip(registered, found, strict=True):
            hooks.update(before)
    resting.clear()
    return put_back

"""Hooks on parameters, run once for each epoch: autograd would call them for every chunk, with a chunk's gradient."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn

from hongtu.kernels.torch_private import parameter_hooks


@contextmanager
def hooks_once(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Inside, hooks of parameters rest; where it ends without an error each runs once, on the gradient that is there.

    Those of ``register_hook`` come first and may return another gradient, then those of
    ``register_post_accumulate_grad_hook``, as autograd calls them.
    """
    resting = []
    try:
        for parameter in parameters:
            registered = parameter_hooks(parameter)
            if any(registered):
                resting.append((parameter, registered, tuple(list(hooks.items()) for hooks in registered)))
                for hooks in registered:
                    hooks.clear()  # in place: autograd holds the dictionary
        yield
    finally:
        for _, registered, items in resting:
            for hooks, found in zip(registered, items, strict=True):
                hooks.update(found)
    for parameter, _, (of_gradient, after) in resting:
        for _, hook in of_gradient:
            if parameter.grad is not None:
                replaced = hook(parameter.grad)
                parameter.grad = parameter.grad if replaced is None else replaced
        for _, hook in after:
            if parameter.grad is not None:
                hook(parameter)

"""What streams are given once, to be given to them again as a whole: a captured graph, and what cannot be captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

from hongtu.kernels.torch_private import Operations


class Captured(Protocol):
    """Work of all streams of some devices, with the waits between them."""

    def replay(self) -> None:
        """Give it to the streams again: the same launches, copies and operations at the same addresses."""


class Recorder(Protocol):
    """Captures what the streams of a run's devices are given."""

    def capture(self, work: Callable[[], None], drain: Callable[[], None]) -> Captured:
        """Call ``work``, which gives streams work and waits for none of it; that is done once ``drain`` has returned.

        Raises:
            CaptureError: something cannot be captured; what the streams were given may be done or not.
        """

    def beside(self) -> AbstractContextManager[None]:
        """Around what is not captured while something is: it takes the memory of what is."""

    def forget(self) -> None:
        """Nothing that was captured is needed any more: others may have its memory."""


class CaptureError(RuntimeError):
    """Work that cannot be captured."""


ASKING = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2", "unique_consecutive"}


class Asking(Operations):
    """Which operations there were inside whose result, or its size, the host asked the device for, or that copied
    between them: no graph has these.

    Attributes:
        found: their names.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        name, kwargs = func._schema.name.removeprefix("aten::"), kwargs or {}
        by_mask = name.startswith("index") and any(x.dtype in (torch.bool, torch.uint8) for x in _indices(args))
        sizes = name == "repeat_interleave" and kwargs.get("output_size") is None
        out = func(*args, **kwargs)
        tensors = (x for x in leaves_of((args, out)) if isinstance(x, Tensor))
        crosses = name in ("copy_", "_to_copy") and len({x.device.type for x in tensors}) > 1
        if name in ASKING or by_mask or sizes or crosses:
            self.found.add(name)
        return out


def _indices(args: tuple[Any, ...]) -> Iterator[Tensor]:
    return (x for given in args if isinstance(given, list | tuple) for x in given if isinstance(x, Tensor))


def leaves_of(tree: Any) -> Iterator[Any]:
    """What is in lists, tuples and dictionaries. Torch's own function leaves it behind in circles of references."""
    if isinstance(tree, list | tuple):
        for part in tree:
            yield from leaves_of(part)
    elif isinstance(tree, dict):
        yield from leaves_of([*tree.values()])
    else:
        yield tree

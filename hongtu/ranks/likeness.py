"""What ranks tell two of their objects apart by: a text that is the same for all that compute alike, as far as can be
seen. Tensors and arrays are in it by a checksum, but for what is learned."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler


def likeness(value: Any) -> str:
    """A line for each thing inside; of a function what it was made with, too, such as the weights that it closes over.

    >>> def scaled(by):
    ...     return lambda x: by * x
    >>> likeness(scaled(2)) == likeness(scaled(2)), likeness(scaled(2)) == likeness(scaled(3))
    (True, False)
    >>> print(likeness({"weight": torch.ones(2)}))
    weight: torch.float32 [2], checksum d5065190
    """
    return "\n".join(_lines(value, frozenset()))


def _lines(value: Any, inside: frozenset[int]) -> Iterator[str]:
    parts = () if id(value) in inside else _parts(value)  # some hold themselves
    if parts is None:
        yield _word(value)
        return
    if not isinstance(value, Mapping | Sequence | Set):
        yield _word(value)
    for name, part in parts:
        first, *more = [*_lines(part, inside | {id(value)})] or [""]
        yield f"{name}: {first}"
        yield from (f"{name}.{line}" for line in more)


def _word(value: Any) -> str:
    if isinstance(value, Tensor) and not value.requires_grad:
        return f"{value.dtype} {list(value.shape)}, checksum {checksum(value):08x}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)}, checksum {zlib.crc32(value.tobytes()):08x}"
    if isinstance(value, FunctionType):
        return value.__qualname__
    return repr(value) if _is_plain(value) else type(value).__name__


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | complex | str | bytes | type | np.generic)


def _parts(value: Any) -> Iterable[tuple[Any, Any]] | None:
    """What is inside, by name; None where it is looked at as a whole."""
    if isinstance(value, CellType):
        return [("closed over", value.cell_contents)] if _is_filled(value) else []
    if isinstance(value, FunctionType):
        made = [*zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)]
        return [*made, ("defaults", value.__defaults__), ("keywords", value.__kwdefaults__)]
    if isinstance(value, MethodType):
        return [("of", value.__self__), ("method", value.__func__)]
    if isinstance(value, partial):
        return [("function", value.func), ("arguments", value.args), ("keywords", value.keywords)]
    if isinstance(value, nn.Module):
        return [("module", str(value)), *value.named_buffers(), *plain_tensors(value), *_settings(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, LRScheduler):
        return [(name, part) for name, part in vars(value).items() if name != "optimizer"]
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return enumerate(value)
    if isinstance(value, Set):
        return enumerate(sorted(value, key=repr))
    if callable(value) and hasattr(value, "__dict__") and not isinstance(value, type):
        return [(name, part) for name, part in vars(value).items() if _is_plain(part) or isinstance(part, Tensor)]
    return None


def _settings(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Of a module and those inside it: numbers and names, which ``str`` leaves out."""
    for place, part in module.named_modules():
        for name, value in vars(part).items():
            if _is_plain(value) and not name.startswith("_") and name != "training":
                yield f"{place}.{name}".removeprefix("."), value


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def plain_tensors(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Tensors and arrays of a module and those inside it that are neither parameters nor buffers, by name."""
    for place, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, Tensor | np.ndarray):
                yield f"{place}.{name}".removeprefix("."), value


def checksum(tensor: Tensor) -> int:
    """Of its numbers, bit by bit."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return zlib.crc32(flat.view(torch.uint8).numpy().data)

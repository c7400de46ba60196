"""What Python says of what stands for rows while a forward is traced: that it is a tensor, as in a real call."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.fx import Proxy

_isinstance, _callable, _hasattr, _type = isinstance, callable, hasattr, type
_standing: list[Callable[[Any], Any]] = []  # of every trace that goes on, the innermost last


def _shown(value: Any) -> Any:
    """What a value stands for, but for torch and torch.fx, who know what a trace has."""
    if sys._getframe(2).f_globals.get("__name__", "").startswith("torch."):
        return value
    _standing.append(_same)  # for what is asked meanwhile
    try:
        return _standing[-2](value)
    finally:
        _standing.pop()


def _same(value: Any) -> Any:
    return value


def is_instance(value: Any, kinds: Any) -> bool:
    """``isinstance``."""
    return _isinstance(value, kinds) or _isinstance(_shown(value), kinds)


def is_callable(value: Any) -> bool:
    """``callable``."""
    return _callable(_shown(value))


def has(value: Any, name: str) -> bool:
    """``hasattr``; a ``GivenData`` says itself what it has."""
    return _hasattr(_shown(value) if _isinstance(value, Proxy) else value, name)


class OfType(type):
    """Of what stands in the place of ``type``."""

    def __call__(cls, *given: Any, **more: Any) -> Any:
        return _type(_shown(given[0])) if len(given) == 1 else _type(*given, **more)

    def __instancecheck__(cls, value: Any) -> bool:
        return _isinstance(value, _type)

    def __subclasscheck__(cls, kind: Any) -> bool:
        return issubclass(kind, _type)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is _type

    def __hash__(cls) -> int:
        return hash(_type)


class Type(type, metaclass=OfType):
    """``type``."""

    def __class_getitem__(cls, kind: Any) -> Any:
        return type[kind]


@contextmanager
def answered_for(stands_for: Callable[[Any], Any]) -> Iterator[None]:
    """Inside, ``isinstance``, ``type``, ``callable`` and ``hasattr`` answer for what a value stands for.

    Args:
        stands_for: of any value, what it stands for: the same where it stands for itself.
    """
    instead = {"isinstance": is_instance, "callable": is_callable, "hasattr": has, "type": Type}
    before = {name: getattr(builtins, name) for name in instead}
    _standing.append(stands_for)
    vars(builtins).update(instead)
    try:
        yield
    finally:
        vars(builtins).update(before)
        _standing.pop()

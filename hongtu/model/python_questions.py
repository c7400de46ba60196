"""What Python says of what stands for rows while a forward is traced: that it is a tensor, as in a real call."""

from __future__ import annotations

import builtins
import dis
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from torch.fx import Proxy

_isinstance, _callable, _hasattr, _type = isinstance, callable, hasattr, type
_standing: list[Callable[[Any], Any]] = []  # of every trace that goes on, the innermost last


def _shown(value: Any) -> Any:
    """What a value stands for, but for torch and torch.fx, who know what a trace has, and ``copy.copy``."""
    if sys._getframe(2).f_globals.get("__name__", "").startswith(("torch.", "copy")):
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


def class_of(value: Any) -> Any:
    """What a property ``__class__`` gives who reads it: what ``type`` does there.

    Raises:
        AttributeError: where C asks, or ``getattr``: torch's own takes what says that it is a tensor for one.
    """
    frame = sys._getframe(1)
    reader = frame.f_globals.get("__name__", "")
    if not _standing or reader == "abc" or reader.startswith(("torch.", "hongtu.")):
        return _type(value)
    if dis.opname[frame.f_code.co_code[frame.f_lasti]] not in ("LOAD_ATTR", "MATCH_CLASS"):
        raise AttributeError("__class__, of which type(...) is known")
    return _type(_shown(value))


def goes_by_identity(frame: FrameType) -> bool:
    """Whether what is read in a frame is compared by ``is``, which no object can answer."""
    code, above = frame.f_code.co_code, 0  # what is read, and what lies above it on the stack
    for at in range(frame.f_lasti + 2, len(code), 2):
        name, argument = dis.opname[code[at]], code[at + 1] if code[at] >= dis.HAVE_ARGUMENT else None
        if name == "IS_OP" or name.endswith("_NONE"):
            return above == 0 or (name == "IS_OP" and above == 1)
        of_it = above == 0 and name in ("LOAD_ATTR", "LOAD_METHOD")  # another is read, of what is read
        if of_it or not name.startswith(("LOAD_", "CACHE", "NOP", "EXTENDED_ARG")):
            return False
        above += dis.stack_effect(code[at], argument, jump=False)
    return False


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

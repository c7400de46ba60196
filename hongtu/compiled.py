"""Code that numba compiles, at the first call that is worth it: until then a kernel runs plainly.

Numba takes a third of a second to import and about a second to compile a kernel, which a graph of some thousand
vertices never earns back. So a kernel that has a plain form runs that until the elements it was given are as many as
compiling would have paid for; both give the same bits, so that nobody notices which of them ran. A kernel without one
is compiled by its first call. Compiled code is kept where numba finds a directory for it; where there is none, in a
directory of this process's own, and a note says so.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import update_wrapper
from hashlib import sha256
from types import CodeType, FunctionType
from typing import Any

from hongtu.errors import note
from hongtu.parallel import parallel_for

LOOPS, ARRAYS = 300_000, 100_000_000  # elements that plain loops, and plain operations on arrays, are given in all
AT_ONCE = 5_000_000  # elements in one call: operations on arrays take several times the memory of compiled loops
SMALL = 1 << 16  # edges and vertices of a graph up to which plain kernels take no longer than compiling
ALWAYS = os.environ.get("HONGTU_COMPILE") == "always"  # kernels are compiled by their first call, as in large graphs


def compiled(
    function: Callable[..., Any] | None = None, *, plain: Any = None, until: int | None = None, **options: Any
) -> Any:
    """A decorator for what ``numba.njit`` is to compile, when somebody calls it and it is worth it.

    Args:
        plain: what runs until then, with the same arguments and the same bits: a function of operations on arrays, or
            True for the decorated one itself, its loops in Python (then without unsigned integers, which numpy 1 adds
            to others as floats). None compiles at the first call.
        until: elements of arguments that ``plain`` is given in all (default: as many as suit loops or arrays).
        options: of ``numba.njit``; ``cache`` and ``nogil`` are on. ``noalias``: no array overlaps one that is written.
    """
    if function is None:
        return lambda decorated: Compiled(decorated, plain, until, options)
    return Compiled(function, plain, until, options)


class Compiled:
    """A function that is compiled when it is first worth it.

    Attributes:
        py_func: the function.
        plain: what runs before, or None.
        targetoptions: of ``numba.njit``.
    """

    def __init__(self, function: Callable[..., Any], plain: Any, until: int | None, options: dict[str, Any]) -> None:
        update_wrapper(self, function)
        self.py_func, self.plain = function, function if plain is True else plain
        self.targetoptions = {"cache": True, "nogil": True} | options
        self._left = 0 if plain is None or ALWAYS else until or (LOOPS if plain is True else ARRAYS)
        self._dispatcher: Any = None

    def __call__(self, *args: Any, **named: Any) -> Any:
        return (self.plain if self._runs_plainly(*args, *named.values()) else self.dispatcher)(*args, **named)

    def each(self, count: int, *args: Any) -> None:
        """Call it with every part of ``range(count)`` and these arguments, on several threads; ``plain`` is called
        once, without a part."""
        if not self._runs_plainly(*args):
            parallel_for(self.dispatcher, count, *args)
        elif self.plain is not self.py_func:
            self.plain(*args)
        else:
            for part in range(count):
                self.plain(part, *args)

    def _runs_plainly(self, *args: Any) -> bool:
        if self._dispatcher is None and self._left > 0:
            given = 1 + sum(map(_elements, args))
            self._left = 0 if given > AT_ONCE else self._left - given
            return self._left > 0
        return False

    @property
    def dispatcher(self) -> Any:
        """What ``numba.njit`` makes of the function and of those that it calls; two threads that ask at the same time
        may each make one. There is no lock: an interrupt could leave it locked, and other threads would wait for
        ever."""
        if self._dispatcher is None:
            made = _make(self.py_func, self.targetoptions)
            self._dispatcher = self._dispatcher or made
        return self._dispatcher

    @property
    def _numba_type_(self) -> Any:
        """For compiled code with the globals of its module."""
        return self.dispatcher._numba_type_


def _elements(arg: Any) -> int:
    return sum(map(_elements, arg)) if isinstance(arg, tuple) else getattr(arg, "size", 1)


def _make(function: Any, options: dict[str, Any]) -> Any:
    import numba

    copy = FunctionType(function.__code__, _for_numba(function), function.__name__, function.__defaults__)
    copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
    stated = {name: value for name, value in options.items() if name != "noalias"}
    try:
        made = numba.njit(**stated)(copy)
    except RuntimeError:  # no directory is found for it
        made = numba.njit(**stated | {"cache": _own_directory()})(copy)
    if options.get("noalias"):
        made._compiler._customize_flags = _without_aliases
    if options["cache"]:
        made._cache = _Kept(made._cache, _fingerprint(function, options))
    return made


def _without_aliases(flags: Any) -> Any:
    """Numba says it of bodies of parallel loops alone: loops over rows that may overlap others hardly vectorise."""
    flags.noalias = True
    return flags


def _for_numba(function: Any) -> dict[str, Any]:
    """The globals of a function, with what numba knows in place of what stands for it here. A function that compiled
    code needs overloaded has a ``teach_numba``, which does that."""
    found = dict(function.__globals__)
    for name in function.__code__.co_names:
        value: Any = found.get(name)
        if isinstance(value, Compiled):
            found[name] = value.dispatcher
        elif hasattr(value, "teach_numba"):
            value.teach_numba()  # until it is taught; twice does no harm
            vars(value).pop("teach_numba", None)
    return found


def _fingerprint(function: Any, options: dict[str, Any]) -> str:
    """Of all that compiled code depends on: numba looks at the function's own file, not at what it calls in others."""
    stated = {name: sorted(value) if isinstance(value, set) else value for name, value in options.items()}
    found, left = [repr(sorted(stated.items()))], [function]
    for one in left:
        code = one.__code__
        found += [code.co_code.hex(), repr([x for x in code.co_consts if not isinstance(x, CodeType)])]
        for name in code.co_names:
            value = one.__globals__.get(name)
            value = value.py_func if isinstance(value, Compiled) else value
            if isinstance(value, (int, float, str)):
                found.append(f"{name} = {value!r}")
            elif isinstance(value, FunctionType) and value not in left:
                left.append(value)
    return sha256("\n".join(found).encode()).hexdigest()


class _Kept:
    """A cache of compiled code, by a fingerprint, on a disk that may become full: then code lives as long as the
    process."""

    def __init__(self, cache: Any, fingerprint: str) -> None:
        self._cache, key_of = cache, cache._index_key
        cache._index_key = lambda signature, codegen: (*key_of(signature, codegen), fingerprint)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def save_overload(self, signature: Any, data: Any) -> None:
        try:
            self._cache.save_overload(signature, data)
        except OSError as error:
            _say(f"compiled code cannot be kept in {self._cache.cache_path}: {error.strerror}")


_said: list[str] = []
_own: list[str] = []  # directories of this process


def _say(what: str) -> None:
    if not _said:
        _said.append(what)
        note(f"{what}; every run compiles anew. Set NUMBA_CACHE_DIR to a directory that can be written and stays")


def _own_directory() -> bool:
    """Give numba a directory that lives as long as this process, and that those that it starts use, too; False where
    none can be made."""
    import numba

    try:
        made = tempfile.mkdtemp(prefix="hongtu-compiled-")  # for this user alone
    except OSError:
        made = ""
    else:
        _own.append(made)
        atexit.register(_remove, made, os.getpid())
        numba.config.CACHE_DIR = os.environ["NUMBA_CACHE_DIR"] = made
    _say("there is no directory where compiled code can be kept")
    return bool(made)


def kept_in() -> str | None:
    """Where numba keeps what it compiles of this package; None where there is no such place that stays."""
    from numba.core.caching import FunctionCache

    try:
        return None if _own else str(FunctionCache(kept_in).cache_path)
    except RuntimeError:
        return None


def _remove(directory: str, owner: int) -> None:
    if os.getpid() == owner:  # not a process that was forked
        shutil.rmtree(directory, ignore_errors=True)

"""Pickles of arrays, read without running what they say: no function is called and no object is made by name.

A pickle is a program: it names functions, calls them, and fills objects in place, numpy's types among them, whose
forged state reaches memory that is not theirs. Here its instructions build lists, dictionaries and plain values, and
an array is made from a type and bytes that were checked. What they make is no larger than a few times the file.
"""

from __future__ import annotations

import math
import pickletools
from dataclasses import dataclass
from typing import Any

import numpy as np

NUMBERS = {f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)} | {"b1", "f2", "f4", "f8"}  # types of arrays
PLAIN = {
    "INT", "LONG", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES",
}  # fmt: skip
EMPTY = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple}
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
PACKAGES = {
    "defaultdict": "collections", "list": "builtins", "object": "builtins", "_reconstructor": "copyreg",
    "encode": "_codecs", "ndarray": "numpy", "dtype": "numpy", "_reconstruct": "numpy", "scalar": "numpy",
    "csr_matrix": "scipy",
}  # fmt: skip
RENAMED = {"__builtin__": "builtins", "copy_reg": "copyreg"}  # of Python 2


@dataclass(frozen=True)
class Name:
    """A function or class that the pickle names."""

    name: str


CALLS: dict[str, tuple[int, list[tuple[Any, ...]]]] = {  # arguments that decide what a call gives, and what may follow
    "defaultdict": (0, [(Name("list"),)]),
    "encode": (1, [("latin1",)]),
    "dtype": (1, [(), (False, True)]),
    "scalar": (2, [()]),
    "_reconstruct": (1, [((0,), "b"), ((0,), b"b")]),
    "_reconstructor": (1, [(Name("object"), None)]),
    "csr_matrix": (0, [()]),
}  # fmt: skip


@dataclass
class Made:
    """What the pickle makes of a class.

    Attributes:
        kind: "array", "dtype" or "matrix".
        value: ndarray, numpy.dtype, or the parts of a matrix; None before they were given.
    """

    kind: str
    value: Any = None


def load_arrays(content: bytes) -> Any:
    """What a pickle of protocols 0 to 4 holds: plain values, and ``Made`` arrays and matrices.

    Raises:
        Exception: of any kind, where it is damaged or holds something else.
    """
    machine = _Machine(len(content))
    for code, argument, at in pickletools.genops(content):  # refuses lengths beyond the end
        if code.name == "STOP":
            return machine.stack[-1]
        _expect(code.name != "FRAME" or at + argument < len(content), "the whole file")
        machine.step(code.name, argument)
    raise ValueError("it has no end")


class _Machine:
    """The stack that a pickle works on; ``size`` bytes are the most that text may become."""

    def __init__(self, size: int) -> None:
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # under marks
        self.memo: dict[Any, Any] = {}
        self.size = self.most = size

    def step(self, name: str, argument: Any) -> None:
        """One instruction."""
        stack = self.stack
        if name in PLAIN:
            stack.append(argument)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name in EMPTY:
            stack.append(EMPTY[name]())
        elif name == "MARK":
            self.below.append(stack)
            self.stack = []
        elif name in ("LIST", "TUPLE", "DICT", "APPENDS", "SETITEMS"):
            self.stack = self.below.pop()
            self._gather(name, stack)
        elif name in TUPLES:
            stack[-TUPLES[name] :] = [tuple(stack[-TUPLES[name] :])]
        elif name in ("APPEND", "SETITEM"):
            count = 1 + (name == "SETITEM")
            found = stack[-count:]
            del stack[-count:]
            self._gather(f"{name}S", found)
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            _expect(argument is None or argument <= self.most, "no more places than the file has bytes")
            self.memo[len(self.memo) if name == "MEMOIZE" else argument] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            words = argument.split(" ", 1) if name == "GLOBAL" else [stack.pop(-2), stack.pop()]
            stack.append(_name(*words))
        elif name in ("REDUCE", "NEWOBJ", "BUILD"):
            given = stack.pop()
            stack[-1] = self._fill(stack[-1], given) if name == "BUILD" else self._make(stack[-1], given)
        elif name != "FRAME":
            _expect(name == "PROTO" and argument <= 4, f"a pickle of protocol 4 at most, and no {name}")

    def _gather(self, name: str, found: list[Any]) -> None:
        if name in ("LIST", "TUPLE"):
            self.stack.append(found if name == "LIST" else tuple(found))
            return
        if name == "DICT":
            self.stack.append({})
        into = self.stack[-1]
        if name == "APPENDS":
            _expect(type(into) is list, "a list")
            into.extend(found)
            return
        keys = found[::2]
        _expect(type(into) is dict and len(found) % 2 == 0, "a dictionary")
        _expect(all(isinstance(key, int | str | np.integer) for key in keys), "keys that are integers or names")
        into.update(zip(keys, found[1::2], strict=True))

    def _make(self, named: Any, given: Any) -> Any:
        """What a call of a name gives."""
        _expect(type(named) is Name and type(given) is tuple and named.name in CALLS, "a call of a name")
        count, rest = CALLS[named.name]
        _expect(len(given) >= count and given[count:] in rest, f"{named.name} as it is called where files are written")
        if named.name == "defaultdict":
            return {}
        if named.name == "encode":
            self.size -= len(given[0])
            _expect(self.size >= 0, "no more bytes than the file has")
            return given[0].encode("latin1")
        if named.name == "dtype":
            _expect(given[0] in NUMBERS, "an array of numbers")
            return Made("dtype", np.dtype(given[0]))
        if named.name == "scalar":
            return _array(given[0], (1,), given[1])[0]
        kind = given[0].name if named.name != "csr_matrix" else "csr_matrix"
        _expect(kind in ("ndarray", "csr_matrix"), f"no {kind}")
        return Made("array" if kind == "ndarray" else "matrix")

    def _fill(self, made: Any, state: Any) -> Any:
        """An object with its state."""
        _expect(type(made) is Made, "an array or a matrix to fill")
        if made.kind == "matrix":
            _expect(type(state) is dict, "the parts of a matrix")
            made.value = state
        elif made.kind == "array":
            version, shape, kind, by_column, data = state
            _expect(version in (0, 1), "the state of an array")
            flat = _array(kind, shape, data).ravel()
            made.value = flat.reshape(shape, order="F" if by_column else "C")
        else:
            good = type(state) is tuple and state[0] in (3, 4) and state[1] in ("<", ">", "|", "=")
            good = good and len(state) == 8 and not any(state[2:5]) and all(type(n) is int for n in state[5:])
            _expect(good, "an array of numbers")
            made.value = made.value.newbyteorder(state[1])
        return made


def _array(kind: Any, shape: Any, data: Any) -> np.ndarray:
    """Numbers of a type from bytes, which must be as many as they are."""
    _expect(type(kind) is Made and kind.kind == "dtype", "an array's type")
    _expect(type(shape) is tuple and all(type(n) is int and n >= 0 for n in shape), "an array's shape")
    content = data.encode("latin1") if type(data) is str else data
    _expect(type(content) is bytes and len(content) == math.prod(shape) * kind.value.itemsize, "an array's bytes")
    array = np.frombuffer(content, dtype=kind.value).reshape(shape)
    return array.view(np.uint8).astype(bool) if kind.value.kind == "b" else array


def _name(module: str, name: str) -> Name:
    package = RENAMED.get(module, module).split(".")[0]
    if PACKAGES.get(name) != package:
        raise ValueError(f"{package}.{name} is not allowed")
    return Name(name)


def _expect(good: bool, what: str) -> None:
    if not good:
        raise ValueError(f"expected {what}")

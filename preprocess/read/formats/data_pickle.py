"""Pickles of arrays, read without running what they say: no function is called and no object is made by name.

A pickle is a program: it names functions, calls them, and fills objects in place, numpy's types among them, whose
forged state reaches memory that is not theirs. Here Python's own reader goes through it, with the few instructions that
build lists, dictionaries and plain values, and functions of this file in place of those that it names: an array is made
from a type and bytes that were checked. What they make is no larger than a few times the file.
"""

from __future__ import annotations

import io
import math
import pickle
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

NUMBERS = {f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)} | {"b1", "f2", "f4", "f8"}  # types of arrays
INSTRUCTIONS = (
    "INT", "LONG", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES", "NONE", "NEWTRUE",
    "NEWFALSE", "EMPTY_LIST", "EMPTY_TUPLE", "MARK", "LIST", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "APPEND", "APPENDS",
    "SETITEM", "SETITEMS", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET", "LONG_BINGET", "GLOBAL",
    "STACK_GLOBAL", "REDUCE", "FRAME", "PROTO", "STOP",
)  # fmt: skip
PACKAGES = {
    "defaultdict": "collections", "list": "builtins", "object": "builtins", "_reconstructor": "copyreg",
    "encode": "_codecs", "ndarray": "numpy", "dtype": "numpy", "_reconstruct": "numpy", "scalar": "numpy",
    "csr_matrix": "scipy",
}  # fmt: skip
RENAMED = {"__builtin__": "builtins", "copy_reg": "copyreg"}  # of Python 2


@dataclass
class Made:
    """What the pickle makes of a class.

    Attributes:
        kind: "array", "dtype" or "matrix".
        value: ndarray, numpy.dtype, or the parts of a matrix; None before they were given.
    """

    kind: str
    value: Any = None


class Dictionary(dict):
    """A dictionary whose keys take no time to compare: tuples within tuples would."""

    def __setitem__(self, key: Any, value: Any) -> None:
        _expect(isinstance(key, int | str | np.integer), "keys that are integers or names")
        super().__setitem__(key, value)


def load_arrays(content: bytes) -> Any:
    """What a pickle of protocols 0 to 4 holds: plain values, and ``Made`` arrays and matrices.

    Raises:
        Exception: of any kind, where it is damaged or holds something else.
    """
    _expect(content[:1] != pickle.PROTO or content[1:2] <= b"\4", "a pickle of protocol 4 at most")
    try:
        return _Reader(content).load()
    except EOFError:
        raise ValueError("it has no end") from None


def _load_pairs(reader: Any) -> None:
    reader.append(Dictionary())


def _load_dict(reader: Any) -> None:
    items = reader.pop_mark()
    reader.append(Dictionary())
    for key, value in zip(items[::2], items[1::2], strict=True):
        reader.stack[-1][key] = value


def _load_build(reader: Any) -> None:
    state = reader.stack.pop()
    _fill(reader.stack[-1], state)


class _Reader(pickle._Unpickler):  # in Python: that in C takes memory for a number
    """Python's reader, to which names mean functions of this file."""

    dispatch: ClassVar[dict[int, Any]] = {
        code[0]: pickle._Unpickler.dispatch[code[0]] for code in (getattr(pickle, name) for name in INSTRUCTIONS)
    } | {
        pickle.EMPTY_DICT[0]: _load_pairs, pickle.DICT[0]: _load_dict, pickle.BUILD[0]: _load_build,
        pickle.NEWOBJ[0]: pickle._Unpickler.dispatch[pickle.REDUCE[0]],
    }  # fmt: skip

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="latin1")
        self._left = len(content)  # bytes that text may become
        self._functions = {
            "defaultdict": lambda kind: Dictionary(), "encode": self._encode, "dtype": _dtype, "scalar": _scalar,
            "_reconstruct": _empty_array, "_reconstructor": _empty_matrix, "csr_matrix": lambda: Made("matrix"),
        }  # fmt: skip

    def find_class(self, module: str, name: str) -> Any:
        """What stands for a function or class: of those that are only named, the name."""
        package = RENAMED.get(module, module).split(".")[0]
        if PACKAGES.get(name) != package:
            raise ValueError(f"{package}.{name} is not allowed")
        return self._functions.get(name, name)

    def _encode(self, text: str, alphabet: str) -> bytes:
        self._left -= len(text)
        _expect(alphabet == "latin1" and self._left >= 0, "no more bytes than the file has")
        return text.encode("latin1")


def _dtype(kind: Any, align: Any = False, copy: Any = True) -> Made:
    _expect(type(kind) is str and kind in NUMBERS and not align and copy in (0, 1), "an array of numbers")
    return Made("dtype", np.dtype(kind))


def _scalar(kind: Any, data: Any) -> Any:
    return _array(kind, (1,), data)[0]


def _empty_array(kind: Any, shape: Any, code: Any) -> Made:
    _expect(kind == "ndarray" and shape == (0,) and code in ("b", b"b"), "an array")
    return Made("array")


def _empty_matrix(kind: Any, base: Any, state: None) -> Made:
    _expect(callable(kind) and base == "object" and state is None, "a matrix")
    return kind()


def _fill(made: Any, state: Any) -> None:
    """Give an object its state."""
    _expect(type(made) is Made, "an array or a matrix to fill")
    if made.kind == "matrix":
        _expect(isinstance(state, dict), "the parts of a matrix")
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


def _array(kind: Any, shape: Any, data: Any) -> np.ndarray:
    """Numbers of a type from bytes, which must be as many as they are."""
    _expect(type(kind) is Made and kind.kind == "dtype", "an array's type")
    _expect(type(shape) is tuple and all(type(n) is int and n >= 0 for n in shape), "an array's shape")
    content = data.encode("latin1") if type(data) is str else data
    _expect(type(content) is bytes and len(content) == math.prod(shape) * kind.value.itemsize, "an array's bytes")
    array = np.frombuffer(content, dtype=kind.value).reshape(shape)
    return array.view(np.uint8).astype(bool) if kind.value.kind == "b" else array


def _expect(good: bool, what: str) -> None:
    if not good:
        raise ValueError(f"expected {what}")

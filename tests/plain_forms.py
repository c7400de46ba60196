"""Runs the plain form of a kernel and the compiled one on equal arguments, and compares everything that comes of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from hongtu.compiled import Compiled


def assert_same(kernel: Compiled, *args: Any) -> Any:
    """What the kernel gives, which is the same, bit for bit, in both forms; so are the arrays that it writes to."""
    assert kernel.plain is not None, f"{kernel.__qualname__} has no plain form"
    plainly, compiled = _copies(args), _copies(args)
    given, expected = kernel.plain(*plainly), kernel.dispatcher(*compiled)
    for a, b in zip((given, *plainly), (expected, *compiled), strict=True):
        _assert_equal(kernel.__qualname__, a, b)
    return expected


def assert_each_same(kernel: Compiled, count: int, *args: Any) -> Any:
    """The last array, which is the same when all are given to the plain form and when each of ``count`` parts is given
    to the compiled one; so are the others."""
    assert kernel.plain is not None, f"{kernel.__qualname__} has no plain form"
    plainly, compiled = _copies(args), _copies(args)
    kernel.plain(*plainly)
    for part in reversed(range(count)):
        kernel.dispatcher(part, *compiled)
    for a, b in zip(plainly, compiled, strict=True):
        _assert_equal(kernel.__qualname__, a, b)
    return compiled[-1]


def _copies(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(x.copy() if isinstance(x, np.ndarray) else x for x in args)


def _assert_equal(name: str, a: Any, b: Any) -> None:
    if isinstance(b, tuple):
        assert len(a) == len(b), name
        for x, y in zip(a, b, strict=True):
            _assert_equal(name, x, y)
    elif b is None:
        assert a is None, name
    else:
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape, (name, a.shape, b.shape)
        if isinstance(b, np.ndarray) and b.ndim:
            assert a.dtype == b.dtype, (name, a.dtype, b.dtype)
        np.testing.assert_array_equal(a, b, err_msg=name)

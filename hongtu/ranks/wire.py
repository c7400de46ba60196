"""What ranks tell each other, as bytes: plain values and tensors.

What arrives is data and nothing else: it is never evaluated, what is of no known kind is refused by name, and sizes are
compared with what is there before memory is taken.

A *frame* has the same length whatever is said, so that ranks which say different things still exchange it: a head,
which says in which call the rank is, and the message itself where it fits. A message is a text (JSON), then the bytes
of the tensors that the text names, each from a multiple of ``ALIGNED`` on.
"""

from __future__ import annotations

import base64
import json
import struct
from collections import OrderedDict
from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hongtu.errors import InputError
from hongtu.ranks.words import printable

FRAME = 4096  # bytes
MAGIC = b"hongtu 1"
FRONT = struct.Struct("!8sHQ")  # MAGIC, bytes of the head, bytes of the message
LONGEST_HEAD = 512
ALIGNED = 16
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
        torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    )
}  # fmt: skip
REMEDY = "start every rank with the same version of hongtu, and let nothing else send in its process group"


class Whereabouts(NamedTuple):
    """Where a rank is when it exchanges something.

    Attributes:
        method: that it has called, "train_epoch inside fit"; "" in none.
        call: how many methods it has called.
        exchange: how many exchanges this call has begun.
        what: is exchanged.
    """

    method: str
    call: int
    exchange: int
    what: str

    def __str__(self) -> str:
        return f"{self.method} (call {self.call})" if self.method else f"no method (after call {self.call})"


def check_whereabouts(places: list[Whereabouts]) -> None:
    """Refuse ranks that are in different calls, or at different exchanges of one.

    Raises:
        InputError: the same on every rank.

    >>> check_whereabouts([Whereabouts("evaluate", 7, 1, "call"), Whereabouts("fit", 7, 1, "call")])
    Traceback (most recent call last):
    hongtu.errors.InputError: rank 0 is in evaluate (call 7), rank 1 in fit (call 7); every rank must call the same \
methods in the same order: take the call out of `if rank == 0`
    """
    if len(set(places)) == 1:
        return
    said = list(map(str, places))
    if len(set(said)) == 1:
        said = [f"exchange {place.exchange} ({place.what}) of {place}" for place in places]
    ranks: dict[str, list[int]] = {}
    for rank, text in enumerate(said):
        ranks.setdefault(text, []).append(rank)
    found = [
        f"{'rank' if len(of) == 1 else 'ranks'} {' and '.join(map(str, of))}"
        f"{'' if k else ' is' if len(of) == 1 else ' are'} in {text}"
        for k, (text, of) in enumerate(ranks.items())
    ]
    gone = any(not place.method for place in places)
    raise InputError(
        f"{', '.join(found)}; every rank must call the same methods in the same order: take the call out of "
        f"`if rank == 0`{', or see what stopped the last call of the rank that is in none, above' if gone else ''}"
    )


# ------------------------------------------------------------------------------------------------------------- messages


def encode(value: Any) -> bytearray:
    """A message that ``decode`` reads: None, bool, int, float, complex, str, bytes, tensors and arrays, and lists,
    tuples and dictionaries of these.

    Raises:
        InputError: for anything else.
    """
    tensors: list[np.ndarray] = []
    text = json.dumps(_plain(value, tensors)).encode()
    parts: list[Any] = [len(text).to_bytes(8, "big") + text, *tensors]
    return bytearray().join(piece for part in parts for piece in (part, bytes(-len(part) % ALIGNED)))


def decode(message: bytes | bytearray | memoryview, who: str) -> Any:
    """What was encoded; tensors and arrays are copies.

    Args:
        who: sent it, for people.

    Raises:
        InputError: when it is no message.
    """
    message = memoryview(message)
    try:
        end = 8 + int.from_bytes(message[:8], "big")
        if end > len(message):
            raise ValueError(f"a text of {end - 8} bytes in {len(message)}")
        return _Reader(message[_aligned(end) :]).value(json.loads(bytes(message[8:end])))
    except (ValueError, TypeError, LookupError, ArithmeticError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{who} sent what is no message of hongtu ({reason}); {REMEDY}") from None


def _plain(value: Any, tensors: list[np.ndarray]) -> Any:
    """It, as JSON has it; what JSON does not know is {its kind: its parts}."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, Tensor):
        value = value.detach().cpu().contiguous()
        tensors.append(value.reshape(-1).view(torch.uint8).numpy())
        return {"tensor": [str(value.dtype).removeprefix("torch."), list(value.shape)]}
    if isinstance(value, np.ndarray) and str(value.dtype) in DTYPES:
        tensors.append(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
        return {"array": [str(value.dtype), list(value.shape)]}
    if isinstance(value, dict):
        pairs = [[_plain(key, tensors), _plain(entry, tensors)] for key, entry in value.items()]
        if isinstance(value, OrderedDict):  # a state_dict, which has the versions of its modules beside it
            return {"state_dict": [pairs, _plain(getattr(value, "_metadata", None), tensors)]}
        return {"dict": pairs}
    if isinstance(value, list | tuple):
        parts = [_plain(entry, tensors) for entry in value]
        return parts if isinstance(value, list) else {"tuple": parts}
    raise InputError(f"ranks: {type(value)} cannot be sent; expected tensors and plain values")


class _Reader:
    """Of a message, given its tensors' bytes."""

    def __init__(self, rest: memoryview) -> None:
        self._rest = rest

    def value(self, parts: Any) -> Any:
        if isinstance(parts, list):
            return [self.value(part) for part in parts]
        if not isinstance(parts, dict):
            return parts
        [(kind, inner)] = parts.items()
        if kind not in _KINDS:
            raise ValueError(f"a value of kind {kind[:40]!r}; expected one of {', '.join(_KINDS)}")
        return _KINDS[kind](self, inner)

    def pairs(self, parts: Any) -> dict[Any, Any]:
        return {self.value(key): self.value(entry) for key, entry in parts}

    def state_dict(self, parts: Any) -> OrderedDict[Any, Any]:
        pairs, metadata = parts
        found = OrderedDict(self.pairs(pairs))
        if metadata is not None:
            found._metadata = self.value(metadata)  # type: ignore[attr-defined]
        return found

    def tensor(self, parts: Any) -> Tensor:
        dtype, shape = checked_shape(parts)
        size = prod(shape) * dtype.itemsize
        if size > len(self._rest):
            raise ValueError(f"a tensor {list(shape)} of {size} bytes in {len(self._rest)}")
        content, self._rest = bytearray(self._rest[:size]), self._rest[_aligned(size) :]
        return (torch.frombuffer(content, dtype=dtype) if size else torch.empty(0, dtype=dtype)).view(shape)


# by functions that hold no message: a circle of references would keep it until Python looks for such
_KINDS: dict[str, Callable[[_Reader, Any], Any]] = {
    "bytes": lambda reader, parts: base64.b64decode(parts, validate=True),
    "complex": lambda reader, parts: complex(*map(float, parts)),
    "tensor": _Reader.tensor,
    "array": lambda reader, parts: reader.tensor(parts).numpy(),
    "dict": _Reader.pairs,
    "state_dict": _Reader.state_dict,
    "tuple": lambda reader, parts: tuple(reader.value(part) for part in parts),
}


def checked_shape(parts: Any) -> tuple[torch.dtype, tuple[int, ...]]:
    """The dtype and the shape that another rank says.

    Raises:
        ValueError: when they are none.
    """
    name, shape = parts
    if name not in DTYPES or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"a tensor {name!r} {shape!r}")
    return DTYPES[name], tuple(shape)


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


# --------------------------------------------------------------------------------------------------------------- frames


def pack(place: Whereabouts, message: bytes | bytearray) -> bytes:
    """The frame of a message: ``FRAME`` bytes, with the message where it fits."""
    head = json.dumps(place).encode()
    if len(head) > LONGEST_HEAD:
        head = json.dumps(place._replace(method=place.method[:40], what=place.what[:40])).encode()
    front = FRONT.pack(MAGIC, len(head), len(message)) + head
    return (front + (message if len(message) <= FRAME - len(front) else b"")).ljust(FRAME, b"\0")


def unpack(frame: bytes | memoryview, who: str) -> tuple[Whereabouts, int, memoryview | None]:
    """Where the rank is that sent a frame, the bytes of its message, and this where it fitted.

    Raises:
        InputError: when it is no frame.
    """
    frame = memoryview(frame)
    magic, length, size = FRONT.unpack_from(frame)
    first = FRONT.size + length
    try:
        if magic != MAGIC or length > LONGEST_HEAD:
            raise ValueError(f"it begins with {bytes(magic)!r}")
        method, call, exchange, what = json.loads(bytes(frame[FRONT.size : first]))
        if not (type(method) is type(what) is str and type(call) is type(exchange) is int):
            raise ValueError("it says no place")
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{who} sent what is no frame of hongtu ({error}); {REMEDY}") from None
    fits = size <= len(frame) - first
    return (
        Whereabouts(printable(method), call, exchange, printable(what)),
        size,
        frame[first : first + size] if fits else None,
    )

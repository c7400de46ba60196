"""Damage to the bytes of a file, decided by a random generator."""

from __future__ import annotations

import re

import numpy as np

NUMBERS = (b"0", b"-1", b"1", b"25", b"4294967296", b"9223372036854775807", b"99999999999999999999", b"1e308", b"NaN")
WORDS = (b"'|O'", b"'<i8'", b"'>i8'", b"'<U9'", b"True", b"(", b"))", b"{", b'"', b"\\ud800", b"\x00", b"\xff\xfe",
         b"null", b"[]", b"\n", b"\r\n", b"\t", b",", b"  ", b"#", b"%", b"[" * 2000)  # fmt: skip
INTEGERS = (-1, 0, 1, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63))


def mutate(content: bytes, rng: np.random.Generator) -> bytes:
    """One to three random changes."""
    for _ in range(int(rng.integers(1, 4))):
        change = _CHANGES[int(rng.integers(len(_CHANGES)))]
        content = change(content, rng)
    return content


def _at(content: bytes, rng: np.random.Generator) -> int:
    """A position; half of the time near the start, where headers are."""
    end = len(content) if rng.random() < 0.5 else min(len(content), 128)
    return int(rng.integers(0, end + 1))


def _flip(content: bytes, rng: np.random.Generator) -> bytes:
    at = _at(content[:-1], rng)
    return content[:at] + bytes([content[at] ^ (1 << int(rng.integers(8)))]) + content[at + 1 :] if content else b""


def _byte(content: bytes, rng: np.random.Generator) -> bytes:
    at = _at(content, rng)
    return content[:at] + rng.bytes(1) + content[at + 1 :]


def _cut(content: bytes, rng: np.random.Generator) -> bytes:
    return content[: _at(content, rng)]


def _remove(content: bytes, rng: np.random.Generator) -> bytes:
    at = _at(content, rng)
    return content[:at] + content[at + int(rng.integers(1, 17)) :]


def _insert(content: bytes, rng: np.random.Generator) -> bytes:
    at = _at(content, rng)
    return content[:at] + rng.bytes(int(rng.integers(1, 17))) + content[at:]


def _repeat(content: bytes, rng: np.random.Generator) -> bytes:
    at = _at(content, rng)
    return content[: at + int(rng.integers(1, 65))] + content[at:]


def _append(content: bytes, rng: np.random.Generator) -> bytes:
    return content + rng.bytes(int(rng.integers(1, 65)))


def _number(content: bytes, rng: np.random.Generator) -> bytes:
    """A number written in digits becomes another."""
    found = list(re.finditer(rb"-?\d+(?:\.\d+)?", content[:4096]))
    if not found:
        return content
    where = found[int(rng.integers(len(found)))]
    return content[: where.start()] + NUMBERS[int(rng.integers(len(NUMBERS)))] + content[where.end() :]


def _word(content: bytes, rng: np.random.Generator) -> bytes:
    at = _at(content, rng)
    return content[:at] + WORDS[int(rng.integers(len(WORDS)))] + content[at + int(rng.integers(0, 6)) :]


def _integer(content: bytes, rng: np.random.Generator) -> bytes:
    """An eight-byte integer that means trouble."""
    at = _at(content, rng)
    if rng.random() < 0.7:
        at -= at % 8
    number = INTEGERS[int(rng.integers(len(INTEGERS)))]
    return content[:at] + number.to_bytes(8, "little", signed=True) + content[at + 8 :]


_CHANGES = (_flip, _byte, _cut, _remove, _insert, _repeat, _append, _number, _word, _integer)

"""The ids that the input gave its vertices, where these are not simply 0..V-1."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import numpy as np

from hongtu.errors import InputError


class VertexIds:
    """Integers or names by vertex number (original order), and back.

    Args:
        integers: int64 [V], or None for names.
        name_start: int64 [V + 1], where each name starts in ``name_text``.
        name_text: uint8, the names in UTF-8, one after the other.

    >>> ids = VertexIds(name_start=np.array([0, 1, 3]), name_text=np.frombuffer(b"xyz", dtype=np.uint8))
    >>> list(ids), ids.numbers(["yz", "x"]).tolist()
    (['x', 'yz'], [1, 0])
    """

    def __init__(
        self,
        integers: np.ndarray | None = None,
        name_start: np.ndarray | None = None,
        name_text: np.ndarray | None = None,
    ) -> None:
        self._integers, self._start, self._text = integers, name_start, name_text

    def __len__(self) -> int:
        return len(self._integers) if self._integers is not None else len(self._start) - 1  # type: ignore[arg-type]

    def __getitem__(self, number: int) -> int | str:
        if self._integers is not None:
            return int(self._integers[number])
        number = range(len(self))[number]
        return bytes(self._text[self._start[number] : self._start[number + 1]]).decode()  # type: ignore[index]

    def __iter__(self) -> Iterator[int | str]:
        return (self[number] for number in range(len(self)))

    def numbers(self, ids: Iterable[Any]) -> np.ndarray:
        """int64, the number of each id.

        Raises:
            InputError: for an id that is not there.
        """
        try:
            return np.array([self._number[vertex] for vertex in map(_plain, ids)], dtype=np.int64)
        except KeyError as missing:
            raise InputError(f"vertex {missing.args[0]!r} is not among the artifact's {len(self)} ids") from None

    @cached_property
    def _number(self) -> dict[int | str, int]:
        return {vertex: number for number, vertex in enumerate(self)}


def _plain(vertex: Any) -> Any:
    """A numpy scalar, or an element of a tensor, as a plain int or str."""
    return vertex.item() if hasattr(vertex, "item") else vertex

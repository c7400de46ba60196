"""What the input calls its vertices: the named types of vertices and relations of an artifact that was made of a
``HeteroData`` or a DGL heterograph, and ids where these are not simply 0..V-1."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from hongtu.errors import InputError

Relation = tuple[str, str, str]  # type of the sources, name, type of the destinations


@dataclass(frozen=True)
class VertexTypes:
    """Vertices of a type are consecutive in the original order, and so are, of a vertex, its own features.

    Attributes:
        names: of the types, in the order of their vertices.
        counts: how many vertices each has.
        widths: how many columns of features each has; 0: none.
        first_column: where a vertex's own features begin in its row.
        relations: by the number that edges have as their type.
        edge_columns: how many columns of features the edges of each have; 0: none.

    >>> types = VertexTypes(("paper", "author"), (3, 2), (8, 4), 1, (("author", "writes", "paper"),), (0,))
    >>> types.starts, types.span("author"), types.ends(0)
    ((0, 3, 5), slice(3, 5, None), (1, 0))
    """

    names: tuple[str, ...]
    counts: tuple[int, ...]
    widths: tuple[int, ...]
    first_column: int
    relations: tuple[Relation, ...]
    edge_columns: tuple[int, ...]

    @property
    def starts(self) -> tuple[int, ...]:
        """The first vertex of every type, and how many vertices there are."""
        return (0, *accumulate(self.counts))

    def span(self, name: str) -> slice:
        """The vertices of a type."""
        k = self.names.index(name)
        return slice(self.starts[k], self.starts[k + 1])

    def ends(self, relation: int) -> tuple[int, int]:
        """The numbers of the types of a relation's sources and destinations."""
        source, _, destination = self.relations[relation]
        return self.names.index(source), self.names.index(destination)


def read_types(manifest: dict[str, Any]) -> VertexTypes | None:
    """Those of a manifest, or None where it names none.

    Raises:
        ValueError: for a damaged one.
    """
    if "types" not in manifest:
        return None
    try:
        names, counts = zip(*manifest["types"]["vertices"], strict=True)
        relations = tuple((str(a), str(b), str(c)) for a, b, c, _ in manifest["types"]["relations"])
        columns = tuple(width for *_, width in manifest["types"]["relations"])
        known_columns = all(type(width) is int and width >= 0 for width in columns)
        known = all(isinstance(name, str) for name in names) and len({*names}) == len(names)
        whole = all(type(count) is int and count >= 0 for count in counts) and sum(counts) == manifest["vertices"]
        fits = all({source, destination} <= {*names} for source, _, destination in relations)
        numbered = len(relations) == manifest.get("edge_types")
        widths = manifest.get("vertex_types") or [manifest["feature_width"]] * len(names)
    except (TypeError, ValueError, KeyError):
        raise ValueError("types") from None
    if not (known and whole and fits and numbered and known_columns and len(widths) == len(names)):
        raise ValueError("types")
    return VertexTypes(names, counts, tuple(widths), int("vertex_types" in manifest), relations, columns)


class VertexIds:
    """Integers or names by vertex number (original order), and back.

    Args:
        integers: int64 [V], or None for names.
        name_start: int64 [V + 1], where each name starts in ``name_text``.
        name_text: uint8, the names in UTF-8, one after the other.

    >>> ids = VertexIds(name_start=np.array([0, 1, 3]), name_text=np.frombuffer(b"xyz", dtype=np.uint8))
    >>> list(ids), ids[:1], ids.numbers(["yz", "x"]).tolist()
    (['x', 'yz'], ['x'], [1, 0])
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

    def __getitem__(self, number: int | slice) -> Any:
        if isinstance(number, slice):
            return [self[k] for k in range(len(self))[number]]
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

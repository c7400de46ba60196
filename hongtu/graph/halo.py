"""Who reads whom: the in-edges of some vertices, chunk by chunk, so that nothing as long as all edges is made; and the
halo of a rank's rows: those that other ranks own and send it, and the rows that it sends them in turn.

Legend: V vertices, K of them in one chunk, E their in-edges, R rows of the rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from hongtu.graph.topology import Topology


def in_edges(topology: Topology, rows: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Of every chunk that has some of these vertices: int64 [K], which; int64 [K], their degrees; int32 [E], the
    sources of their in-edges.

    Args:
        rows: bool [V].

    >>> from hongtu.graph.topology import build_topology
    >>> path = build_topology(2, np.array([0, 2, 4]), np.array([0, 0, 1, 2, 3]), np.arange(3))  # 0 -> 1 -> 2 -> 3
    >>> [[x.tolist() for x in found] for found in in_edges(path, np.array([False, True, False, True]))]
    [[[1], [1], [0]], [[3], [1], [2]]]
    """
    start, local_source = np.asarray(topology.in_edge_start), np.asarray(topology.local_source)
    for chunk, (first, end) in enumerate(pairwise(topology.chunk_start.tolist())):
        picked = rows[first:end]
        if picked.any():
            degree = np.diff(start[first : end + 1])
            local = local_source[start[first] : start[end]][np.repeat(picked, degree)]
            yield first + np.flatnonzero(picked), degree[picked], topology.neighbour_set(chunk)[local]


def sources_of(topology: Topology, rows: np.ndarray) -> np.ndarray:
    """bool [V], the sources of some vertices' in-edges.

    Args:
        rows: bool [V].
    """
    found = np.zeros(topology.num_vertices, dtype=np.bool_)
    for _, _, sources in in_edges(topology, rows):
        found[sources] = True
    return found


def receptive_field(topology: Topology, loss_vertices: np.ndarray, hops: int) -> list[np.ndarray]:
    """bool [V] each: the vertices within 0, 1, ... ``hops`` in-edges of a loss vertex.

    Args:
        loss_vertices: bool [V], new ids.

    >>> from hongtu.graph.topology import build_topology
    >>> path = build_topology(1, np.array([0, 4]), np.array([0, 0, 1, 2, 3]), np.array([0, 1, 2]))  # 0 -> 1 -> 2 -> 3
    >>> [np.flatnonzero(mask).tolist() for mask in receptive_field(path, np.arange(4) == 2, 2)]
    [[2], [1, 2], [0, 1, 2]]
    """
    masks = [np.asarray(loss_vertices, dtype=np.bool_).copy()]
    for _ in range(hops):
        masks.append(masks[-1] | sources_of(topology, masks[-1]))
    return masks


@dataclass(frozen=True, eq=False)
class Crossing:
    """What ranks fetch of one another of what a layer exchanges: all of it, or one round of it where rows go by way of
    ranks that read them, too.

    Attributes:
        takes: of every rank, int64, the rows here that it gives: its own, or those that an earlier round brought it.
        gives: of every rank, int64, the rows that it takes, in its order.
        pace: seconds that it takes the slowest hop to carry a byte of every row of all ranks; None: ranks have a link
            each, as fast as the profile says.
    """

    takes: tuple[np.ndarray, ...]
    gives: tuple[np.ndarray, ...]
    pace: float | None = None

    def same_as(self, other: Crossing) -> bool:
        """Whether another layer's is the same."""
        mine = (*self.takes, *self.gives)
        return self.pace == other.pace and all(map(np.array_equal, mine, (*other.takes, *other.gives)))

    def leaving(self, link: Literal["fetch", "send"]) -> tuple[np.ndarray, ...]:
        """The rows that go to every rank: values that it takes, or gradients of what it gave."""
        return self.gives if link == "fetch" else self.takes

    def arriving(self, link: Literal["fetch", "send"]) -> tuple[np.ndarray, ...]:
        """The rows for which every rank sends some."""
        return self.takes if link == "fetch" else self.gives

    @property
    def rows(self) -> int:
        """Those that it takes."""
        return sum(map(len, self.takes))

    @property
    def both(self) -> int:
        """Rows that are on their way at a time, to it and from it."""
        return self.rows + sum(map(len, self.gives))


@dataclass(frozen=True, eq=False)
class Halo:
    """What ranks fetch of one another, and what they compute again instead. Layers that exchange nothing do not count.

    Attributes:
        fields: bool [R] each, the rows that some passes compute, from many to few; not those of all rows.
        behind: which of these passes behind 0, 1, ... layers compute; None: all rows.
        fetched: of every layer the rounds in which ranks fetch what it exchanges; none where no rank does.
        sent: those in which their gradients go back.
    """

    fields: tuple[np.ndarray, ...]
    behind: tuple[int | None, ...]
    fetched: tuple[tuple[Crossing, ...], ...]
    sent: tuple[tuple[Crossing, ...], ...]

    @property
    def rows(self) -> int:
        """Those that a layer takes at most."""
        return max(sum(crossing.rows for crossing in rounds) for rounds in self.fetched)

    @property
    def first(self) -> int:
        """The first layer whose rows are fetched."""
        return next(k for k, rounds in enumerate(self.fetched) if rounds)

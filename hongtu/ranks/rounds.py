"""A rank's part of the rounds in which rows go from their owners to the ranks that read them, and gradients back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hongtu.graph.halo import Crossing
from hongtu.ranks.fabric import Fabric
from hongtu.ranks.routes import Class, paces, plan_routes

MOST = 64  # ranks, whose readers fit a number

Rounds = tuple[Crossing, ...]
Edge = tuple[int, int, int, Class]  # round, who has rows, who reads them, which


def rounds_of(
    rank: int, readers: np.ndarray, bounds: np.ndarray, row_of: np.ndarray, fabric: Fabric | None
) -> tuple[Rounds, Rounds]:
    """Those in which rows are fetched, and those in which gradients go back: as many on every rank.

    Args:
        readers: unsigned [V], bit r where rank r fetches a vertex's row.
        bounds: int64 [k + 1], the first vertex of every rank, then V.
        row_of: int64 [V], the rank's row of every vertex that it owns or reads.
        fabric: what joins the ranks; None: each has a link for itself.

    >>> readers, bounds = np.array([0b110, 0b100, 0, 0, 0, 0]), np.array([0, 2, 4, 6])
    >>> [[x.takes[0].tolist() for x in rounds] for rounds in rounds_of(2, readers, bounds, np.arange(6), None)]
    [[[0, 1]], [[0, 1]]]
    """
    classes = _classes(readers, bounds)
    counts = {key: len(vertices) for key, vertices in classes.items()}
    trees = plan_routes(counts, fabric)
    there, back = (None, None) if fabric is None else paces(counts, trees, fabric)
    fetched = [(number, giver, taker, key) for key in trees for number, giver, taker in trees[key].fetched()]
    sent = [(number, giver, taker, key) for key in trees for number, taker, giver in trees[key].sent()]

    def made(edges: list[Edge], seconds: Sequence[float] | None) -> Rounds:
        return tuple(
            Crossing(
                *_of_rank(rank, [edge for edge in edges if edge[0] == number], classes, row_of, len(bounds) - 1),
                None if seconds is None else seconds[number],
            )
            for number in range(1 + max((edge[0] for edge in edges), default=-1))
        )

    return made(fetched, there), made(sent, back)


def _classes(readers: np.ndarray, bounds: np.ndarray) -> dict[Class, np.ndarray]:
    """The vertices that others read, in ascending order, by their owner and their readers."""
    found: dict[Class, np.ndarray] = {}
    for owner, (first, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        read = first + np.flatnonzero(readers[first:end])
        order = read[np.argsort(readers[read], kind="stable")]
        keys, starts = np.unique(readers[order], return_index=True)
        found |= zip(((owner, key) for key in keys.tolist()), np.split(order, starts[1:]), strict=False)
    return found


def _of_rank(
    rank: int, edges: list[Edge], classes: dict[Class, np.ndarray], row_of: np.ndarray, ranks: int
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """What it takes of every rank, and gives every rank."""
    takes: list[list[np.ndarray]] = [[] for _ in range(ranks)]
    gives: list[list[np.ndarray]] = [[] for _ in range(ranks)]
    for _, giver, taker, key in edges:
        if taker == rank:
            takes[giver].append(classes[key])
        elif giver == rank:
            gives[taker].append(classes[key])
    none = np.empty(0, dtype=np.int64)
    taken, given = (tuple(row_of[np.sort(np.concatenate([none, *parts]))] for parts in each) for each in (takes, gives))
    return taken, given

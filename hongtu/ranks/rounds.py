"""The rounds in which rows go from their owners to the ranks that read them, and gradients back.

Where some ranks have a faster path than others, rows with the same owner and the same readers, a class, go along a
tree: from the owner to some readers, from these to others. Trees are found as DGCL finds its shortest path spanning
trees (Cai et al., EuroSys 2021, Algorithm 1): one class after the other, the largest first, and each reader by the path
that adds least. There that is what the busiest hop takes longer; here the sum of the squares of what all take, so that
it matters also how busy the others get. Only readers pass rows on, for they have them. Rows go in rounds, one for each
edge on their way, and their gradients come back along the same trees, added up where they meet.
Legend: k ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hongtu.graph.halo import Crossing
from hongtu.ranks.fabric import Fabric

Class = tuple[int, int]  # owner; readers, bit r for rank r
MOST = 64  # ranks, whose readers fit a number
Rounds = tuple[Crossing, ...]
Edge = tuple[int, int, int, Class]  # round, who has rows, who reads them, which


@dataclass(frozen=True)
class Tree:
    """Of one class.

    Attributes:
        parent: for every reader the rank that gives it the rows.
    """

    parent: Mapping[int, int]

    def depth(self, rank: int) -> int:
        """How many edges a rank is away from the owner."""
        return 0 if rank not in self.parent else 1 + self.depth(self.parent[rank])

    def height(self, rank: int) -> int:
        """How many edges it is away from the farthest rank that has its rows from it."""
        return max((1 + self.height(child) for child, parent in self.parent.items() if parent == rank), default=0)

    def fetched(self) -> list[tuple[int, int, int]]:
        """Who gives whom in which round."""
        return [(self.depth(parent), parent, child) for child, parent in self.parent.items()]

    def sent(self) -> list[tuple[int, int, int]]:
        """Who sends whom gradients in which round: all that it takes has come before."""
        return [(self.height(child), child, parent) for child, parent in self.parent.items()]


def readers_of(key: Class) -> list[int]:
    """The ranks of a class that read its rows."""
    return [rank for rank in range(key[1].bit_length()) if key[1] >> rank & 1]


def plan_routes(rows: Mapping[Class, int], fabric: Fabric | None) -> dict[Class, Tree]:
    """The tree of every class: the owner gives all readers, unless going by way of others is predicted to be faster.

    Args:
        rows: how many each class has.
    """
    direct = {key: Tree(dict.fromkeys(readers_of(key), key[0])) for key in rows}
    if fabric is None:
        return direct
    routed = _shortest_paths(rows, fabric)
    return min(direct, routed, key=lambda trees: sum(map(sum, paces(rows, trees, fabric))))


def paces(rows: Mapping[Class, int], trees: Mapping[Class, Tree], fabric: Fabric) -> tuple[list[float], list[float]]:
    """Seconds of every round in which a byte of each row is fetched, and of those in which gradients go back."""
    found: tuple[list[float], list[float]] = ([], [])
    for paces_of, ways in zip(found, (Tree.fetched, Tree.sent), strict=True):
        loads: list[dict[tuple[int, int], int]] = []
        for key, count in rows.items():
            for number, begin, end in ways(trees[key]):
                loads += [{} for _ in range(number + 1 - len(loads))]
                loads[number][begin, end] = loads[number].get((begin, end), 0) + count
        paces_of += map(fabric.seconds, loads)
    return found


def _shortest_paths(rows: Mapping[Class, int], fabric: Fabric) -> dict[Class, Tree]:
    found: dict[Class, Tree] = {}
    busy: dict[str, float] = defaultdict(float)  # seconds of every hop, in all rounds

    def added(load: Mapping[str, float]) -> float:
        return sum(seconds * (2 * busy[hop] + seconds) for hop, seconds in load.items())

    for key in sorted(rows, key=lambda key: (-rows[key], key)):
        depth, parent, left = {key[0]: 0}, {}, readers_of(key)
        while left:
            edges = [(added(fabric.load({(a, b): rows[key]})), depth[a], a, b) for a in depth for b in left]
            _, _, at, to = min(edges)
            for hop, seconds in fabric.load({(at, to): rows[key]}).items():
                busy[hop] += seconds
            depth[to], parent[to] = depth[at] + 1, at
            left.remove(to)
        found[key] = Tree(parent)
    return found


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

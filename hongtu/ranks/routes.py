"""Which way rows go from their owner to the ranks that read them, where some have a faster path than others.

Rows with the same owner and the same readers are a class. Each class goes along a tree: from the owner to some readers,
from these to others. Trees are found as DGCL finds its shortest path spanning trees (Cai et al., EuroSys 2021,
Algorithm 1): one class after the other, the largest first, and each reader by the path that adds least. There that is
what the busiest hop takes longer; here the sum of the squares of what all take, so that it matters also how busy the
others get.
Only readers pass rows on, for they have them. Rows go in rounds, one for each edge on their way, and their gradients
come back along the same trees, added up where they meet.
Legend: k ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from hongtu.ranks.fabric import Fabric

Class = tuple[int, int]  # owner; readers, bit r for rank r


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

"""What ranks send each other in the passes of a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from hongtu.graph.halo import Crossing, Halo
from hongtu.plan.passes.definition import Pass, PassList
from hongtu.plan.passes.shapes import NetworkShape

INDEX, STEP = 8, 4  # bytes of where a row is, and of when it leaves


@dataclass(frozen=True)
class Crossings:
    """Those of all passes; without a halo none.

    Attributes:
        row: bytes of a row of a tensor on the host, as it crosses.
    """

    passes: PassList
    shape: NetworkShape
    halo: Halo | None
    row: Callable[[str], int]

    def fetched(self, p: Pass) -> tuple[Crossing, ...]:
        """The rounds in which ranks fetch of one another what a pass exchanges; backward finds the rows there."""
        return self._of(p, None if self.halo is None or p.direction == "backward" else self.halo.fetched, p.exchange)

    def sent_back(self, p: Pass) -> tuple[Crossing, ...]:
        """Those in which they send what it flushes."""
        return self._of(p, None if self.halo is None else self.halo.sent, p.flush)

    def _of(self, p: Pass, rounds: Sequence[tuple[Crossing, ...]] | None, name: str | None) -> tuple[Crossing, ...]:
        layers = self.shape.graph_layers
        return () if rounds is None or name is None or p.layer not in layers else rounds[layers.index(p.layer)]

    def next_fetched(self, p: Pass) -> tuple[tuple[str, Crossing], ...]:
        """What the next pass fetches of this one's rows in its first round: they leave while this one goes on."""
        following = self._following.get(p.name)
        if following is None or following.exchange is None or following.exchange not in p.outputs:
            return ()
        return tuple((following.exchange, crossing) for crossing in self.fetched(following)[:1])

    def posted(self, p: Pass) -> Crossing | None:
        """The round of what a pass fetches that the one before it has sent."""
        before = next((q for q in self.passes.every if self._following.get(q.name) is p), None)
        sent = () if before is None else self.next_fetched(before)
        return sent[0][1] if sent else None

    @cached_property
    def _following(self) -> dict[str, Pass]:
        """By the name of a pass, the next one."""
        groups = self.passes.train, self.passes.evaluate
        return {p.name: following for passes in groups for p, following in pairwise(passes)}

    @property
    def nbytes(self) -> int | None:
        """The most bytes that are on their way at a time; None where no rank fetches any."""
        if self.halo is None:
            return None
        found = [0]
        for p in self.passes.every:
            found += [crossing.both * self.row(p.exchange) for crossing in self.fetched(p)]
            found += [crossing.both * self.row(p.flush) for crossing in self.sent_back(p)]
        return max(found)

    @property
    def index_bytes(self) -> int:
        """Of what says in which order rows leave and arrive in passes that post them."""
        total = 0
        for p in (*self.passes.train, *self.passes.evaluate):
            for crossing in self.sent_back(p)[:1]:
                total += INDEX * crossing.both + STEP * crossing.rows
            for _, crossing in self.next_fetched(p):
                total += INDEX * crossing.both + STEP * (crossing.both - crossing.rows)
        return total

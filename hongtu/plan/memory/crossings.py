"""What ranks send each other in the passes of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from hongtu.graph.halo import Crossing, Halo
from hongtu.plan.passes.definition import Pass, PassList
from hongtu.plan.passes.shapes import NetworkShape

INDEX, STEP = 8, 4  # bytes of where a row is, and of when it leaves


@dataclass(frozen=True)
class Crossings:
    """Those of all passes; without a halo none."""

    passes: PassList
    shape: NetworkShape
    halo: Halo | None

    def of(self, p: Pass) -> Crossing | None:
        """What ranks fetch of one another of what a pass exchanges or flushes, or None."""
        layers = self.shape.graph_layers
        return None if self.halo is None or p.layer not in layers else self.halo.crossings[layers.index(p.layer)]

    def fetched(self, p: Pass) -> Crossing | None:
        """The same of what it exchanges alone; backward finds the rows there."""
        return self.of(p) if p.exchange is not None and p.direction != "backward" else None

    def sent_back(self, p: Pass) -> Crossing | None:
        """And of what it flushes."""
        return self.of(p) if p.flush is not None else None

    def next_fetched(self, p: Pass) -> tuple[str, Crossing] | None:
        """What the next pass fetches of this one's rows: they leave while this one goes on."""
        following = self._following.get(p.name)
        crossing = None if following is None else self.fetched(following)
        if following is None or crossing is None or following.exchange not in p.outputs:
            return None
        return following.exchange, crossing

    def posted(self, p: Pass) -> str | None:
        """What a pass fetches that the one before it has sent."""
        before = next((q for q in self.passes.every if self._following.get(q.name) is p), None)
        return p.exchange if before is not None and self.next_fetched(before) is not None else None

    @cached_property
    def _following(self) -> dict[str, Pass]:
        """By the name of a pass, the next one."""
        groups = self.passes.train, self.passes.evaluate
        return {p.name: following for passes in groups for p, following in pairwise(passes)}

    @property
    def numbers(self) -> int | None:
        """The most numbers that are on their way at a time; None where no rank fetches any."""
        if self.halo is None:
            return None
        every = ((p, self.of(p)) for p in self.passes.every)
        widths = ((c.both, self.passes.width[n]) for p, c in every if c is not None for n in (p.exchange, p.flush) if n)
        return max((both * width for both, width in widths), default=0)

    @property
    def index_bytes(self) -> int:
        """Of what says in which order rows leave and arrive in passes that post them."""
        total = 0
        for p in (*self.passes.train, *self.passes.evaluate):
            if (back := self.sent_back(p)) is not None:
                total += INDEX * back.both + STEP * back.rows
            if (following := self.next_fetched(p)) is not None:
                total += INDEX * following[1].both + STEP * (following[1].both - following[1].rows)
        return total

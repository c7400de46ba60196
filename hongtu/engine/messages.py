"""Rows that ranks send each other: gathered, sent, put in their places and counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hongtu.engine.host_store import HostStore
from hongtu.graph.artifact import Artifact
from hongtu.metrics import Traffic
from hongtu.plan.execution import ExecutionPlan
from hongtu.plan.program.moves import Cross, Post
from hongtu.ranks.together import Together

LEAST = 2**16  # bytes of a message, but for the last of a pass: every message costs something
LAST = 2**31 - 1  # a step behind all


@dataclass
class Way:
    """How rows go to another rank, or come from one.

    Attributes:
        rows: int64, in the order in which they leave.
        steps, ends: of every message the batch behind which it leaves, and how many rows have left with it.
    """

    rows: Tensor
    steps: list[int]
    ends: list[int]

    def parts(self, memory: Tensor) -> list[Tensor]:
        """Every message's part of a memory with rows in this order."""
        return [memory[first:end] for first, end in zip([0, *self.ends], self.ends)]


def way_by_step(rows: np.ndarray, steps: np.ndarray, least: int) -> Way:
    """In messages of so many rows or more, each behind a batch; ``steps`` as of ``Post``."""
    order = np.argsort(steps, kind="stable")
    found, counts = np.unique(steps, return_counts=True)
    leave, left, ends = [], 0, counts.cumsum().tolist()
    for step, end in zip(found.tolist(), ends):
        if end - left >= least or end == len(rows):
            leave.append((step, end))
            left = end
    return Way(torch.from_numpy(rows[order]), [step for step, _ in leave], [end for _, end in leave])


Ways = tuple[list[Way], list[Way]]  # of one exchange, by rank: those out, and those in


def _at_once(x: Cross) -> Ways:
    """All rows of each rank in one message."""
    sides = x.crossing.leaving(x.link), x.crossing.arriving(x.link)
    out, into = ([way_by_step(rows, np.full(len(rows), LAST), 0) for rows in side] for side in sides)
    return out, into


@dataclass
class Going:
    """An exchange that has begun.

    Attributes:
        messages: those that have not left, by step: to whom, which rows, and the memory that they are gathered in.
        sent, received: by rank, rows in the order of their ways.
        begun: what ranks wait for in the end.
        seconds: that this took so far.
    """

    messages: list[tuple[int, int, Tensor, Tensor]]
    sent: Sequence[Tensor]
    received: Sequence[Tensor]
    begun: list[Any] = field(default_factory=list)
    seconds: float = 0.0


class Messages:
    """One rank's end.

    Args:
        host: whose rows are sent.
        traffic: where they are counted.
        ranks: all of whose processes send and receive in the same order.
        plan: says how many bytes are on their way at a time, which rows go, and when.
    """

    def __init__(self, host: HostStore, traffic: Traffic, ranks: Together, plan: ExecutionPlan) -> None:
        self._host, self._traffic, self._ranks, self._row = host, traffic, ranks, plan.host_row
        self._memory = torch.empty(plan.crossings.nbytes or 0, dtype=torch.uint8)
        host.keep_pageable("messages", self._memory)
        self._ways: dict[Cross | Post, Ways] = {}
        self._going: Going | None = None
        self._program = plan.program

    def arrange(self) -> None:
        """Tell each other when rows leave; all ranks call it, when each has an engine."""
        for passes in (self._program.setup, self._program.train, self._program.evaluate):
            posted: dict[str, Ways] = {}  # what one instruction posts another ends
            for x in (x for p in passes for x in (*p.before, *p.body, *p.after)):
                if isinstance(x, Post):
                    self._ways[x] = posted[x.tensor] = self._by_step(x)
                elif isinstance(x, Cross):
                    self._ways[x] = posted.pop(x.tensor) if x.tensor in posted else _at_once(x)

    def _by_step(self, x: Post) -> Ways:
        """Both sides put the rows in the order of the sender."""
        assert x.steps is not None
        out, into = x.crossing.leaving(x.link), x.crossing.arriving(x.link)
        theirs = [torch.empty(len(rows), dtype=torch.int32) for rows in into]
        self._ranks.exchange([torch.from_numpy(steps) for steps in x.steps], theirs)
        least = -(-LEAST // self._row(x.tensor))
        leaving = [way_by_step(rows, steps, least) for rows, steps in zip(out, x.steps, strict=True)]
        coming = [way_by_step(rows, steps.numpy(), least) for rows, steps in zip(into, theirs, strict=True)]
        self._host.count_pageable(sum(way.rows.nbytes for way in (*leaving, *coming)))
        self._host.count_pageable(sum(steps.nbytes for steps in x.steps))
        return leaving, coming

    def expect(self, x: Post) -> None:
        """Begin to receive, before the pass's first batch: what others send meanwhile need not wait for this rank."""
        self._going = self._begin(x)

    def post(self, x: Post, step: int) -> None:
        """Send the rows that a batch of the pass was the last to change."""
        start = perf_counter()
        assert self._going is not None
        self._leave(self._going, step, self._host[x.tensor])
        self._going.seconds += perf_counter() - start

    def cross(self, x: Cross) -> None:
        """Rows of other ranks as these computed them, or their gradients to their owners; these are added rank by rank,
        so that the sum is always the same."""
        rows = self._host[x.tensor]
        put = rows.index_copy_ if x.link == "fetch" else rows.index_add_
        for way, part in zip(self._ways[x][1], self._end(x), strict=True):
            put(0, way.rows, part)

    def _begin(self, x: Cross | Post) -> Going:
        """Make room for what comes, and expect it."""
        (out, into), rows = self._ways[x], self._host[x.tensor]
        counts = [len(way.rows) for way in (*out, *into)]
        memory = self._memory[: sum(counts) * self._row(x.tensor)].view(rows.dtype)
        parts = memory.view(sum(counts), rows.shape[1]).split(counts)
        sent, received = parts[: len(out)], parts[len(out) :]
        messages = [
            (step, rank, index, piece)
            for rank, (way, part) in enumerate(zip(out, sent, strict=True))
            for step, index, piece in zip(way.steps, way.parts(way.rows), way.parts(part), strict=True)
        ]
        messages.sort(key=lambda message: message[0], reverse=True)
        expected = [
            (rank, piece)
            for rank, (way, part) in enumerate(zip(into, received, strict=True))
            for piece in way.parts(part)
        ]
        return Going(messages, sent, received, self._ranks.begin((), expected))

    def _leave(self, going: Going, step: int, rows: Tensor) -> None:
        while going.messages and going.messages[-1][0] <= step:
            _, rank, index, piece = going.messages.pop()
            torch.index_select(rows, 0, index, out=piece)
            going.begun += self._ranks.begin([(rank, piece)], ())

    def _end(self, x: Cross) -> Sequence[Tensor]:
        """What has come, by rank."""
        start = perf_counter()
        going, self._going = self._going or self._begin(x), None
        self._leave(going, LAST, self._host[x.tensor])
        self._ranks.end(going.begun)
        seconds = going.seconds + perf_counter() - start
        for part in going.received if x.link == "fetch" else going.sent:
            self._traffic.add(x.link, part.nbytes, len(part), seconds)
            seconds = 0.0
        return going.received


class Outputs:
    """The output of all ranks, and its gradient, at one rank: a loss over edges may look at any two vertices.

    Args:
        share: what the rank has of the graph.
        columns: C.
        host: which counts the memory of both.
        traffic: where what crosses is counted.

    Attributes:
        gradients: [V, C], what this rank has found of everybody's.
    """

    def __init__(self, share: Artifact, columns: int, host: HostStore, traffic: Traffic, ranks: Together) -> None:
        assert share.bounds is not None
        bounds = share.bounds.tolist()
        self._traffic, self._ranks = traffic, ranks
        self._of = [slice(first, end) for first, end in pairwise(bounds)]
        starts, ends = share.topology.partition_start[:-1].tolist(), share.own_end.tolist()
        self._own = [slice(first, end) for first, end in zip(starts, ends, strict=True)]
        self._rows, self.gradients = (torch.empty((bounds[-1], columns), dtype=host.dtype) for _ in range(2))
        host.keep_pageable("outputs", self._rows)
        host.keep_pageable("gradients of outputs", self.gradients)

    def fetch(self, output_RC: Tensor) -> Tensor:
        """[V, C] of all ranks, where each has computed its own rows."""
        start, own = perf_counter(), self._of[self._ranks.rank]
        torch.cat([output_RC[part] for part in self._own], out=self._rows[own])
        others = [(rank, self._rows[of]) for rank, of in enumerate(self._of) if of is not own]
        self._ranks.end(self._ranks.begin([(rank, self._rows[own]) for rank, _ in others], others))
        self._count("fetch", start)
        return self._rows

    def send(self, gradient_RC: Tensor) -> None:
        """Give every rank what this one has found of its rows, and put the sum of what all have found of the own ones
        in their places; the output has been used, and they come to where it was."""
        start, rank, size = perf_counter(), self._ranks.rank, self._ranks.size
        own, came = self.gradients[self._of[rank]], self._rows[self._of[rank]]
        for k in range(1, size):
            to, other = (rank + k) % size, (rank - k) % size
            self._ranks.end(self._ranks.begin([(to, self.gradients[self._of[to]])], [(other, came)]))
            own += came
        for part, rows in zip(self._own, own.split([part.stop - part.start for part in self._own]), strict=True):
            gradient_RC[part] = rows
        self._count("send", start)

    def _count(self, link: Literal["fetch", "send"], start: float) -> None:
        rows = len(self._rows) - len(self._rows[self._of[self._ranks.rank]])
        self._traffic.add(link, rows * self._rows.shape[1] * self._rows.itemsize, rows, perf_counter() - start)

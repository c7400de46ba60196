"""The output of all ranks, and its gradient: a loss over edges may look at any two vertices.

Legend: V vertices of the whole graph, R rows of a rank's share, C columns.
"""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter
from typing import Literal

import torch
from torch import Tensor

from hongtu.engine.host_store import HostStore
from hongtu.graph.artifact import Artifact
from hongtu.metrics import Traffic
from hongtu.ranks.together import Together


class Outputs:
    """One rank's end.

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

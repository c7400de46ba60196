"""Rows that ranks send each other: gathered, exchanged, put in their places and counted."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from hongtu.engine.host_store import HostStore
from hongtu.graph.halo import Crossing
from hongtu.metrics import Traffic
from hongtu.ranks.together import Together


class Messages:
    """One rank's end.

    Args:
        host: whose rows are sent.
        traffic: where they are counted.
        ranks: all of whose processes send and receive in the same order.
        numbers: the most that are on their way at a time.
    """

    def __init__(self, host: HostStore, traffic: Traffic, ranks: Together, numbers: int) -> None:
        self._host, self._traffic, self._ranks = host, traffic, ranks
        self._memory = torch.empty(numbers, dtype=host.dtype)
        host.keep_pageable("messages", self._memory)

    def fetch(self, name: str, crossing: Crossing) -> None:
        """Rows of other ranks as these computed them."""
        rows = self._host[name]
        received = self._send("fetch", rows, crossing.gives, crossing.takes)
        for index, part in zip(crossing.takes, received, strict=True):
            rows.index_copy_(0, torch.from_numpy(index), part)

    def send_back(self, name: str, crossing: Crossing) -> None:
        """Gradients of these to their owners; they are added rank by rank, so that the sum is always the same."""
        rows = self._host[name]
        received = self._send("send", rows, crossing.takes, crossing.gives)
        for index, part in zip(crossing.gives, received, strict=True):
            rows.index_add_(0, torch.from_numpy(index), part)

    def _send(self, link: str, rows: Tensor, out: Sequence[np.ndarray], into: Sequence[np.ndarray]) -> Sequence[Tensor]:
        """What comes for the rows ``into``, by rank; the rows ``out`` go."""
        start = perf_counter()
        sizes = [len(index) * rows.shape[1] for index in (*out, *into)]
        parts = [part.view(-1, rows.shape[1]) for part in self._memory[: sum(sizes)].split(sizes)]
        sent, received = parts[: len(out)], parts[len(out) :]
        for index, part in zip(out, sent, strict=True):
            torch.index_select(rows, 0, torch.from_numpy(index), out=part)
        self._ranks.exchange(sent, received)
        seconds = perf_counter() - start
        for part in received if link == "fetch" else sent:
            self._traffic.add(link, part.nbytes, len(part), seconds)
            seconds = 0.0
        return received

"""How fast hosts exchange rows, measured between their ranks."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

import torch

from hongtu.ranks.fabric import fabric_of_hosts
from hongtu.ranks.together import Together

PIECE = 1 << 20  # bytes of a message
LONG = 0.3  # seconds that say enough
MOST_PIECES = 1 << 12
MOST_SHIFTS = 8  # of hosts to hosts; a card that has been busy once was measured

Pairs = Sequence[tuple[int, int]]  # of ranks, from and to


def measure_topology(ranks: Together) -> dict[str, Any]:
    """What a topology file says (``load_fabric``), with the rates that rows get here. All ranks call it.

    All hosts send and receive at the same time, each to one other, in turns; then the ranks of each host, to one
    another.
    """
    hosts = ranks.gather(socket.gethostname())
    fabric = fabric_of_hosts(hosts, 1.0, 1.0)
    rates: dict[str, float] = {}
    for pairs in _turns(hosts):
        for hop, rate in _rates(ranks, pairs, fabric.paths).items():
            rates[hop] = max(rate, rates.get(hop, 0.0))
    paths = {f"{a} {b}": list(path) for (a, b), path in fabric.paths.items()}
    return {"hops": {hop: round(rate) for hop, rate in sorted(rates.items())}, "paths": paths}


def _turns(hosts: Sequence[str]) -> Iterator[Pairs]:
    """Who sends whom something at the same time.

    >>> list(_turns(["a", "a", "b"]))
    [[(0, 2), (1, 2), (2, 0)], [(1, 0), (0, 1)]]
    """
    members = [[rank for rank, host in enumerate(hosts) if host == name] for name in dict.fromkeys(hosts)]
    count = len(members)
    for shift in range(1, min(count, MOST_SHIFTS + 1)):
        others = members[shift:] + members[:shift]
        yield [(rank, theirs[k % len(theirs)]) for own, theirs in zip(members, others) for k, rank in enumerate(own)]
    if count < len(hosts):
        yield [(own[k - 1], rank) for own in members if len(own) > 1 for k, rank in enumerate(own)]


def _rates(ranks: Together, pairs: Pairs, paths: Mapping[tuple[int, int], Sequence[str]]) -> dict[str, float]:
    """Bytes per second over every hop while all pairs send at the same time."""
    pieces, seconds = 1, _seconds(ranks, pairs, 1)
    while max(seconds) < LONG and pieces < MOST_PIECES:
        pieces *= 2
        seconds = _seconds(ranks, pairs, pieces)
    found: dict[str, float] = {}
    for hop in {hop for pair in pairs for hop in paths[pair]}:
        over = [to for pair in pairs if hop in paths[pair] for to in pair[1:]]
        found[hop] = len(over) * pieces * PIECE / max(seconds[to] for to in over)
    return found


def _seconds(ranks: Together, pairs: Pairs, pieces: int) -> list[float]:
    """Until every rank had received what it gets, so many pieces of each."""
    sent, received = torch.zeros(PIECE, dtype=torch.uint8), torch.empty(PIECE, dtype=torch.uint8)
    out = [(b, sent) for a, b in pairs if a == ranks.rank] * pieces
    into = [(a, received) for a, b in pairs if b == ranks.rank] * pieces
    ranks.gather(None)  # they begin together
    start = perf_counter()
    begun = ranks.begin(out, into)
    ranks.end(begun[: len(into)])
    seconds = max(perf_counter() - start, 1e-9)
    ranks.end(begun[len(into) :])
    return ranks.gather(seconds)

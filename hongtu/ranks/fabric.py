"""What joins ranks: hops, such as a machine's network card, how fast each is, and which of them rows pass from one rank
to another."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from hongtu.errors import InputError
from hongtu.files import read_json
from hongtu.hardware import Hardware
from hongtu.ranks.together import Together

EXPECTED = '{"hosts": ["a", "a", "b", "b"]}, a host for each rank, or {"hops": {NAME: BYTES PER SECOND}, "paths": ' \
    '{"0 1": [NAME, ...], ...}}, or both'  # fmt: skip
PIECE = 1 << 20  # bytes of a message
LONG = 0.3  # seconds that say enough
MOST_PIECES = 1 << 12
MOST_SHIFTS = 8  # of hosts to hosts; a card that has been busy once was measured
Pairs = Sequence[tuple[int, int]]  # of ranks, from and to


@dataclass(frozen=True)
class Fabric:
    """Of k ranks; hops carry rows in one direction.

    Attributes:
        hops: bytes per second of each.
        paths: for every (from, to) the hops that rows pass.
    """

    hops: Mapping[str, float]
    paths: Mapping[tuple[int, int], tuple[str, ...]]

    def seconds(self, rows: Mapping[tuple[int, int], int]) -> float:
        """In which the busiest hop carries a byte of so many rows of every (from, to).

        >>> two = fabric_of_hosts(["a", "a", "b", "b"], network_link=2.0, host_link=8.0)
        >>> two.seconds({(0, 2): 4, (1, 2): 2, (0, 1): 8})
        3.0
        """
        return max(self.load(rows).values(), default=0.0)

    @property
    def slowest(self) -> float:
        """Bytes per second of the slowest hop that anything passes."""
        return min((self.hops[hop] for path in self.paths.values() for hop in path), default=inf)

    def load(self, rows: Mapping[tuple[int, int], int]) -> dict[str, float]:
        """Of every hop that is used, the seconds that it takes."""
        found: dict[str, float] = {}
        for pair, count in rows.items():
            for hop in self.paths[pair]:
                found[hop] = found.get(hop, 0.0) + count / self.hops[hop]
        return found


def fabric_of_hosts(hosts: Sequence[str], network_link: float, host_link: float) -> Fabric:
    """Every host has a network card, whose two directions do not disturb each other, and memory.

    Args:
        hosts: of every rank.
        network_link, host_link: bytes per second of them.
    """
    hops: dict[str, float] = {}
    for host in hosts:
        hops |= {f"{host} out": network_link, f"{host} in": network_link, f"{host} memory": host_link}
    paths = {
        (a, b): (f"{hosts[a]} memory",) if hosts[a] == hosts[b] else (f"{hosts[a]} out", f"{hosts[b]} in")
        for a, b in permutations(range(len(hosts)), 2)
    }
    return Fabric(hops, paths)


def shared_hosts(hosts: Sequence[str], hardware: Hardware) -> Fabric | None:
    """What joins ranks by what is known without a file; None where each has a link for itself, or all are on one host.

    Args:
        hosts: of every rank.
    """
    if len(set(hosts)) in (1, len(hosts)):
        return None
    return fabric_of_hosts(hosts, hardware.network_link, hardware.host_link)


def over(fabric: Fabric | None, hardware: Hardware) -> Hardware:
    """It, with what joins its ranks."""
    return hardware if fabric is None else replace(hardware, network_link=fabric.slowest)


def fabric_between(ranks: Together, path: str | os.PathLike[str] | None, hardware: Hardware) -> Fabric | None:
    """What joins the processes that train together; all call it.

    Args:
        path: of a topology file, the same for all.

    Raises:
        InputError: for what is wrong with it, and where there is nothing to join.
    """
    if ranks.size == 1:
        if path is not None:
            raise InputError(
                "topology: says what joins ranks, and this process is alone; start some by "
                "torchrun, or leave it out (--topology '' over a run file)"
            )
        return None
    hosts = ranks.gather(socket.gethostname())
    with ranks.agreed():
        found = shared_hosts(hosts, hardware) if path is None else load_fabric(path, ranks.size, hardware)
    ranks.check_same({"topology": found})
    return found


def load_fabric(path: str | os.PathLike[str], ranks: int, hardware: Hardware) -> Fabric:
    """Read a topology file.

    Args:
        ranks: that there are.
        hardware: how fast network cards and memory are, where the file names hosts.

    Raises:
        InputError: naming what is wrong with it.
    """
    found = read_json(Path(path), f"expected {EXPECTED}")
    known = isinstance(found, dict) and bool(found) and not set(found) - {"hosts", "hops", "paths"}
    if not known or not all(isinstance(found.get(name, {}), dict) for name in ("hops", "paths")):
        raise InputError(f"topology {path}: expected {EXPECTED}")
    return _fabric_of(found, path, ranks, hardware)


def _fabric_of(found: dict[str, Any], path: str | os.PathLike[str], ranks: int, hardware: Hardware) -> Fabric:
    hops: dict[str, float] = {}
    paths: dict[tuple[int, int], tuple[str, ...]] = {}
    if "hosts" in found:
        hosts = found["hosts"]
        if not isinstance(hosts, list) or len(hosts) != ranks:
            raise InputError(f"topology {path}: hosts is {hosts!r}; expected a list with one for each of {ranks} ranks")
        known = fabric_of_hosts([str(host) for host in hosts], hardware.network_link, hardware.host_link)
        hops, paths = dict(known.hops), dict(known.paths)
    for name, rate in found.get("hops", {}).items():
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 2**1023:
            raise InputError(f"topology {path}: hop {name!r} has {rate!r}; expected bytes per second, above 0")
        hops[name] = float(rate)
    numbers = {str(rank): rank for rank in range(ranks)}
    for pair, names in found.get("paths", {}).items():
        ends = tuple(numbers.get(word, -1) for word in pair.split())
        if len(ends) != 2 or ends[0] == ends[1] or -1 in ends:
            raise InputError(f'topology {path}: path {pair!r}; expected two of the ranks 0 to {ranks - 1}, as "0 1"')
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InputError(f"topology {path}: path {pair!r} is {names!r}; expected a list of names of hops")
        unknown = [name for name in names if name not in hops]
        if unknown:
            raise InputError(f"topology {path}: path {pair!r} passes {unknown[0]!r}; expected one of {', '.join(hops)}")
        paths[ends] = tuple(names)
    missing = [f"{a} {b}" for a, b in permutations(range(ranks), 2) if (a, b) not in paths]
    if missing:
        raise InputError(f'topology {path}: no path for "{missing[0]}"; give one for every two ranks, or their hosts')
    return Fabric(hops, paths)


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
